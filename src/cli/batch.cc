#include "cli/batch.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "cli/batch_output.h"
#include "cli/command.h"
#include "cli/generate.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "hub/digest.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostInput = size_t{4} << 30;
constexpr int kDefaultRows = 8;

// All that a line's answer depends on beside the model: equal text, equal answer.
std::string canonical(const BatchLine& line, const std::vector<int32_t>& ids, int64_t context) {
  const engine::SamplingOptions& s = line.options.sampling;
  Json json = {
      {"ids", ids},
      {"context", context},
      {"max_tokens", line.options.max_tokens},
      {"min_tokens", line.options.min_tokens},
      {"stop", line.options.stop},
      {"ignore_eos", line.options.ignore_eos},
      {"logprobs", line.options.logprobs},
      {"seed", s.seed},
      {"temperature", s.temperature},
      {"filters", {s.top_k, s.top_p, s.min_p, s.min_tokens_to_keep, s.typical_p, s.top_n_sigma}},
      {"xtc", {s.xtc_probability, s.xtc_threshold}},
      {"penalties",
       {s.repetition_penalty, s.presence_penalty, s.frequency_penalty, s.repetition_context,
        s.presence_context, s.frequency_context}},
      {"dry", {s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_context, s.dry_sequence_breakers}},
      {"mirostat", {s.mirostat, s.mirostat_tau, s.mirostat_eta}}};
  for (const auto& [id, value] : s.logit_bias) json["bias"].push_back({id, value});
  for (const engine::SamplerStage stage : s.order) json["order"].push_back(engine::name(stage));
  json["id"] = line.id;
  return json_text(json);
}

// What is known of a line before it runs.
struct Item {
  LineSpan line;
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  int32_t largest_bias = -1, largest_id = -1;
  std::string digest;
  std::string where(const BatchRun& run) const {
    return fmt::format("{} line {}", run.input == "-" ? "standard input" : printable(run.input), line.number);
  }
};

class Batch {
 public:
  Batch(const BatchRun& run, const LoadFlags& load, const BatchDefaults& defaults)
      : run_(run), defaults_(defaults), context_(load.context), path_(resolve_model(load.model)) {
    check_not_the_input(run.output, run.input);
    input_ = read_input(run.input, kMostInput);
    text_ = open_text(path_);
    read_items();
    open_model(load);
  }

