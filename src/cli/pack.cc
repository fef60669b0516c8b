// `kvasir pack`: the packed form of a model's weights as a file that later runs map.
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/memory_plan.h"

namespace kvasir::cli {
namespace {

struct PackFlags {
  std::string model, out, memory;
  int threads = 0;
  bool json = false;
};

int pack(const PackFlags& flags) {
  const std::filesystem::path model = resolve_model(flags.model);
  const std::filesystem::path out =
      flags.out.empty() ? models::default_pack_path(model) : std::filesystem::path(flags.out);
  std::error_code ignored;
  if (std::filesystem::equivalent(model, out, ignored))
    throw_error(ErrorCode::invalid_input, "{}: the packed file would replace the model: give another --out",
                printable(out.string()));
  engine::EngineOptions given;
  given.load.threads = flags.threads;
  if (!flags.memory.empty()) given.memory_budget = parse_size(flags.memory, "--memory");
  given = engine::with_defaults(given);
  const engine::PackMemory memory = engine::plan_pack_memory(model, given);
  if (!memory.fits)
    throw Error(
        ErrorCode::resource_exhausted,
        fmt::format("{} does not fit: {} MB needed to pack it, {} MB available", printable(model.string()),
                    memory.total_bytes / 1000000, memory.available_bytes / 1000000),
        fmt::format("  largest weight {} bytes\n  process        {} bytes", memory.weight_bytes,
                    memory.process_bytes));
  models::LoadOptions options = given.load;
  Progress progress("packing");
  options.progress = progress.callback();
  const auto start = std::chrono::steady_clock::now();
  const size_t bytes = models::Model::write_pack(model, options, out);
  progress.done();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json)
    print_json({{"schema_version", 1},
                {"model", model.string()},
                {"pack_file", out.string()},
                {"bytes", bytes},
                {"memory_bytes", memory.total_bytes},
                {"seconds", seconds}},
               1);
  else
    std::printf("%s: %.1f MB, packed in %.1f s with %.0f MB of memory; runs of %s map it\n", out.c_str(),
                static_cast<double>(bytes) / 1e6, seconds, static_cast<double>(memory.total_bytes) / 1e6,
                flags.out.empty() ? flags.model.c_str() : ("this model with --pack " + out.string()).c_str());
  return kExitDone;
}

}  // namespace

void add_pack(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* command = app.add_subcommand("pack", "Write packed weights, which later runs map and share");
  add_model(*command, flags->model);
  add_output(*command, "--out,-o", flags->out,
             "File to write (default: MODEL.kpack beside a file, kvasir.kpack in a folder)");
  add_threads(*command, flags->threads);
  add_memory(*command, flags->memory);
  add_json(*command, flags->json);
  command->footer(
      "Example: kvasir pack model.gguf && kvasir chat model.gguf\n"
      "The file is as large as the packed weights. They are written one after the\n"
      "other: memory is needed for the largest of them. A model that changes needs\n"
      "a new file: runs say so and pack in memory.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return pack(*flags); }; });
}

}  // namespace kvasir::cli
