#include "chat/template.h"

#include <algorithm>

#include "chat/jinja/text.h"
#include "chat/messages.h"

namespace kvasir::chat {
namespace {

constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string_view source_line(std::string_view source, int line) {
  size_t start = 0;
  for (int i = 1; i < line; ++i) {
    const size_t end = source.find('\n', start);
    if (end == std::string_view::npos) return {};
    start = end + 1;
  }
  return source.substr(start, source.find('\n', start) - start);
}

// `code`: of what is neither a limit nor unsupported.
[[noreturn]] void rethrow(const jinja::TemplateFailure& failure, const std::string& name,
                          std::string_view source, ErrorCode code) {
  if (failure.kind == jinja::FailureKind::limit) code = ErrorCode::resource_exhausted;
  if (failure.kind == jinja::FailureKind::unsupported) code = ErrorCode::unsupported;
  const std::string cause =
      failure.kind == jinja::FailureKind::raised
          ? fmt::format("the template refused the conversation: {}", printable(failure.message))
          : printable(failure.message);
  throw TemplateError(code, fmt::format("{}, line {}: {}", name, failure.line, cause),
                      fmt::format("{:>5} | {}", failure.line, printable(source_line(source, failure.line))),
                      failure.line, failure.kind);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string source, std::string name, const jinja::Limits& limits) {
  try {
    jinja::Template parsed = jinja::Template::parse(source, limits);
    return ChatTemplate(std::move(source), std::move(name), std::move(parsed), limits);
  } catch (const jinja::TemplateFailure& failure) {
    rethrow(failure, name, source, ErrorCode::corrupt_file);
  }
}

jinja::Rendered ChatTemplate::run(const Json& variables, std::optional<std::time_t> now) const {
  try {
    return template_.render(variables, now.value_or(std::time(nullptr)), limits_);
  } catch (const jinja::TemplateFailure& failure) {
    rethrow(failure, name_, source_, ErrorCode::invalid_input);
  }
}

Json ChatTemplate::variables_of(const RenderRequest& request, const SpecialTokens& tokens,
                                Json messages) const {
  const auto check_list = [](const Json& value, const char* name) {
    if (!value.is_null() && !value.is_array())
      throw_error(ErrorCode::invalid_input, "{} must be an array of objects, got {}", name,
                  value.type_name());
    if (value.is_array())
      for (size_t i = 0; i < value.size(); ++i)
        if (!value[i].is_object())
          throw_error(ErrorCode::invalid_input, "{}[{}] must be an object, got {}", name, i,
                      value[i].type_name());
  };
  check_list(request.tools, "tools");
  check_list(request.documents, "documents");
  if (!request.variables.is_object())
    throw_error(ErrorCode::invalid_input, "template variables must be an object, got {}",
                request.variables.type_name());
  Json variables = Json::object();
  for (const auto& [name, text] : tokens) variables[name] = text;
  variables["documents"] = request.documents;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  for (const auto& [name, value] : request.variables.items()) variables[name] = value;
  variables["messages"] = std::move(messages);
  variables["tools"] = request.tools;
  return variables;
}

std::string ChatTemplate::render(const RenderRequest& request, const SpecialTokens& tokens) const {
  Json messages = prepare_messages(request.messages);
  if (!request.continue_final_message)
    return run(variables_of(request, tokens, std::move(messages)), request.now).text;

  if (request.add_generation_prompt)
    throw_error(ErrorCode::invalid_input,
                "continue_final_message and add_generation_prompt exclude each other: a message is "
                "continued, or a new "
                "one begins");
  // The end of the last message is found by a mark put there (as transformers does), and the text is cut at
  // it.
  const std::string& field = *request.continue_final_message;
  Json& last = messages.back();
  if (!last.contains(field) || last[field].is_null())
    throw_error(ErrorCode::invalid_input, "the final message has no \"{}\" to continue", printable(field));
  std::vector<std::string> fields{field};
  const auto& reasoning = reasoning_fields();
  if (std::find(reasoning.begin(), reasoning.end(), field) != reasoning.end()) {
    fields.clear();
    for (const std::string_view name : reasoning)
      if (last.contains(name) && last[std::string(name)] == last[field]) fields.emplace_back(name);
  }
  if (std::none_of(fields.begin(), fields.end(),
                   [&](const std::string& name) { return contains(source_, name); }))
    throw_error(ErrorCode::invalid_input,
                "the final message's \"{}\" cannot be continued: the template does not use it",
                printable(field));
  std::string text;
  if (last[field].is_array()) {
    Json* part = nullptr;
    for (Json& candidate : last[field])
      if (candidate.is_object() && candidate.contains("text") && candidate["text"].is_string())
        part = &candidate["text"];
    if (part == nullptr) throw_error(ErrorCode::invalid_input, "the final message has no text to continue");
    text = part->get<std::string>();
    *part = text + std::string(kContinueTag);
  } else if (last[field].is_string()) {
    text = last[field].get<std::string>();
    for (const std::string& name : fields) last[name] = text + std::string(kContinueTag);
  } else {
    throw_error(ErrorCode::invalid_input, "the final message's \"{}\" is no text", printable(field));
  }
  std::string rendered = run(variables_of(request, tokens, std::move(messages)), request.now).text;
  const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);
  const size_t at = rendered.rfind(tag);
  if (at == std::string::npos || !contains(rendered, jinja::strip_space(text)))
    throw_error(ErrorCode::invalid_input,
                "the final message cannot be continued: the template drops or changes its end");
  const bool kept_space = rendered.compare(at, kContinueTag.size(), kContinueTag) == 0;
  rendered.resize(at);
  if (!kept_space) rendered = std::string(jinja::strip(rendered, nullptr, false, true));
  return rendered;
}

jinja::Rendered ChatTemplate::render_with_assistant_spans(const RenderRequest& request,
                                                          const SpecialTokens& tokens) const {
  if (request.continue_final_message)
    throw_error(ErrorCode::invalid_input,
                "continue_final_message and the assistant's spans exclude each other");
  if (!template_.has_generation())
    throw_error(ErrorCode::unsupported,
                "{}: it has no {{% generation %}} blocks, so the assistant's text is not marked", name_);
  return run(variables_of(request, tokens, prepare_messages(request.messages)), request.now);
}

ChatTemplates ChatTemplates::from_tokenizer_config(const Json& tokenizer_config) {
  ChatTemplates templates;
  if (!tokenizer_config.is_object()) return templates;
  const auto it = tokenizer_config.find("chat_template");
  if (it == tokenizer_config.end() || it->is_null()) return templates;
  if (it->is_string()) {
    templates.add("default", it->get<std::string>());
    return templates;
  }
  if (it->is_array()) {
    for (const Json& entry : *it) {
      if (!entry.is_object() || !entry.value("name", Json()).is_string() ||
          !entry.value("template", Json()).is_string())
        throw_error(
            ErrorCode::corrupt_file,
            "tokenizer_config.json: chat_template: each entry needs the texts \"name\" and \"template\"");
      templates.add(entry["name"].get<std::string>(), entry["template"].get<std::string>());
    }
    return templates;
  }
  throw_error(ErrorCode::corrupt_file,
              "tokenizer_config.json: chat_template must be a text or a list, got {}", it->type_name());
}

void ChatTemplates::add_gguf_key(std::string_view key, std::string source) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (key == kKey)
    add("default", std::move(source));
  else if (key.starts_with("tokenizer.chat_template.") && key.size() > kKey.size() + 1)
    add(std::string(key.substr(kKey.size() + 1)), std::move(source));
}