  int go() {
    BatchOutput output = BatchOutput::open(run_.output, run_.resume, run_.overwrite);
    check_kept(output);
    const size_t first = output.kept().size();
    size_t next = first, finished = first, refused = 0;
    int64_t tokens = 0;
    std::vector<Json> heads;  // of the answers to the requests that run, in order
    std::vector<size_t> numbers;
    std::vector<uint64_t> seeds;
    Progress progress("answering");
    const auto start = std::chrono::steady_clock::now();
    auto next_request = [&]() -> std::optional<engine::TextRequest> {
      while (next < items_.size()) {
        const size_t number = next++;
        BatchLine line = parse(number);
        std::vector<int32_t> ids = encode_batch_line(line, text_);
        const auto length = static_cast<int64_t>(ids.size());
        const int64_t limit = model_->engine().context_limit();
        if (length > limit || (length == limit && line.options.max_tokens != 0)) {
          output.put(number, refusal(number, head(number, line.id), length, limit));
          ++refused;
          ++finished;
          continue;
        }
        heads.push_back(head(number, line.id));
        numbers.push_back(number);
        seeds.push_back(line.options.sampling.seed);
        return request(std::move(line), std::move(ids));
      }
      return std::nullopt;
    };
    auto done = [&](size_t index, const engine::TextOutcome& outcome) {
      if (outcome.outcome.reason == engine::FinishReason::cancelled) return;
      const size_t number = numbers[index];
      output.put(number, answer(number, std::move(heads[index]), outcome, seeds[index]));
      tokens += outcome.outcome.timings.completion_tokens;
      progress.update(static_cast<double>(++finished - first), static_cast<double>(items_.size() - first));
    };
    const bool whole = engine::serve_text(*model_, next_request, done, [] { return interrupted(); });
    progress.done();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const std::string& line : output.kept())
      refused += line.find("\"error\":{") != std::string::npos ? 1 : 0;
    if (!whole) {
      std::fprintf(stderr, "kvasir: interrupted: %zu of %zu lines are written%s\n", output.written(),
                   items_.size(), run_.output.empty() ? "" : "; --resume goes on");
      return kExitInterrupted;
    }
    if (!run_.quiet)
      std::fprintf(stderr, "[%zu lines%s, %lld tokens in %.1f s, %.1f/s, %d rows at once]\n",
                   items_.size() - first, first > 0 ? fmt::format(" (and {} kept)", first).c_str() : "",
                   static_cast<long long>(tokens), seconds,
                   seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0, rows_);
    if (refused == 0) return kExitDone;
    std::fprintf(stderr, "kvasir: %zu of %zu lines could not run: see \"error\" in their output\n", refused,
                 items_.size());
    return kExitFailure;
  }

 private:
  BatchLine parse(size_t number) const {
    const Item& item = items_[number];
    return parse_batch_line(item.line.text, item.where(run_), number, defaults_);
  }

  // Every line is read, rendered and encoded once before anything is loaded: what is wrong with one of them
  // costs no time. The tokens are made again when their turn comes, so that memory does not grow with them.
  void read_items() {
    for (const LineSpan& line : split_lines(input_)) {
      Item item;
      item.line = line;
      items_.push_back(std::move(item));
    }
    if (items_.empty()) throw_error(ErrorCode::invalid_input, "{}: holds no line", printable(run_.input));
    Progress progress("reading");
    for (size_t number = 0; number < items_.size(); ++number) {
      Item& item = items_[number];
      check_utf8(item.line.text, item.where(run_));
      const BatchLine line = parse(number);
      std::vector<int32_t> ids;
      try {
        ids = encode_batch_line(line, text_);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: {}", item.where(run_), error.what()), error.details());
      }
      item.prompt_tokens = static_cast<int64_t>(ids.size());
      item.max_tokens = line.options.max_tokens;
      if (!ids.empty()) item.largest_id = *std::max_element(ids.begin(), ids.end());
      if (!line.options.sampling.logit_bias.empty())
        item.largest_bias = line.options.sampling.logit_bias.rbegin()->first;
      item.digest = hub::sha256(canonical(line, ids, context_));
      progress.update(static_cast<double>(number), static_cast<double>(items_.size()));
      if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
    }
  }

  void open_model(const LoadFlags& load) {
    note_no_template(defaults_, text_);
    if (!completes_as_it_is(defaults_, text_)) note_unread_variables(text_, defaults_.variables, false);
    engine::EngineOptions options = load.options();
    if (!load.has_batch()) options.load.rows = kDefaultRows;
    options.load.rows =
        static_cast<int>(std::min<size_t>(static_cast<size_t>(options.load.rows), items_.size()));
    rows_ = options.load.rows;
    if (context_ == 0)
      for (const Item& item : items_)
        options.context_hint =
            std::max(options.context_hint, tokens_needed(item.prompt_tokens, item.max_tokens));
    Progress loading("loading");
    options.load.progress = loading.callback();
    options.load.accept = [this](const models::ModelInfo& info) {
      for (const Item& item : items_)
        for (const auto& [id, what] :
             {std::pair{item.largest_bias, "logit_bias"}, {item.largest_id, "the prompt"}})
          if (id >= info.vocab)
            throw_error(ErrorCode::invalid_input, "{}: {}: token id {} is outside the vocabulary of {}",
                        item.where(run_), what, id, info.vocab);
    };
    model_ = engine::TextModel::open(path_, text_, options);
  }

  std::string key(size_t number) const {
    return hub::sha256(model_->engine().model().numerics_key().hex() + items_[number].digest).substr(0, 16);
  }

  void check_kept(const BatchOutput& output) const {
    if (output.kept().size() > items_.size())
      throw_error(ErrorCode::invalid_input,
                  "{}: holds {} lines and the input {}: it was made from another one", printable(run_.output),
                  output.kept().size(), items_.size());
    for (size_t number = 0; number < output.kept().size(); ++number) {
      const Json json = Json::parse(output.kept()[number], nullptr, false);
      if (!json.is_object() || !json.contains("key"))
        throw_error(ErrorCode::invalid_input, "{} line {}: is no line of such a run", printable(run_.output),
                    number + 1);
      if (json["key"] != key(number))
        throw_error(ErrorCode::invalid_input,
                    "{} line {}: was made from another input line, model or settings: use the same ones, or "
                    "another --output",
                    printable(run_.output), number + 1);
    }
  }

  engine::TextRequest request(BatchLine line, std::vector<int32_t> ids) const {
    engine::TextRequest out;
    out.prompt = std::move(ids);
    out.sampling = std::move(line.options.sampling);
    out.max_tokens = line.options.max_tokens;
    out.min_tokens = line.options.min_tokens;
    out.stop = std::move(line.options.stop);
    out.ignore_eos = line.options.ignore_eos;
    out.top_logprobs = line.options.logprobs;
    return out;
  }

  Json head(size_t number, const Json& id) const {
    Json json = {{"line", items_[number].line.number}};
    if (!id.is_null()) json["id"] = id;
    return json;
  }

  std::string answer(size_t number, Json json, const engine::TextOutcome& outcome, uint64_t seed) const {
    json.update(answer_json(*model_, outcome, seed));
    // All that is left is the same in every run.
    json.erase("timings");
    json.erase("cached_tokens");
    json["key"] = key(number);
    return json_line(json);
  }

  std::string refusal(size_t number, Json json, int64_t length, int64_t limit) const {
    json["error"] = {
        {"code", "context_exceeded"},
        {"message", fmt::format("the prompt has {} tokens and the context holds {}", length, limit)}};
    json["prompt_tokens"] = length;
    json["key"] = key(number);
    return json_line(json);
  }

  const BatchRun& run_;
  const BatchDefaults& defaults_;
  int64_t context_;  // as given; 0: not
  std::filesystem::path path_;
  std::string input_;
  engine::TextSide text_;
  std::vector<Item> items_;
  std::unique_ptr<engine::TextModel> model_;
  int rows_ = 1;
};

}  // namespace

int run_batch(const BatchRun& run, const LoadFlags& load, const BatchDefaults& defaults) {
  return Batch(run, load, defaults).go();
}

}  // namespace kvasir::cli
