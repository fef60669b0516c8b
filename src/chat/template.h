// Chat templates: from a conversation to the text that a model was trained to continue.
//
//   const chat::ChatTemplate chat = chat::ChatTemplate::parse(source);
//   chat::RenderRequest request;
//   request.messages = {{{"role", "user"}, {"content", "Hello"}}};
//   std::string prompt = chat.render(request, special_tokens);
//
// The text is what transformers' apply_chat_template(tokenize=False) returns for the same template, with the
// differences listed in docs/chat-templates.md. Special tokens are part of it: tokenize it without adding
// any.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "chat/jinja/template.h"

namespace kvasir::chat {

using Json = nlohmann::ordered_json;

// Texts of the special tokens that the tokenizer has, by the names templates know them under ("bos_token",
// "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"). Those that are missing stay
// undefined.
using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

struct RenderRequest {
  Json messages;   // array of objects, at least one
  Json tools;      // array of JSON schemas, or null
  Json documents;  // array of objects, or null
  bool add_generation_prompt = true;
  // The last message stays open, to be continued by the model: the member of it that is continued (mostly
  // "content"). Needs add_generation_prompt = false.
  std::optional<std::string> continue_final_message;
  Json variables = Json::object();  // further variables (chat_template_kwargs); they win over special tokens
  std::optional<std::time_t> now;   // what strftime_now shows; the clock if absent
};

// A template that is wrong, or that refused the conversation. The message is one line that names the
// template, the line and the cause; details() shows that line of the template.
class TemplateError : public Error {
 public:
  TemplateError(ErrorCode code, const std::string& message, std::string details, int line,
                jinja::FailureKind kind)
      : Error(code, message, std::move(details)), line_(line), kind_(kind) {}
  int line() const { return line_; }
  jinja::FailureKind kind() const { return kind_; }

 private:
  int line_;
  jinja::FailureKind kind_;
};

// Immutable; render() may be called from several threads at once.
class ChatTemplate {
 public:
  // `name` is how errors call the template. Throws TemplateError.
  static ChatTemplate parse(std::string source, std::string name = "chat template",
                            const jinja::Limits& limits = {});

  // Throws TemplateError, or Error{invalid_input} for a malformed conversation.
  std::string render(const RenderRequest& request, const SpecialTokens& tokens) const;
  // Also the byte ranges of the text that the template marks as written by the assistant. A template without
  // {% generation %} blocks cannot tell: Error{unsupported}.
  jinja::Rendered render_with_assistant_spans(const RenderRequest& request,
                                              const SpecialTokens& tokens) const;

  const std::string& source() const { return source_; }
  const std::set<std::string>& variables() const { return template_.variables(); }  // that it looks up
  const std::string& name() const { return name_; }

 private:
  ChatTemplate(std::string source, std::string name, jinja::Template parsed, const jinja::Limits& limits)
      : source_(std::move(source)), name_(std::move(name)), template_(std::move(parsed)), limits_(limits) {}
  jinja::Rendered run(const Json& variables, std::optional<std::time_t> now) const;
  Json variables_of(const RenderRequest& request, const SpecialTokens& tokens, Json messages) const;

  std::string source_, name_;
  jinja::Template template_;
  jinja::Limits limits_;
};

// The templates of one model, by name.
class ChatTemplates {
 public:
  // `chat_template` of a tokenizer_config.json: a string, or a list of {"name", "template"}. Other values:
  // none.
  static ChatTemplates from_tokenizer_config(const Json& tokenizer_config);
  // A chat_template.json of a processor: {"chat_template": ...}.
  static ChatTemplates from_processor_file(const Json& file) { return from_tokenizer_config(file); }

  // From GGUF: key `tokenizer.chat_template` (or `tokenizer.chat_template.<name>`) and its text. Other keys
  // are ignored.
  void add_gguf_key(std::string_view key, std::string source);
  // A chat_template.jinja ("default"), or additional_chat_templates/<name>.jinja. Replaces one of the same
  // name.
  void add(std::string name, std::string source);

  bool empty() const { return sources_.empty(); }
  const std::vector<std::pair<std::string, std::string>>& sources() const { return sources_; }

  // The template for a request: the only one; or `wanted`; or "tool_use" if there are tools and it exists; or
  // "default". Throws Error{not_found} that lists the names. A template given in full (it contains "{{" or
  // "{%") may take the place of a name.
  const std::string& select(bool has_tools, const std::optional<std::string>& wanted = std::nullopt) const;

 private:
  std::vector<std::pair<std::string, std::string>> sources_;
};

}  // namespace kvasir::chat
