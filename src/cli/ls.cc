// `kvasir ls`: the models on this machine, whoever put them there.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/model_names.h"
#include "models/model.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct LsFlags {
  std::string filter;
  bool json = false;
  bool quick = false;
};

struct Row {
  const hub::LocalModel* model = nullptr;
  std::string format;   // "gguf", "safetensors", "mlx"; empty: not known
  std::string weights;  // "q4_K x 210, ..."
  std::string family;   // model_type
  std::string problem;  // why it does not run
  int64_t parameters = 0;
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
  row.problem = model.problem;
  const bool folder = model.files.empty() || model.files.front() != model.path;
  row.format = model.store == hub::Store::ollama || !folder ? "gguf" : "safetensors";
  if (!row.problem.empty() || quick) return row;
  try {
    models::ModelInfo info;
    models::LoadOptions options;
    options.context = 1;  // the plan's size does not matter here
    models::Model::plan(model.path, options, &info);
    row.format = info.format;
    row.weights = info.weight_formats;
    row.family = info.model_type;
    row.parameters = info.parameters;
  } catch (const Error& error) {
    row.problem = first_line(error.what(), model.path.string());
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

std::string size_text(uint64_t bytes) {
  return bytes >= 1'000'000'000 ? fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9)
                                : fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

int ls(const LsFlags& flags) {
  const std::vector<hub::LocalModel> models = local_models();
  std::vector<Row> rows;
  for (const hub::LocalModel& model : models) {
    const auto same = [](char a, char b) {
      const auto low = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
      return low(a) == low(b);
    };
    if (std::search(model.name.begin(), model.name.end(), flags.filter.begin(), flags.filter.end(), same) ==
            model.name.end() &&
        !flags.filter.empty())
      continue;
    rows.push_back(examine(model, flags.quick));
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
      if (!row.model->commit.empty()) entry["commit"] = row.model->commit;
      entry["supported"] = flags.quick && row.problem.empty() ? Json() : Json(row.problem.empty());
      if (!row.problem.empty()) entry["problem"] = row.problem;
      out.push_back(std::move(entry));
    }
    std::printf("%s\n", out.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
    return kExitDone;
  }
  if (rows.empty()) {
    std::printf("%s\n", flags.filter.empty() ? "no models here: `kvasir get smollm2` fetches a small one"
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
                printable(row.model->name).c_str(), size_text(row.model->bytes).c_str(), row.format.c_str(),
                weights.empty() ? "-" : weights.c_str(), std::string(hub::name(row.model->store)).c_str(),
                runs.c_str());
  }
  return kExitDone;
}

}  // namespace

void add_ls(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<LsFlags>();
  CLI::App* command =
      app.add_subcommand("ls", "The models on this machine: kvasir's, Hugging Face's, LM Studio's, Ollama's");
  command->add_option("FILTER", flags->filter, "Only names that contain this");
  command->add_flag("--quick", flags->quick, "Open no model: do not say which can run");
  command->add_flag("--json", flags->json, "Machine-readable output, with paths");
  command->footer(
      "Examples:\n"
      "  kvasir ls\n"
      "  kvasir ls qwen --json\n"
      "Folders: $KVASIR_MODELS; HF_HUB_CACHE; ~/.lmstudio/models; $OLLAMA_MODELS.\n"
      "Names serve as MODEL everywhere.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return ls(*flags); }; });
}

}  // namespace kvasir::cli
