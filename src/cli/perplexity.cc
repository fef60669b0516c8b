// `kvasir perplexity`: of samples in rows that do not overlap, several at once.
#include "cli/perplexity.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/topology.h"
#include "cli/command.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/sampler.h"
#include "engine/text_model.h"

namespace kvasir::cli {
namespace {

constexpr size_t kMostData = size_t{1} << 30;

struct PerplexityFlags {
  LoadFlags load;
  std::string data;
  int64_t length = 512;
  int64_t samples = 256;  // rows at most; -1: all
  int64_t seed = 123;
  const CLI::Option* seed_option = nullptr;  // owned by the command
  bool json = false;
};

using Rows = std::vector<std::vector<int32_t>>;

// Tokens of all samples one after the other, each with its end-of-text token, in whole rows; what remains is
// dropped.
Rows rows_of(const PerplexityFlags& flags, const engine::TextSide& text) {
  const std::vector<std::string> samples = read_samples(read_input(flags.data, kMostData), flags.data);
  if (samples.size() == 1 && flags.seed_option->count() > 0)
    std::fprintf(stderr, "kvasir: note: --seed does nothing: %s is one sample\n",
                 printable(flags.data).c_str());
  const auto length = static_cast<size_t>(flags.length);
  const size_t most = flags.samples < 0 ? SIZE_MAX : static_cast<size_t>(flags.samples);
  Rows rows;
  std::vector<int32_t> ids;
  for (const size_t index : numpy_permutation(static_cast<uint32_t>(flags.seed), samples.size())) {
    const std::vector<int32_t> more =
        text.tokenizer->encode(samples[index], {.add_special = true, .parse_special = true});
    ids.insert(ids.end(), more.begin(), more.end());
    if (const auto eos = text.tokenizer->eos_id(); eos && (more.empty() || more.back() != *eos))
      ids.push_back(*eos);
    size_t taken = 0;
    for (; ids.size() - taken >= length && rows.size() < most; taken += length)
      rows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(taken),
                        ids.begin() + static_cast<std::ptrdiff_t>(taken + length));
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(taken));
    if (rows.size() == most) break;
  }
  if (rows.empty())
    throw_error(ErrorCode::invalid_input, "{}: not enough tokens: need {}, got {}", printable(flags.data),
                length, ids.size());
  return rows;
}

// Negative log-likelihoods of all tokens but the first of each row, row by row. Rows beside each other change
// no bit of one (law 1), so neither does their number.
void score(engine::Engine& engine, std::span<const std::vector<int32_t>> rows, std::vector<double>& nll) {
  models::Model& model = engine.model();
  const int64_t vocab = model.info().vocab;
  const program::Counts& maxima = model.maxima();
  const size_t targets = rows.front().size() - 1, base = nll.size();
  nll.resize(base + rows.size() * targets);
  std::vector<engine::Context> contexts;
  for (size_t i = 0; i < rows.size(); ++i) contexts.push_back(engine.new_context());
  engine::StepBuilder builder(model);
  kv::Step step;
  struct Place {
    size_t row, position;
  };
  std::vector<Place> places;  // of the step's tokens
  std::vector<int32_t> tokens;
  for (size_t done = 0; done < targets;) {
    size_t count = std::min(targets - done, static_cast<size_t>(maxima.tokens) / rows.size());
    for (const engine::Context& context : contexts)
      count = std::min(count, static_cast<size_t>(context.sequence.max_append()));
    builder.clear();
    places.clear();
    for (size_t row = 0; row < rows.size(); ++row) {
      builder.add(contexts[row].sequence, std::span(rows[row]).subspan(done, count),
                  engine::WantLogits::none);
      for (size_t i = 0; i < count; ++i) places.push_back({row, done + i});
    }
    engine.cache().reserve(builder.sequences(), builder.counts(), step);
    program::StepState& state = builder.state(step);
    model.run_trunk(state, engine.executor());
    const auto at_once = static_cast<size_t>(maxima.logits);
    for (size_t begin = 0; begin < places.size(); begin += at_once) {
      tokens.resize(std::min(at_once, places.size() - begin));
      std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(begin));
      state.logit_tokens = tokens;
      state.logits = static_cast<int32_t>(tokens.size());
      model.run_head(state, engine.executor());
      for (size_t i = 0; i < tokens.size(); ++i) {
        const Place& place = places[begin + i];
        const std::span<const float> logits(model.logits(static_cast<int64_t>(i)),
                                            static_cast<size_t>(vocab));
        nll[base + place.row * targets + place.position] =
            static_cast<double>(engine::log_sum_exp(logits)) -
            static_cast<double>(logits[static_cast<size_t>(rows[place.row][place.position + 1])]);
      }
    }
    step.commit();
    done += count;
    if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
  }
}

