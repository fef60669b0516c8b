// `kvasir eval`: its subcommands, and perplexity of a text.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/logit_run.h"
#include "engine/text_model.h"

namespace kvasir::cli {
namespace {

struct PerplexityFlags {
  LoadFlags load;
  std::string file;
  std::string tokens;
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
  std::vector<int32_t> ids;
  std::unique_ptr<engine::TextModel> text_model;
  std::unique_ptr<engine::Engine> plain;
  engine::Engine* engine = nullptr;
  std::optional<int32_t> bos;
  if (!flags.tokens.empty()) {
    ids = read_token_file(flags.tokens);
    plain = engine::Engine::open(resolve_model(flags.load.model), options);
    engine = plain.get();
  } else {
    text_model = engine::TextModel::open(resolve_model(flags.load.model), options);
    engine = &text_model->engine();
    ids = text_model->tokenizer().encode(read_input(flags.file, size_t{1} << 30),
                                         {.add_special = false, .parse_special = false});
    if (text_model->tokenizer().adds_bos()) bos = text_model->tokenizer().bos_id();
  }
  if (ids.size() < 2)
    throw_error(ErrorCode::invalid_input, "the text has {} tokens: perplexity needs at least 2", ids.size());
  const int64_t vocab = engine->model().info().vocab;
  // Rows of `window` tokens that do not overlap, each on its own (with BOS in front where the vocabulary
  // wants it).
  double sum = 0, squares = 0;
  int64_t scored = 0;
  const auto window = static_cast<size_t>(flags.window - (bos ? 1 : 0));
  Progress progress("evaluating");
  for (size_t begin = 0; begin < ids.size(); begin += window) {
    std::vector<int32_t> row;
    if (bos) row.push_back(*bos);
    row.insert(row.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
               ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), begin + window)));
    if (row.size() < 2) break;
    engine::Context context = engine->new_context();
    engine::LogitRun run;
    run.row = &context;
    run.ids = row;
    run.cancelled = interrupted;
    run.visit = [&](int64_t position, const float* logits) {
      progress.update(static_cast<double>(begin) + static_cast<double>(position),
                      static_cast<double>(ids.size()));
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
  }
  const double mean = sum / static_cast<double>(scored);
  const double variance = squares / static_cast<double>(scored) - mean * mean;
  const double error =
      std::sqrt(std::max(0.0, variance) / static_cast<double>(std::max<int64_t>(1, scored - 1)));
  const double perplexity = std::exp(mean);
  if (flags.json)
    std::printf("%s\n", nlohmann::ordered_json({{"perplexity", perplexity},
                                                {"standard_error", perplexity * error},
                                                {"mean_nll", mean},
                                                {"tokens", scored},
                                                {"window", flags.window},
                                                {"peak_resident_bytes", peak_resident_bytes()}})
                            .dump()
                            .c_str());
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
    CLI::Option* file = add_text(*command, "--file", flags->file, kFileValue, "Text file");
    CLI::Option* tokens =
        add_text(*command, "--tokens", flags->tokens, kFileValue, "JSON list of token ids instead")
            ->excludes(file);
    add_whole(*command, "--window", flags->window, "Tokens a row (default 512)", 2);
    command->add_flag("--json", flags->json, "Machine-readable output");
    command->footer("Example: kvasir eval ppl smollm2 --file prose.txt --window 1024 --json");
    command->callback([flags, file, tokens, &invocation] {
      if (file->count() + tokens->count() == 0) throw CLI::RequiredError("--file or --tokens");
      invocation.work = [flags] { return eval_perplexity(*flags); };
    });
  }
  add_eval_kl(*eval, invocation);
}

}  // namespace kvasir::cli
