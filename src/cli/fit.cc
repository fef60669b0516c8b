// `kvasir fit`: the memory contract, from headers alone.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/kv_report.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "engine/memory_plan.h"
#include "formats/checkpoint.h"

namespace kvasir::cli {
namespace {

struct FitFlags {
  LoadFlags load;
  PrefixFlags prefixes;
  bool chat = false;
  bool json = false;
};

// `chat`: as `kvasir chat` loads a model with these flags.
engine::MemoryReport plan(const FitFlags& flags, const std::filesystem::path& path, bool chat) {
  engine::EngineOptions options = flags.load.options();
  options.checkpoints = chat;
  if (chat != flags.chat) options.load.note = {};  // said by the plan that was asked for
  flags.prefixes.apply(options, chat);
  return engine::Engine::plan(path, options);
}

int fit(const FitFlags& flags) {
  const std::filesystem::path path = resolve_model(flags.load.model);
  const engine::MemoryReport report = plan(flags, path, flags.chat);
  const engine::MemoryReport chat = flags.chat ? report : plan(flags, path, true);
  std::vector<std::string> notes = report.kv_notes;
  if (const std::string problem = formats::Checkpoint::open(path).text_problem(); !problem.empty())
    notes.push_back(fmt::format("{}: {}: it fits, and no text can be generated with it",
                                printable(path.string()), problem));
  if (flags.json) {
    nlohmann::ordered_json out = {{"schema_version", 1},
                                  {"fits", report.fits},
                                  {"weights_bytes", report.weights_bytes},
                                  {"kv_bytes", report.kv_bytes},
                                  {"workspace_bytes", report.workspace_bytes},
                                  {"process_bytes", report.process_bytes},
                                  {"prefix_bytes", report.prefix_bytes},
                                  {"total_bytes", report.total_bytes},
                                  {"chat_total_bytes", chat.total_bytes},
                                  {"stored_bytes", report.stored_bytes},
                                  {"pack_file", report.pack_file},
                                  {"available_bytes", report.available_bytes},
                                  {"kv_bytes_per_token", report.kv_bytes_per_token},
                                  {"context", report.context},
                                  {"batch", flags.load.batch},
                                  {"model_context", report.model_context},
                                  {"max_context", report.max_context},
                                  {"kv", report.kv_key},
                                  {"kv_start", report.kv_start},
                                  {"notes", notes}};
    out["kv_groups"] = kv_groups_json(report.kv_groups, report.kv_start);
    for (size_t g = 0; g < report.kv_groups.size(); ++g) {
      const kv::GroupBytes& pool = report.kv_pools[g];
      out["kv_groups"][g]["pages"] = pool.pages;
      if (pool.plain_pages == 0) continue;
      out["kv_groups"][g]["plain_pages"] = pool.plain_pages;
      out["kv_groups"][g]["plain_page_bytes"] = pool.plain_page_bytes;
    }
    print_json(out, 1);
  } else {
    if (!report.pack_file.empty())
      std::printf("weights are mapped from %s, shared with other processes that do\n",
                  printable_lines(report.pack_file).c_str());
    std::printf("%s: %s\n%s\n", printable_lines(flags.load.model).c_str(),
                report.fits ? "fits" : "does not fit", engine::describe(report).c_str());
    for (const models::KvGroup& group : report.kv_groups)
      std::printf("  kv: %s\n", kv_group_text(group, report.kv_start).c_str());
    for (const std::string& note : notes) std::printf("  note: %s\n", note.c_str());
    if (report.fits && !chat.fits)
      std::printf("  note: for kvasir chat it does not fit: %zu bytes (--chat)\n", chat.total_bytes);
  }
  return report.fits ? kExitDone : kExitDoesNotFit;
}

}  // namespace

void add_fit(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* command = app.add_subcommand("fit", "What a load will take in memory, from headers alone");
  command->add_flag("--chat", flags->chat,
                    "For kvasir chat: with a prompt cache, and windows of prompts that it comes back to");
  flags->load.add_to(*command);
  flags->prefixes.add_to(*command);
  add_json(*command, flags->json);
  command->footer(
      "Example: kvasir fit model.gguf --context 32768 --batch 4\nExit status 4 when it does not fit.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return fit(*flags); }; });
}

}  // namespace kvasir::cli
