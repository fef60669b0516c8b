#include "cli/batch_input.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "cli/output.h"
#include "engine/rng.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 37> kKeys = {"id",
                                                    "prompt",
                                                    "messages",
                                                    "tools",
                                                    "system",
                                                    "raw",
                                                    "max_tokens",
                                                    "min_tokens",
                                                    "temperature",
                                                    "top_k",
                                                    "top_p",
                                                    "min_p",
                                                    "min_tokens_to_keep",
                                                    "typical_p",
                                                    "top_n_sigma",
                                                    "xtc_probability",
                                                    "xtc_threshold",
                                                    "repetition_penalty",
                                                    "repetition_context_size",
                                                    "presence_penalty",
                                                    "presence_context_size",
                                                    "frequency_penalty",
                                                    "frequency_context_size",
                                                    "dry_multiplier",
                                                    "dry_base",
                                                    "dry_allowed_length",
                                                    "dry_penalty_last_n",
                                                    "dry_sequence_breakers",
                                                    "mirostat",
                                                    "mirostat_tau",
                                                    "mirostat_eta",
                                                    "sampler_order",
                                                    "logit_bias",
                                                    "seed",
                                                    "stop",
                                                    "ignore_eos",
                                                    "logprobs"};

// Reads one line's fields, naming the line and the key in every complaint.
class Reader {
 public:
  Reader(const Json& json, const std::string& where) : json_(json), where_(where) {}

  const Json* find(std::string_view key) const {
    const auto found = json_.find(std::string(key));
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const {
    throw_error(ErrorCode::invalid_input, "{}: \"{}\" is {}, expected {}", where_, key,
                printable(json_text(json_.at(std::string(key)))), expected);
  }

  template <typename T>
  void whole(std::string_view key, T& target, int64_t least) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<T>::max());
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() ? value->get<uint64_t>() > kMost : value->get<int64_t>() < least))
      refuse(key, fmt::format("a whole number from {} to {}", least, kMost));
    target = value->get<T>();
  }

  void number(std::string_view key, float& target) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_number() || !std::isfinite(value->get<float>())) refuse(key, "a number");
    target = value->get<float>();
  }

  void flag(std::string_view key, bool& target) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) refuse(key, "true or false");
    target = value->get<bool>();
  }

  void text(std::string_view key, std::string& target) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_string()) refuse(key, "a string");
    target = value->get<std::string>();
  }

 private:
  const Json& json_;
  const std::string& where_;
};

void read_texts(const Reader& reader, std::string_view key, std::vector<std::string>& texts) {
  const Json* value = reader.find(key);
  if (value == nullptr) return;
  texts.clear();
  if (value->is_string()) {
    texts.push_back(value->get<std::string>());
    return;
  }
  if (!value->is_array()) reader.refuse(key, "a string or a list of strings");
  for (const Json& entry : *value) {
    if (!entry.is_string()) reader.refuse(key, "a string or a list of strings");
    texts.push_back(entry.get<std::string>());
  }
}

void read_bias(const Reader& reader, std::map<int32_t, float>& bias) {
  const Json* value = reader.find("logit_bias");
  if (value == nullptr) return;
  constexpr const char* kExpected = "an object of token ids and numbers";
  if (!value->is_object()) reader.refuse("logit_bias", kExpected);
  bias.clear();
  for (const auto& [key, number] : value->items()) {
    const bool digits = !key.empty() && key.size() <= 9 &&
                        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || !number.is_number()) reader.refuse("logit_bias", kExpected);
    bias[std::stoi(key)] = number.get<float>();
  }
}

}  // namespace

