// An engine with the text side of its checkpoint: tokenizer, chat template, end-of-generation ids.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "chat/template.h"
#include "engine/engine.h"
#include "engine/stop_matcher.h"
#include "kv/tokens.h"
#include "tokenizer/tokenizer.h"

namespace kvasir::engine {

// Tokenizer and template of a checkpoint, without its weights: what `tokenize` and `render` need.
struct TextSide {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::shared_ptr<const chat::ChatTemplates> templates;  // empty: the checkpoint has none
  chat::SpecialTokens special_tokens;                    // by the names that templates use
  std::string name;                                      // of the checkpoint, for messages
  std::vector<std::string> warnings;  // what its text files say and cannot be, and is left out

  bool has_template() const { return templates != nullptr && !templates->empty(); }

  // `path`: a checkpoint (formats::Checkpoint), or a tokenizer without a model: a tokenizer.json, or a folder
  // that holds one and its companions.
  // Throws Error{not_found} when the checkpoint has no tokenizer (and `tokenizer_required`), or the
  // tokenizer's own errors.
  static TextSide open(const std::filesystem::path& path);

  // The prompt that the checkpoint's template makes of a conversation. Throws Error{unsupported} without a
  // template.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     const nlohmann::ordered_json& variables, bool add_generation_prompt = true) const;
  // The template that render() takes. Throws as that does.
  chat::ChatTemplate chat_template(bool with_tools) const;
};

// Rendered text carries its own specials; anything else gets the vocabulary's (BOS where it wants one, never
// two: ruling 9).
std::vector<int32_t> encode_prompt(const TextSide& text, const std::string& prompt, bool templated);

using kv::common_prefix;

// "K=V" pairs as variables of a template: V is JSON where it parses as JSON, else a string. Throws
// Error{invalid_input}.
nlohmann::ordered_json parse_variables(const std::vector<std::string>& pairs);

class TextModel {
 public:
  static std::unique_ptr<TextModel> open(const std::filesystem::path& path, const EngineOptions& options);
  static std::unique_ptr<TextModel> open(const std::filesystem::path& path, TextSide text,
                                         const EngineOptions& options);

  Engine& engine() { return *engine_; }
  const TextSide& text() const { return text_; }
  const tokenizer::Tokenizer& tokenizer() const { return *text_.tokenizer; }
  // Ids that end an answer: the configuration's, the generation configuration's and the tokenizer's together.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  // make_dry_breakers of this vocabulary, made once for each set of texts.
  std::shared_ptr<const DryBreakers> dry_breakers(const std::vector<std::string>& texts);

 private:
  TextModel() = default;
  std::unique_ptr<Engine> engine_;
  TextSide text_;
  std::vector<int32_t> stop_ids_;
  std::map<std::vector<std::string>, std::shared_ptr<const DryBreakers>> dry_breakers_;
};

struct TextRequest {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  int64_t max_tokens = -1;
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::vector<int32_t> shown_special;  // special tokens whose text is wanted (markers of reasoning)
  int top_logprobs = -1;
  Context* context = nullptr;
  int64_t stable_tokens = 0;                      // Request::stable_tokens
  std::function<void(std::string_view)> on_text;  // whole characters, as they become certain
  std::function<void(int64_t done, int64_t total)> on_progress;
};

struct TextOutcome {
  std::string text;
  Outcome outcome;
  std::string matched_stop;  // the stop string that ended it, if one did
};

// Runs requests to their end in one batch; texts are complete (held-back bytes flushed).
std::vector<TextOutcome> generate_text(TextModel& model, std::vector<TextRequest> requests,
                                       const std::function<bool()>& cancelled = {});

// Engine::serve with text: a run of any length, rows joining as others finish.
bool serve_text(TextModel& model, const std::function<std::optional<TextRequest>()>& next,
                const std::function<void(size_t number, TextOutcome outcome)>& done,
                const std::function<bool()>& cancelled = {});

}  // namespace kvasir::engine
