// `kvasir inspect`: what a checkpoint holds, and the programs that would run it.
#include <cmath>
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
#include "formats/check_tensors.h"
#include "formats/checkpoint.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  LoadFlags load;
  bool program = false;
  bool tensors = false;
  bool check = false;
  bool json = false;
};

Json info_json(const models::ModelInfo& info) {
  Json json = {{"model_type", info.model_type},
               {"implementation", info.implementation},
               {"profile", info.profile},
               {"artifact", info.artifact ? Json(*info.artifact) : Json()},
               {"config_fingerprint", info.config_fingerprint},
               {"specialization_fingerprint", info.specialization_fingerprint},
               {"format", info.format},
               {"weight_formats", info.weight_formats},
               {"activations", models::name(info.activations)},
               {"isa", name(info.isa)},
               {"layers", info.layers},
               {"hidden", info.hidden},
               {"vocab", info.vocab},
               {"parameters", info.parameters},
               {"model_context", info.model_context},
               {"context", info.context},
               {"eos_ids", info.eos_ids}};
  json["bos_id"] = info.bos_id ? Json(*info.bos_id) : Json();
  return json;
}

// Reads the values of every tensor that holds reals; how many those are. Throws naming file, tensor and
// place.
size_t check_tensors(const formats::Checkpoint& checkpoint) {
  size_t checked = 0;
  for (const formats::TensorEntry& entry : checkpoint.tensors()) {
    if (!formats::holds_reals(entry.format)) continue;
    try {
      formats::check_finite(checkpoint.weight(entry));
      for (const float scale : checkpoint.tensor_scales(entry))
        if (!std::isfinite(scale))
          throw_error(ErrorCode::corrupt_file, "tensor {}: its scale is {}", printable(entry.name), scale);
    } catch (const Error& error) {
      // What reads the values knows no file.
      const std::string text = error.what();
      if (text.starts_with(printable(entry.file))) throw;
      throw Error(error.code(), fmt::format("{}: {}", printable(entry.file), text), error.details());
    }
    ++checked;
  }
  return checked;
}

int inspect(const InspectFlags& flags) {
  const std::filesystem::path path = resolve_model(flags.load.model);
  const engine::EngineOptions options = engine::with_defaults(flags.load.options());
  formats::Checkpoint checkpoint = formats::Checkpoint::open(path);
  checkpoint.read_headers();
  models::ModelInfo info;
  const models::MemoryPlan plan = models::Model::plan(path, options.load, &info);
  Json out = info_json(info);
  out["path"] = path.string();
  out["weights_bytes"] = plan.weights_bytes;
  out["stored_bytes"] = plan.stored_bytes;
  out["workspace_bytes"] = plan.workspace_bytes;
  const int32_t kv_start = plan.kv_shape.start;
  out["kv"] = plan.kv_key;
  out["kv_start"] = kv_start;
  out["kv_groups"] = kv_groups_json(plan.kv_groups, kv_start);
  std::vector<std::string> notes = plan.kv_notes;
  notes.insert(notes.end(), info.warnings.begin(), info.warnings.end());
  if (const std::string problem = checkpoint.text_problem(); !problem.empty())
    notes.push_back(
        fmt::format("{}: {}: no text can be read or written with it", printable(path.string()), problem));
  out["notes"] = notes;
  if (flags.check) out["checked_tensors"] = check_tensors(checkpoint);
  if (flags.tensors) {
    out["tensors"] = Json::array();
    for (const formats::TensorEntry& entry : checkpoint.tensors())
      out["tensors"].push_back({{"name", entry.name},
                                {"format", formats::name(entry.format)},
                                {"shape", entry.shape},
                                {"bytes", entry.stored_bytes}});
  }
  std::string program_text;
  if (flags.program) {
    // The programs hold pointers to packed weights, so the model is loaded for their dump.
    const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, flags.load.options());
    const models::Model& model = engine->model();
    out["program"] = {{"trunk", Json::parse(model.trunk().dump_json())},
                      {"head", Json::parse(model.head().dump_json())}};
    out["numerics_key"] = model.numerics_key().hex();
    program_text = "trunk " + model.trunk().dump() + "head " + model.head().dump();
  }
  if (flags.json) {
    print_json(out, 1);
    return kExitDone;
  }
  std::printf("%s\n", printable_lines(path.string()).c_str());
  std::printf("  family       %s, built by %s (profile %s)\n", info.model_type.c_str(),
              info.implementation.c_str(), info.profile.c_str());
  std::printf("  file         %s, %zu tensors: %s\n", info.format.c_str(), checkpoint.tensors().size(),
              info.weight_formats.c_str());
  std::printf("  size         %lld layers, hidden %lld, vocabulary %lld, %.1f million parameters\n",
              static_cast<long long>(info.layers), static_cast<long long>(info.hidden),
              static_cast<long long>(info.vocab), static_cast<double>(info.parameters) / 1e6);
  std::printf("  context      %lld (in force: %lld)\n", static_cast<long long>(info.model_context),
              static_cast<long long>(info.context));
  std::printf("  activations  %s, instruction-set level %s\n",
              std::string(models::name(info.activations)).c_str(), std::string(name(info.isa)).c_str());
  std::printf("  weights      %zu bytes packed (%zu stored), workspace %zu bytes\n", plan.weights_bytes,
              plan.stored_bytes, plan.workspace_bytes);
  for (const models::KvGroup& group : plan.kv_groups)
    std::printf("  kv           %s\n", kv_group_text(group, kv_start).c_str());
  for (const std::string& note : notes) std::printf("  note         %s\n", printable_lines(note).c_str());
  if (flags.check)
    std::printf("  values       of %zu tensors read: all are finite\n", out["checked_tensors"].get<size_t>());
  if (flags.tensors)
    for (const formats::TensorEntry& entry : checkpoint.tensors()) {
      std::string shape;
      for (int64_t n : entry.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(n);
      std::printf("  %-52s %-10s [%s]\n", printable(entry.name).c_str(),
                  std::string(formats::name(entry.format)).c_str(), shape.c_str());
    }
  if (!program_text.empty()) std::fputs(program_text.c_str(), stdout);
  return kExitDone;
}

}  // namespace

void add_inspect(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "What a checkpoint holds and how it would run");
  flags->load.add_to(*command);
  command->add_flag("--program", flags->program,
                    "The recorded programs: ops, shapes, buffers, lifetimes, peak");
  command->add_flag("--tensors", flags->tensors, "Every tensor");
  command->add_flag("--check-tensors", flags->check,
                    "Read all values: NaN, infinity and invalid scales are named (exit status 1)");
  add_json(*command, flags->json);
  command->footer(
      "Examples:\n"
      "  kvasir inspect model.gguf --tensors\n"
      "  kvasir inspect smollm2 --program --context 256");
  command->callback([flags, &invocation] { invocation.work = [flags] { return inspect(*flags); }; });
}

}  // namespace kvasir::cli
