// `kvasir fit`: the memory contract, from headers alone.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "engine/memory_plan.h"
#include "kv/cache_shape.h"

namespace kvasir::cli {
namespace {

int fit(const LoadFlags& flags, const PrefixFlags& prefixes, bool json) {
  engine::EngineOptions options = flags.options();
  prefixes.apply(options, false);
  const engine::MemoryReport report = engine::Engine::plan(resolve_model(flags.model), options);
  if (json) {
    nlohmann::ordered_json out = {{"schema_version", 1},
                                  {"fits", report.fits},
                                  {"weights_bytes", report.weights_bytes},
                                  {"kv_bytes", report.kv_bytes},
                                  {"workspace_bytes", report.workspace_bytes},
                                  {"process_bytes", report.process_bytes},
                                  {"prefix_bytes", report.prefix_bytes},
                                  {"total_bytes", report.total_bytes},
                                  {"stored_bytes", report.stored_bytes},
                                  {"pack_file", report.pack_file},
                                  {"available_bytes", report.available_bytes},
                                  {"kv_bytes_per_token", report.kv_bytes_per_token},
                                  {"context", report.context},
                                  {"batch", flags.batch},
                                  {"model_context", report.model_context},
                                  {"max_context", report.max_context},
                                  {"kv", report.kv_key},
                                  {"notes", report.kv_notes}};
    out["kv_groups"] = nlohmann::ordered_json::array();
    for (const models::KvGroup& group : report.kv_groups)
      out["kv_groups"].push_back(
          {{"layers", group.layers},
           {"kv_heads", group.geometry.kv_heads},
           {"head_dim_k", group.geometry.head_dim_k},
           {"head_dim_v", group.geometry.head_dim_v},
           {"window", group.geometry.window ? nlohmann::ordered_json(*group.geometry.window)
                                            : nlohmann::ordered_json()},
           {"codec", kv::describe(group.geometry.codec)},
           {"page_tokens", group.geometry.page_tokens},
           {"page_bytes", group.page_bytes},
           {"bytes_per_token", group.bytes_per_token}});
    print_json(out, 1);
  } else {
    if (!report.pack_file.empty())
      std::printf("weights are mapped from %s, shared with other processes that do\n",
                  report.pack_file.c_str());
    std::printf("%s: %s\n%s\n", flags.model.c_str(), report.fits ? "fits" : "does not fit",
                engine::describe(report).c_str());
    for (const models::KvGroup& group : report.kv_groups)
      std::printf("  kv: %s, %zu bytes a token\n", kv::describe(group.geometry).c_str(),
                  group.bytes_per_token);
  }
  if (!json)
    for (const std::string& note : report.kv_notes) std::printf("  note: %s\n", note.c_str());
  return report.fits ? kExitDone : kExitDoesNotFit;
}

}  // namespace

void add_fit(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<LoadFlags>();
  auto prefixes = std::make_shared<PrefixFlags>();
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("fit", "What a load will take in memory, from headers alone");
  flags->add_to(*command);
  prefixes->add_to(*command);
  add_json(*command, *json);
  command->footer(
      "Example: kvasir fit model.gguf --context 32768 --batch 4\nExit status 4 when it does not fit.");
  command->callback([flags, prefixes, json, &invocation] {
    invocation.work = [flags, prefixes, json] { return fit(*flags, *prefixes, *json); };
  });
}

}  // namespace kvasir::cli