int perplexity(const PerplexityFlags& flags) {
  engine::EngineOptions options = flags.load.options();
  if (options.load.context == 0) options.load.context = flags.length;
  if (flags.length > options.load.context)
    throw_error(ErrorCode::invalid_input, "--sequence-length {} is more than --context {}", flags.length,
                options.load.context);
  const std::filesystem::path path = resolve_model(flags.load.model);
  const Rows rows = rows_of(flags, open_text(path));
  options.load.rows = static_cast<int>(std::min<size_t>(static_cast<size_t>(options.load.rows), rows.size()));
  options.load.chunk = std::max(options.load.chunk, options.load.rows);
  options.load.logits = std::min(kLogitRows, options.load.chunk);
  options.load.accept = [&](const models::ModelInfo& info) {
    for (const std::vector<int32_t>& row : rows) models::check_tokens(row, info.vocab, flags.data);
  };
  Progress loading("loading");
  options.load.progress = loading.callback();
  const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, options);
  loading.done();
  Progress progress("evaluating");
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> nll;
  const auto batch = static_cast<size_t>(options.load.rows);
  for (size_t begin = 0; begin < rows.size(); begin += batch) {
    progress.update(static_cast<double>(begin), static_cast<double>(rows.size()));
    score(*engine, std::span(rows).subspan(begin, std::min(batch, rows.size() - begin)), nll);
  }
  progress.done();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double speed = static_cast<double>(rows.size() * rows.front().size()) / seconds;
  const PerplexityResult result = perplexity_of(nll);
  const double bits = result.mean_nll / std::log(2.0);
  if (flags.json)
    print_json({{"perplexity", result.perplexity},
                {"standard_error", result.standard_error},
                {"mean_nll", result.mean_nll},
                {"bits_per_token", bits},
                {"tokens", result.tokens},
                {"rows", rows.size()},
                {"sequence_length", flags.length},
                {"batch_size", options.load.rows},
                {"seed", flags.seed},
                {"tokens_per_s", speed},
                {"peak_resident_bytes", peak_resident_bytes()}});
  else
    std::printf(
        "perplexity %.4f +- %.4f over %lld tokens in %zu rows of %lld (%.4f bits a token; %.1f tokens/s)\n",
        result.perplexity, result.standard_error, static_cast<long long>(result.tokens), rows.size(),
        static_cast<long long>(flags.length), bits, speed);
  return kExitDone;
}

}  // namespace

std::vector<std::string> read_samples(std::string_view text, const std::string& where) {
  if (!where.ends_with(".jsonl")) return {std::string(text)};
  std::vector<std::string> samples;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (row.is_discarded())
      throw_error(ErrorCode::invalid_input, "{}:{}: not valid JSON", printable(where), number);
    if (!row.is_object() || !row.contains("text") || !row["text"].is_string())
      throw_error(ErrorCode::invalid_input, R"({}:{}: expected a {{"text": "..."}} row)", printable(where),
                  number);
    samples.push_back(row["text"].get<std::string>());
  }
  if (samples.empty()) throw_error(ErrorCode::invalid_input, "{}: holds no sample", printable(where));
  return samples;
}

std::vector<size_t> numpy_permutation(uint32_t seed, size_t count) {
  // Its legacy generator: MT19937 seeded with one word; Fisher and Yates from the end, each place drawn by
  // rejection under the smallest mask of ones that covers it.
  std::mt19937 generator(seed);
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = count; i-- > 1;) {
    KVASIR_CHECK(i <= UINT32_MAX);
    const auto mask = static_cast<uint32_t>((uint64_t{1} << std::bit_width(i)) - 1);
    uint32_t drawn = 0;
    do drawn = static_cast<uint32_t>(generator()) & mask;
    while (drawn > i);
    std::swap(order[i], order[drawn]);
  }
  return order;
}

PerplexityResult perplexity_of(const std::vector<double>& nll) {
  KVASIR_CHECK(!nll.empty());
  PerplexityResult result;
  result.tokens = static_cast<int64_t>(nll.size());
  const auto count = static_cast<double>(nll.size());
  double sum = 0, squares = 0;
  for (const double loss : nll) sum += loss;
  result.mean_nll = sum / count;
  for (const double loss : nll) squares += (loss - result.mean_nll) * (loss - result.mean_nll);
  result.perplexity = std::exp(result.mean_nll);
  if (nll.size() > 1) result.standard_error = result.perplexity * std::sqrt(squares / (count - 1) / count);
  return result;
}

void add_perplexity(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand("perplexity", "Perplexity of samples, in rows taken as mlx-lm does")
                          ->group(kMinorGroup);
  flags->load.add_to(*command, false);
  flags->load.batch = 8;
  add_text(*command, "--data-path", flags->data, kFileValue,
           "A text, or .jsonl with a {\"text\"} a line ('-': standard input)")
      ->required();
  add_whole(*command, "--sequence-length", flags->length, "Tokens a row (default 512)", 2);
  add_whole(*command, "--num-samples", flags->samples, "Rows at most (default 256; -1: all)", -1)
      ->each([](const std::string& text) {
        if (parse_whole("--num-samples", text, -1, INT64_MAX) == 0)
          refuse_value(text, "-1 or a number of rows");
      });
  add_whole(*command, "--batch-size,--batch", flags->load.batch,
            "Rows at once: speed and memory, never the result (default 8)", 1, 4096);
  flags->seed_option = add_whole(*command, "--seed", flags->seed,
                                 "Order of the samples, as numpy draws it (default 123)", 0, UINT32_MAX);
  add_json(*command, flags->json);
  command->footer(
      "Example: kvasir perplexity smollm2 --data-path prose.txt --json\n"
      "kvasir eval ppl scores a whole text, with a BOS in front of each row.");
  command->callback([flags, &invocation] {
    invocation.work = [flags] {
      install_interrupt_handler();
      return perplexity(*flags);
    };
  });
}

}  // namespace kvasir::cli
