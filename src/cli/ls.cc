// `kvasir ls`: the models on this machine, whoever put them there.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/ascii.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/image_input.h"
#include "cli/model_names.h"
#include "cli/options.h"
#include "cli/output.h"
#include "formats/checkpoint.h"
#include "models/model.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct LsFlags {
  std::string filter, max_size;
  bool json = false;
  bool quick = false;
  bool vision = false;
  bool all_revisions = false;
};

struct Row {
  const hub::LocalModel* model = nullptr;
  std::string format;   // "gguf", "safetensors", "mlx"; empty: not known
  std::string weights;  // "q4_K x 210, ..."
  std::string family;   // model_type
  std::string problem;  // why it does not run
  int64_t parameters = 0;
  std::optional<std::string> vision;  // image_input()
};

std::string first_line(std::string text, const std::string& path) {
  text = text.substr(0, text.find('\n'));
  if (text.starts_with(path + ": ")) text.erase(0, path.size() + 2);
  return text;
}

// From headers alone.
Row examine(const hub::LocalModel& model, bool quick) {
  Row row;
  row.model = &model;
  // Whether a file is part of a split model is what its keys say, not its name.
  if (!model.problem_by_name) row.problem = model.problem;
  if (model.incomplete) return row;
  const bool folder = model.files.empty() || model.files.front() != model.path;
  row.format = model.store == hub::Store::ollama || !folder ? "gguf" : "safetensors";
  if (!quick) row.vision = image_input(model);
  if (!row.problem.empty() || quick) return row;
  try {
    models::ModelInfo info;
    models::LoadOptions options;
    options.context = 1;  // the plan's size does not matter here
    models::Model::plan(model.path, options, &info);
    row.problem = formats::Checkpoint::open(model.path).text_problem();
    row.format = info.format;
    row.weights = info.weight_formats;
    row.family = info.model_type;
    row.parameters = info.parameters;
  } catch (const Error& error) {
    const bool missing = model.problem_by_name && error.code() == ErrorCode::not_found;
    row.problem = missing ? model.problem : first_line(error.what(), model.path.string());
  }
  return row;
}

// The storage format of most weights: "q4_K x 210, f32 x 61" -> "q4_K".
std::string main_format(const std::string& formats) {
  std::string best;
  long best_count = -1;
  for (size_t begin = 0; begin < formats.size();) {
    size_t end = formats.find(", ", begin);
    if (end == std::string::npos) end = formats.size();
    const std::string entry = formats.substr(begin, end - begin);
    const size_t times = entry.find(" x ");
    const long count = times == std::string::npos ? 0 : std::strtol(entry.c_str() + times + 3, nullptr, 10);
    const std::string name = entry.substr(0, times);
    // Norms are f32 in every file: they name it only when there is nothing else.
    const bool plain = name == "f32" || name == "F32";
    if (best.empty() || (!plain && count > best_count)) {
      best = name;
      best_count = plain ? 0 : count;
    }
    begin = end + 2;
  }
  return best;
}

int ls(const LsFlags& flags) {
  const std::vector<hub::LocalModel> models = local_models();
  const std::string filter = ascii_lower(flags.filter);
  const uint64_t most = flags.max_size.empty() ? std::numeric_limits<uint64_t>::max()
                                               : parse_size(flags.max_size, "--max-size");
  std::vector<Row> rows;
  size_t other_revisions = 0;
  for (const hub::LocalModel& model : models) {
    if (ascii_lower(model.name).find(filter) == std::string::npos || model.bytes > most) continue;
    const bool other = !model.canonical && !flags.all_revisions;
    if (other && !flags.vision) ++other_revisions;
    if (other) continue;
    Row row = examine(model, flags.quick);
    if (!flags.vision || row.vision) rows.push_back(std::move(row));
  }
  if (flags.json) {
    Json out = Json::array();
    for (const Row& row : rows) {
      Json entry = {{"name", row.model->name},
                    {"store", hub::name(row.model->store)},
                    {"format", row.format},
                    {"weights", row.weights},
                    {"quant", row.model->quant},
                    {"model_type", row.family},
                    {"parameters", row.parameters},
                    {"bytes", row.model->bytes},
                    {"path", row.model->path.string()}};
      entry["vision"] = flags.quick || row.model->incomplete ? Json() : Json(row.vision.has_value());
      if (row.vision && !row.vision->empty()) entry["vision_config_type"] = *row.vision;
      if (!row.model->commit.empty()) {
        entry["commit"] = row.model->commit;
        entry["canonical"] = row.model->canonical;
      }
      if (row.model->incomplete) entry["incomplete"] = true;
      entry["supported"] = flags.quick && row.problem.empty() ? Json() : Json(row.problem.empty());
      if (!row.problem.empty()) entry["problem"] = row.problem;
      out.push_back(std::move(entry));
    }
    print_json(out, 1);
    return kExitDone;
  }
  if (other_revisions > 0)
    std::fprintf(stderr, "kvasir: note: %zu more of other revisions: --all-revisions lists them\n",
                 other_revisions);
  if (rows.empty()) {
    const bool chosen = flags.vision || !flags.max_size.empty();
    std::printf("%s\n", models.empty() ? "no models here: `kvasir get smollm2` fetches a small one"
                        : chosen       ? "no model like that here"
                                       : "no model of that name here");
    return kExitDone;
  }
  size_t width = 4;
  for (const Row& row : rows) width = std::max(width, printable(row.model->name).size());
  width = std::min<size_t>(width, 60);
  std::printf("%-*s  %10s  %-12s %-12s %-11s %s\n", static_cast<int>(width), "NAME", "SIZE", "FORMAT",
              "WEIGHTS", "STORE", flags.quick ? "" : "RUNS");
  for (const Row& row : rows) {
    const std::string weights = row.weights.empty() ? row.model->quant : main_format(row.weights);
    const std::string runs =
        row.problem.empty() ? (flags.quick ? "" : "yes, " + row.family) : "no: " + printable(row.problem);
    std::printf("%-*s  %10s  %-12s %-12s %-11s %s\n", static_cast<int>(width),
                printable(row.model->name).c_str(), size_text(row.model->bytes).c_str(),
                row.format.empty() ? "-" : row.format.c_str(), weights.empty() ? "-" : weights.c_str(),
                std::string(hub::name(row.model->store)).c_str(), runs.c_str());
  }
  return kExitDone;
}

}  // namespace

void add_ls(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<LsFlags>();
  CLI::App* command = app.add_subcommand("ls", "The models on this machine, of other programs too");
  add_text(*command, "FILTER", flags->filter, "FILTER", "Only names that contain this");
  CLI::Option* quick = command->add_flag("--quick", flags->quick, "Open no model: do not say which can run");
  command
      ->add_flag("--vision", flags->vision, "Only models that take images (of which kvasir reads the text)")
      ->excludes(quick);
  add_text(*command, "--max-size", flags->max_size, "SIZE", "Only models of at most so many bytes: 10GB")
      ->each([](const std::string& size) { parse_size(size, "--max-size"); });
  command->add_flag("--all-revisions", flags->all_revisions,
                    "Also snapshots of a repository other than main, or else the newest");
  add_json(*command, flags->json, "Machine-readable output, with paths");
  command->footer(
      "Examples:\n"
      "  kvasir ls\n"
      "  kvasir ls qwen --json\n"
      "  kvasir ls --max-size 10GB\n"
      "Folders: $KVASIR_MODELS; HF_HUB_CACHE; ~/.lmstudio/models; $OLLAMA_MODELS.\n"
      "Names serve as MODEL everywhere.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return ls(*flags); }; });
}

}  // namespace kvasir::cli
