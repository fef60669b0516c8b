// `kvasir eval`: logits to a file, perplexity of a text.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/npy.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/text_model.h"

namespace kvasir::cli {
namespace {

// Rows of logits that the head computes at once: V floats each, in the workspace.
constexpr int kLogitRows = 16;

// Runs `ids` through the model and hands out the logits of every position, in order.
void for_each_logits(engine::Engine& engine, std::span<const int32_t> ids,
                     const std::function<void(int64_t, const float*)>& visit) {
  models::Model& model = engine.model();
  engine::StepBuilder builder(model);
  engine::Context context = engine.new_context();
  kv::Step step;
  std::vector<int32_t> all;
  Progress progress("evaluating");
  int64_t position = 0;
  const auto total = static_cast<double>(ids.size());
  while (!ids.empty()) {
    if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
    const auto count = static_cast<size_t>(std::min<int64_t>(
        {static_cast<int64_t>(ids.size()), model.maxima().tokens, context.sequence.max_append()}));
    builder.clear();
    builder.add(context.sequence, ids.first(count), engine::WantLogits::all);
    engine.cache().reserve(builder.sequences(), builder.counts(), step);
    program::StepState& state = builder.state(step);
    const std::span<const int32_t> wanted = state.logit_tokens;
    state.logits = 0;
    state.logit_tokens = {};
    model.run_trunk(state, engine.executor());
    const auto at_once = static_cast<size_t>(model.maxima().logits);
    for (size_t first = 0; first < wanted.size(); first += at_once) {
      const std::span<const int32_t> block =
          wanted.subspan(first, std::min<size_t>(at_once, wanted.size() - first));
      state.logit_tokens = block;
      state.logits = static_cast<int32_t>(block.size());
      model.run_head(state, engine.executor());
      for (size_t i = 0; i < block.size(); ++i) visit(position++, model.logits(static_cast<int64_t>(i)));
    }
    step.commit();
    ids = ids.subspan(count);
    progress.update(static_cast<double>(position), total);
  }
}

struct LogitsFlags {
  LoadFlags load;
  std::string tokens;
  std::string out;
  bool json = false;
};

int eval_logits(const LogitsFlags& flags) {
  const std::vector<int32_t> ids = read_token_file(flags.tokens);
  if (ids.empty())
    throw_error(ErrorCode::invalid_input, "{}: the list of token ids is empty", printable(flags.tokens));
  engine::EngineOptions options = flags.load.options();
  if (options.load.context == 0) options.load.context = static_cast<int64_t>(ids.size());
  if (static_cast<int64_t>(ids.size()) > options.load.context)
    throw_error(ErrorCode::invalid_input, "{} holds {} tokens, more than --context {}",
                printable(flags.tokens), ids.size(), options.load.context);
  options.load.chunk =
      static_cast<int>(std::min<int64_t>(options.load.chunk, static_cast<int64_t>(ids.size())));
  options.load.logits = std::min(kLogitRows, options.load.chunk);
  const std::unique_ptr<engine::Engine> engine =
      engine::Engine::open(resolve_model(flags.load.model), options);
  engine->model().check_tokens(ids);
  const int64_t vocab = engine->model().info().vocab;
  NpyWriter writer(flags.out, static_cast<int64_t>(ids.size()), vocab);
  for_each_logits(*engine, ids, [&](int64_t, const float* logits) {
    writer.write({logits, static_cast<size_t>(vocab)});
  });
  writer.finish();
  if (flags.json)
    std::printf("%s\n",
                nlohmann::ordered_json({{"out", flags.out},
                                        {"positions", ids.size()},
                                        {"vocab", vocab},
                                        {"activations", models::name(engine->model().info().activations)},
                                        {"isa", name(engine->model().info().isa)}})
                    .dump()
                    .c_str());
  return kExitDone;
}

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
    ids = text_model->tokenizer().encode(read_file(flags.file, size_t{1} << 30),
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
  for (size_t begin = 0; begin < ids.size(); begin += window) {
    std::vector<int32_t> row;
    if (bos) row.push_back(*bos);
    row.insert(row.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
               ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), begin + window)));
    if (row.size() < 2) break;
    for_each_logits(*engine, row, [&](int64_t position, const float* logits) {
      if (static_cast<size_t>(position) + 1 >= row.size()) return;
      const std::span<const float> all(logits, static_cast<size_t>(vocab));
      const double loss =
          static_cast<double>(engine::log_sum_exp(all)) -
          static_cast<double>(all[static_cast<size_t>(row[static_cast<size_t>(position) + 1])]);
      sum += loss;
      squares += loss * loss;
      ++scored;
    });
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
  CLI::App* eval = app.add_subcommand("eval", "Logits of given tokens, perplexity of a text");
  eval->require_subcommand(1);
  {
    auto flags = std::make_shared<LogitsFlags>();
    CLI::App* command =
        eval->add_subcommand("logits", "Write the logits of every position as float32 [T, V]");
    flags->load.add_to(*command, false);
    command->add_option("--tokens", flags->tokens, "JSON list of token ids; none is added")->required();
    command->add_option("--out", flags->out, "The .npy file to write")->required();
    command->add_flag("--json", flags->json, "Say what was written as JSON");
    command->footer("The context limit is the number of tokens unless --context says otherwise.");
    command->callback([flags, &invocation] { invocation.work = [flags] { return eval_logits(*flags); }; });
  }
  {
    auto flags = std::make_shared<PerplexityFlags>();
    CLI::App* command = eval->add_subcommand("ppl", "Perplexity of a text, in rows that do not overlap");
    flags->load.add_to(*command, false);
    CLI::Option* file = command->add_option("--file", flags->file, "Text file");
    CLI::Option* tokens =
        command->add_option("--tokens", flags->tokens, "JSON list of token ids instead")->excludes(file);
    command->add_option("--window", flags->window, "Tokens a row (default 512)");
    command->add_flag("--json", flags->json, "Machine-readable output");
    command->callback([flags, file, tokens, &invocation] {
      if (file->count() + tokens->count() == 0) throw CLI::RequiredError("--file or --tokens");
      invocation.work = [flags] { return eval_perplexity(*flags); };
    });
  }
}

}  // namespace kvasir::cli