void ChatTemplates::add(std::string name, std::string source) {
  for (auto& [other, text] : sources_) {
    if (other != name) continue;
    text = std::move(source);
    return;
  }
  sources_.emplace_back(std::move(name), std::move(source));
}

const std::string& ChatTemplates::select(bool has_tools, const std::optional<std::string>& wanted) const {
  const auto find = [&](std::string_view name) -> const std::string* {
    for (const auto& [other, text] : sources_)
      if (other == name) return &text;
    return nullptr;
  };
  if (wanted) {
    if (const std::string* found = find(*wanted)) return *found;
    if (contains(*wanted, "{{") || contains(*wanted, "{%")) return *wanted;
  } else {
    if (sources_.empty())
      throw_error(ErrorCode::not_found,
                  "the model has no chat template: give one with --chat-template, or use --raw");
    if (sources_.size() == 1) return sources_[0].second;
    if (has_tools)
      if (const std::string* found = find("tool_use")) return *found;
    if (const std::string* found = find("default")) return *found;
  }
  std::string names;
  for (const auto& [name, text] : sources_) names += (names.empty() ? "" : ", ") + printable(name);
  if (wanted)
    throw_error(ErrorCode::not_found, "the model has no chat template named \"{}\" (it has: {})",
                printable(*wanted), names.empty() ? "none" : names);
  throw_error(ErrorCode::not_found,
              "the model has several chat templates and none is named \"default\": choose one of {}", names);
}

}  // namespace kvasir::chat
