// `kvasir eval`: its subcommands, and perplexity of a text.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/eval.h"
#include "cli/eval_rows.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/logit_run.h"

namespace kvasir::cli {
namespace {

struct PerplexityFlags {
  LoadFlags load;
  EvalText text;
  int64_t window = 512;
  bool json = false;
};

int eval_perplexity(const PerplexityFlags& flags) {
  engine::EngineOptions options = flags.load.options();
  if (options.load.context == 0) options.load.context = flags.window;
  if (flags.window < 2 || flags.window > options.load.context)
    throw_error(ErrorCode::invalid_input, "--window must be from 2 to the context ({}), got {}",
                options.load.context, flags.window);
  options.load.logits = std::min(kLogitRows, options.load.chunk);
  const std::filesystem::path path = resolve_model(flags.load.model);
  std::vector<std::vector<int32_t>> rows = read_rows(flags.text, flags.window, path);
  // A token alone predicts nothing that is known.
  if (rows.back().size() < 2) rows.pop_back();
  if (rows.empty())
    throw_error(ErrorCode::invalid_input, "the text has 1 token: perplexity needs at least 2");
  size_t total = 0, before = 0;
  for (const std::vector<int32_t>& row : rows) total += row.size();
  Progress loading("loading");
  options.load.progress = loading.callback();
  options.load.accept = [&](const models::ModelInfo& info) { check_rows(info, rows, flags.text); };
  const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, options);
  loading.done();
  const int64_t vocab = engine->model().info().vocab;
  double sum = 0, squares = 0;
  int64_t scored = 0;
  Progress progress("evaluating");
  for (const std::vector<int32_t>& row : rows) {
    engine::Context context = engine->new_context();
    engine::LogitRun run;
    run.row = &context;
    run.ids = row;
    run.cancelled = interrupted;
    run.visit = [&](int64_t position, const float* logits) {
      progress.update(static_cast<double>(before) + static_cast<double>(position),
                      static_cast<double>(total));
      if (static_cast<size_t>(position) + 1 >= row.size()) return;
      const std::span<const float> all(logits, static_cast<size_t>(vocab));
      const double loss =
          static_cast<double>(engine::log_sum_exp(all)) -
          static_cast<double>(all[static_cast<size_t>(row[static_cast<size_t>(position) + 1])]);
      sum += loss;
      squares += loss * loss;
      ++scored;
    };
    run_logits(*engine, run);
    before += row.size();
  }
  progress.done();
  const double mean = sum / static_cast<double>(scored);
  const double variance = squares / static_cast<double>(scored) - mean * mean;
  const double error =
      std::sqrt(std::max(0.0, variance) / static_cast<double>(std::max<int64_t>(1, scored - 1)));
  const double perplexity = std::exp(mean);
  if (flags.json)
    print_json({{"perplexity", perplexity},
                {"standard_error", perplexity * error},
                {"mean_nll", mean},
                {"tokens", scored},
                {"window", flags.window},
                {"peak_resident_bytes", peak_resident_bytes()}});
  else
    std::printf("perplexity %.4f +- %.4f over %lld tokens (windows of %lld)\n", perplexity,
                perplexity * error, static_cast<long long>(scored), static_cast<long long>(flags.window));
  return kExitDone;
}

}  // namespace

void add_eval(CLI::App& app, Invocation& invocation) {
  CLI::App* eval = app.add_subcommand("eval", "Logits, perplexity, distance from a reference");
  eval->require_subcommand(1);
  eval->preparse_callback([](size_t) { install_interrupt_handler(); });  // each of them polls interrupted()
  eval->footer(
      "Examples:\n"
      "  kvasir eval logits model.gguf --tokens ids.json --out logits.npy\n"
      "  kvasir eval ppl model.gguf --file prose.txt\n"
      "  kvasir eval kl q4.gguf --against bf16.gguf --file prose.txt --window 512");
  add_eval_kv_sensitivity(*eval, invocation);
  add_eval_logits(*eval, invocation);
  {
    auto flags = std::make_shared<PerplexityFlags>();
    CLI::App* command = eval->add_subcommand("ppl", "Perplexity of a text, in rows that do not overlap");
    flags->load.add_to(*command, false);
    CLI::Option* file = add_text(*command, "--file", flags->text.file, kFileValue, "Text file");
    CLI::Option* tokens =
        add_text(*command, "--tokens", flags->text.tokens, kFileValue, "JSON list of token ids instead")
            ->excludes(file);
    add_whole(*command, "--window", flags->window, "Tokens a row (default 512)", 2);
    add_json(*command, flags->json);
    command->footer("Example: kvasir eval ppl smollm2 --file prose.txt --window 1024 --json");
    command->callback([flags, file, tokens, &invocation] {
      if (file->count() + tokens->count() == 0) throw CLI::RequiredError("--file or --tokens");
      invocation.work = [flags] { return eval_perplexity(*flags); };
    });
  }
  add_eval_kl(*eval, invocation);
}

}  // namespace kvasir::cli