BatchLine parse_batch_line(std::string_view text, const std::string& where, uint64_t number,
                           const BatchDefaults& defaults) {
  // A key given twice has no meaning that both its readers would agree on.
  std::vector<std::vector<std::string>> open_keys;
  std::string repeated;
  constexpr int kDeepest = 64;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    too_deep = too_deep || depth > kDeepest;
    if (too_deep) return false;
    if (event == Json::parse_event_t::object_start) open_keys.emplace_back();
    if (event == Json::parse_event_t::object_end) open_keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      auto& keys = open_keys.back();
      if (std::find(keys.begin(), keys.end(), key) != keys.end() && repeated.empty()) repeated = key;
      keys.push_back(key);
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    throw_error(ErrorCode::invalid_input, "{}: is not JSON (at byte {})", where, error.byte);
  } catch (const Json::exception&) {
    throw_error(ErrorCode::invalid_input, "{}: is not JSON that can be held: a number is out of range",
                where);
  }
  if (too_deep)
    throw_error(ErrorCode::invalid_input, "{}: is nested more than {} levels deep", where, kDeepest);
  if (!json.is_object())
    throw_error(ErrorCode::invalid_input, "{}: is no JSON object: expected {{\"prompt\": ...}}", where);
  if (!repeated.empty())
    throw_error(ErrorCode::invalid_input, "{}: the key \"{}\" occurs twice", where, printable(repeated));
  for (const auto& [key, value] : json.items())
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      std::string known;
      for (const std::string_view name : kKeys) known += (known.empty() ? "" : ", ") + std::string(name);
      throw Error(ErrorCode::invalid_input, fmt::format("{}: unknown key \"{}\"", where, printable(key)),
                  "A line may have: " + known);
    }

  const Reader reader(json, where);
  BatchLine line;
  line.options = defaults;
  BatchDefaults& options = line.options;
  if (const Json* id = reader.find("id")) {
    if (!id->is_string() && !id->is_number_integer()) reader.refuse("id", "a string or a whole number");
    line.id = *id;
  }
  const Json* messages = reader.find("messages");
  const Json* prompt = reader.find("prompt");
  if ((messages != nullptr) == (prompt != nullptr))
    throw_error(ErrorCode::invalid_input, "{}: expected either \"prompt\" or \"messages\"{}", where,
                prompt != nullptr ? ", not both" : "");
  reader.text("system", options.system);
  reader.flag("raw", options.raw);
  if (prompt != nullptr) reader.text("prompt", line.prompt);
  if (messages != nullptr) {
    if (!messages->is_array() || messages->empty()) reader.refuse("messages", "a list of messages");
    if (options.raw)
      throw_error(ErrorCode::invalid_input, "{}: \"messages\" need the chat template, and raw asks for none",
                  where);
    if (json.contains("system"))
      throw_error(ErrorCode::invalid_input, "{}: \"system\" beside \"messages\": make it their first message",
                  where);
    line.messages = *messages;
  }
  if (const Json* tools = reader.find("tools")) {
    if (!tools->is_array()) reader.refuse("tools", "a list of tools");
    line.tools = *tools;
  }
  reader.whole("max_tokens", options.max_tokens, 0);
  reader.whole("min_tokens", options.min_tokens, 0);
  reader.flag("ignore_eos", options.ignore_eos);
  reader.whole("logprobs", options.logprobs, 0);
  read_texts(reader, "stop", options.stop);
  engine::SamplingOptions& sampling = options.sampling;
  reader.number("temperature", sampling.temperature);
  reader.whole("top_k", sampling.top_k, 0);
  reader.number("top_p", sampling.top_p);
  reader.number("min_p", sampling.min_p);
  reader.whole("min_tokens_to_keep", sampling.min_tokens_to_keep, 1);
  reader.number("typical_p", sampling.typical_p);
  reader.number("top_n_sigma", sampling.top_n_sigma);
  reader.number("xtc_probability", sampling.xtc_probability);
  reader.number("xtc_threshold", sampling.xtc_threshold);
  reader.number("repetition_penalty", sampling.repetition_penalty);
  reader.whole("repetition_context_size", sampling.repetition_context, 0);
  reader.number("presence_penalty", sampling.presence_penalty);
  reader.whole("presence_context_size", sampling.presence_context, 0);
  reader.number("frequency_penalty", sampling.frequency_penalty);
  reader.whole("frequency_context_size", sampling.frequency_context, 0);
  reader.number("dry_multiplier", sampling.dry_multiplier);
  reader.number("dry_base", sampling.dry_base);
  reader.whole("dry_allowed_length", sampling.dry_allowed_length, 0);
  reader.whole("dry_penalty_last_n", sampling.dry_context, 0);
  read_texts(reader, "dry_sequence_breakers", sampling.dry_sequence_breakers);
  reader.whole("mirostat", sampling.mirostat, 0);
  reader.number("mirostat_tau", sampling.mirostat_tau);
  reader.number("mirostat_eta", sampling.mirostat_eta);
  std::string order;
  reader.text("sampler_order", order);
  read_bias(reader, sampling.logit_bias);
  sampling.seed = engine::sample_seed(defaults.sampling.seed, number);
  reader.whole("seed", sampling.seed, 0);
  try {
    if (!order.empty()) sampling.order = engine::order_from_text(order);
    sampling.validate(INT32_MAX);
    engine::StopMatcher(options.stop);
  } catch (const Error& error) {
    throw_error(ErrorCode::invalid_input, "{}: {}", where, error.what());
  }
  if (options.min_tokens > options.max_tokens)
    throw_error(ErrorCode::invalid_input, "{}: min_tokens {} is more than max_tokens {}", where,
                options.min_tokens, options.max_tokens);
  return line;
}

bool completes_as_it_is(const BatchDefaults& options, const engine::TextSide& text) {
  return options.raw || (!text.has_template() && options.system.empty());
}

void note_no_template(const BatchDefaults& options, const engine::TextSide& text) {
  if (!options.raw && completes_as_it_is(options, text))
    std::fprintf(stderr,
                 "kvasir: note: %s has no chat template: prompts are completed as they are, as --raw does\n",
                 text.name.c_str());
}

std::vector<int32_t> encode_batch_line(const BatchLine& line, const engine::TextSide& text) {
  Json messages = line.messages;
  if (messages.is_null() && completes_as_it_is(line.options, text)) {
    if (!line.options.system.empty())
      throw_error(ErrorCode::invalid_input, "a system message needs a chat template, and raw asks for none");
    if (!line.tools.is_null()) throw_error(ErrorCode::invalid_input, "tools need a chat template");
    std::vector<int32_t> ids = engine::encode_prompt(text, line.prompt, false);
    if (ids.empty()) throw_error(ErrorCode::invalid_input, "the prompt is empty");
    return ids;
  }
  if (messages.is_null()) {
    if (line.prompt.empty()) throw_error(ErrorCode::invalid_input, "the prompt is empty");
    messages = Json::array();
    if (!line.options.system.empty())
      messages.push_back({{"role", "system"}, {"content", line.options.system}});
    messages.push_back({{"role", "user"}, {"content", line.prompt}});
  }
  return engine::encode_prompt(text, text.render(messages, line.tools, line.options.variables), true);
}

bool is_batch_key(std::string_view key) {
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

int64_t tokens_needed(int64_t prompt_tokens, int64_t max_tokens) {
  constexpr int64_t kUnbounded = int64_t{1} << 40;  // no context is longer; adding to it cannot overflow
  return prompt_tokens + std::min(max_tokens, kUnbounded) + 1;
}

std::vector<LineSpan> split_lines(std::string_view text) {
  std::vector<LineSpan> lines;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines.push_back({number, line});
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return lines;
}

}  // namespace kvasir::cli
