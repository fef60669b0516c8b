// `kvasir eval kl`: how far a model's (or a setting's) next-token distributions are from a reference's.
//
// Both run side by side, one position at a time; no logits are stored.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/eval.h"
#include "cli/eval_rows.h"
#include "cli/flags.h"
#include "cli/kl_statistics.h"
#include "cli/logits_stream.h"
#include "cli/npy_reader.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/engine.h"

namespace kvasir::cli {
namespace {

struct KlFlags {
  LoadFlags load;
  EvalText text;
  std::string against, against_activations, against_kv, reference;
  int64_t window = 0;  // 0: all tokens in one row
  bool json = false;

  bool has_engine_reference() const {
    return !against.empty() || !against_activations.empty() || !against_kv.empty();
  }
};

engine::EngineOptions options_for(const LoadFlags& flags, int64_t longest) {
  engine::EngineOptions options = flags.options();
  if (options.load.context == 0) options.load.context = longest;
  if (longest > options.load.context)
    throw_error(ErrorCode::invalid_input, "{} tokens in a row, more than --context {}: --window cuts them",
                longest, options.load.context);
  options.load.chunk = static_cast<int>(std::min<int64_t>(options.load.chunk, longest));
  options.load.logits = std::min(kLogitRows, options.load.chunk);
  return options;
}

struct Side {
  std::filesystem::path path;
  engine::EngineOptions options;
  std::unique_ptr<engine::Engine> engine;
};

// A refusal of the reference's codec names the flag that it came by.
void check_against_kv(const Side& against, const Side& model) {
  engine::Engine::plan(model.path, model.options);  // whose --kv is refused first, by its own name
  try {
    engine::Engine::plan(against.path, against.options);
  } catch (const Error& error) {
    if (const std::string_view text = error.what(); text.starts_with("--kv "))
      throw_error(error.code(), "--against-kv{}", text.substr(4));
    throw;
  }
}

// Both are planned before either is loaded: together they have to fit.
void open_sides(std::vector<Side*> sides) {
  size_t needed = 0, available = 0;
  std::vector<size_t> totals;
  for (Side* side : sides) {
    const engine::MemoryReport plan = engine::Engine::plan(side->path, side->options);
    totals.push_back(plan.total_bytes);
    needed += plan.total_bytes;
    available = plan.available_bytes;
  }
  if (needed > available)
    throw_error(ErrorCode::resource_exhausted,
                "both together do not fit: {} MB needed, {} MB available; write the reference's logits with "
                "`kvasir eval logits` and give them as --reference",
                needed / 1000000, available / 1000000);
  for (size_t i = 0; i < sides.size(); ++i) {
    Progress loading("loading");
    engine::EngineOptions options = sides[i]->options;
    options.memory_budget = totals[i];  // the part of the whole that was just granted
    options.load.progress = loading.callback();
    sides[i]->engine = engine::Engine::open(sides[i]->path, options);
  }
}

nlohmann::ordered_json side_json(const Side& side) {
  const models::ModelInfo& info = side.engine->model().info();
  return {{"model", side.path.string()},
          {"activations", models::name(info.activations)},
          {"isa", name(info.isa)},
          {"kv", side.engine->memory().kv_key}};
}

void print(const KlSummary& s, const KlFlags& flags) {
  std::printf("KL(reference || model) over %lld positions\n", static_cast<long long>(s.positions));
  std::printf("  mean             %.6e +- %.1e\n", s.mean, s.standard_error);
  std::printf("  median           %.6e\n  99%%              %.6e\n  max              %.6e\n", s.median, s.p99,
              s.max);
  std::printf("  same top token   %.3f%%\n", s.top1_agreement * 100);
  if (s.targets > 0)
    std::printf("  perplexity       %.5f, of the reference %.5f (%lld tokens)\n", s.perplexity,
                s.reference_perplexity, static_cast<long long>(s.targets));
  if (!flags.reference.empty()) std::printf("  reference        %s\n", printable(flags.reference).c_str());
}

int eval_kl(const KlFlags& flags) {
  Side model, against;
  model.path = resolve_model(flags.load.model);
  const std::vector<std::vector<int32_t>> rows = read_rows(flags.text, flags.window, model.path);
  int64_t longest = 0, total = 0;
  for (const std::vector<int32_t>& row : rows) {
    longest = std::max(longest, static_cast<int64_t>(row.size()));
    total += static_cast<int64_t>(row.size());
  }
  const auto accept = [&](const models::ModelInfo& info) { check_rows(info, rows, flags.text); };
  model.options = options_for(flags.load, longest);
  model.options.load.accept = accept;
  std::optional<NpyReader> file;
  std::optional<LogitsStream> model_stream, against_stream;
  if (flags.reference.empty()) {
    LoadFlags other = flags.load;
    if (!flags.against.empty()) other.model = flags.against;
    if (!flags.against_activations.empty()) other.activations = flags.against_activations;
    if (!flags.against_kv.empty()) {
      other.kv = flags.against_kv;
      other.kv_layer.clear();
    }
    against.path = resolve_model(other.model);
    against.options = options_for(other, longest);
    against.options.load.accept = accept;
    if (!flags.against_kv.empty()) check_against_kv(against, model);
    open_sides({&model, &against});
    against_stream.emplace(*against.engine);
    const int64_t a = model.engine->model().info().vocab, b = against.engine->model().info().vocab;
    if (a != b)
      throw_error(
          ErrorCode::invalid_input,
          "the vocabularies differ: {} has {} tokens and {} has {}; their distributions cannot be compared",
          printable(model.path.filename().string()), a, printable(against.path.filename().string()), b);
  } else {
    file.emplace(flags.reference);
    open_sides({&model});
    if (file->rows() != total || file->columns() != model.engine->model().info().vocab)
      throw_error(ErrorCode::invalid_input, "{}: has {} x {} logits, expected {} positions of {} tokens",
                  printable(flags.reference), file->rows(), file->columns(), total,
                  model.engine->model().info().vocab);
  }
  model_stream.emplace(*model.engine);

  KlStatistics statistics;
  Progress progress("comparing");
  int64_t position = 0;
  for (const std::vector<int32_t>& row : rows) {
    model_stream->begin(row);
    if (against_stream) against_stream->begin(row);
    for (size_t i = 0; i < row.size(); ++i, ++position) {
      if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
      const std::span<const float> reference = against_stream ? against_stream->next() : file->row(position);
      statistics.add(reference, model_stream->next(), i + 1 < row.size() ? row[i + 1] : -1);
      progress.update(static_cast<double>(position), static_cast<double>(total));
    }
  }
  progress.done();
  const KlSummary s = statistics.summary();
  if (!flags.json) {
    print(s, flags);
    return kExitDone;
  }
  nlohmann::ordered_json out = {
      {"mean_kl", s.mean}, {"standard_error", s.standard_error}, {"median", s.median},      {"p99", s.p99},
      {"max", s.max},      {"top1_agreement", s.top1_agreement}, {"positions", s.positions}};
  if (s.targets > 0) {
    out["perplexity"] = s.perplexity;
    out["reference_perplexity"] = s.reference_perplexity;
    out["targets"] = s.targets;
  }
  out["model"] = side_json(model);
  out["reference"] = file ? nlohmann::ordered_json({{"file", flags.reference}}) : side_json(against);
  print_json(out);
  return kExitDone;
}

}  // namespace

void add_eval_kl(CLI::App& eval, Invocation& invocation) {
  auto flags = std::make_shared<KlFlags>();
  CLI::App* command = eval.add_subcommand("kl", "KL divergence of a model's predictions from a reference's");
  CLI::Option* tokens =
      add_text(*command, "--tokens", flags->text.tokens, kFileValue, "JSON list of token ids; none is added");
  CLI::Option* file =
      add_text(*command, "--file", flags->text.file, kFileValue, "Text file instead")->excludes(tokens);
  add_text(*command, "--against", flags->against, kModelValue, "The reference (default: MODEL itself)");
  add_choice(*command, "--against-activations", flags->against_activations, models::activation_names(),
             "The reference's --activations (default: MODEL's)");
  add_text(*command, "--against-kv", flags->against_kv, "CODEC", "The reference's --kv (default: MODEL's)");
  CLI::Option* reference = add_text(*command, "--reference", flags->reference, kFileValue,
                                    "The reference's logits, of `kvasir eval logits`");
  for (const char* name : {"--against", "--against-activations", "--against-kv"})
    reference->excludes(command->get_option(name));
  add_whole(*command, "--window", flags->window, "Cut the tokens into rows of N, each run on its own", 2);
  add_json(*command, flags->json);
  flags->load.add_to(*command, false);
  command->footer(
      "Examples:\n"
      "  kvasir eval kl q4.gguf --against bf16.gguf --file prose.txt --window 512\n"
      "  kvasir eval kl smollm2 --activations int8 --against-activations f32 \\\n"
      "    --tokens ids.json --json\n"
      "Printed: KL(reference || model) in nats: mean and its standard error, median,\n"
      "99%, max; how often both agree on the likeliest token; perplexity of both.");
  command->callback([flags, tokens, file, &invocation] {
    if (tokens->count() + file->count() == 0) throw CLI::RequiredError("--tokens or --file");
    if (!flags->has_engine_reference() && flags->reference.empty())
      throw CLI::RequiredError("A reference: --against, --against-activations, --against-kv or --reference");
    invocation.work = [flags] { return eval_kl(*flags); };
  });
}

}  // namespace kvasir::cli
