// Whole templates and conversations against transformers' rendering, and the rules around them.
#include "chat/template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "chat/messages.h"
#include "chat/test_conversations.h"

namespace kvasir::chat {
namespace {

RenderRequest simple(const Json& messages, bool generation = true) {
  RenderRequest out;
  out.messages = messages;
  out.add_generation_prompt = generation;
  return out;
}

constexpr const char* kChatml =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// tests/data/chat/renders.jsonl, written by tools/oracles/chat_template_renders.py.
TEST(ChatTemplate, FamiliesRenderAsInTransformers) {
  const std::filesystem::path folder = chat_test_data();
  const TestConversations tried = TestConversations::load();
  std::map<std::string, ChatTemplate> templates;
  std::istringstream goldens(read_test_file(folder / "renders.jsonl"));
  std::string line;
  size_t rendered = 0, refused = 0;
  while (std::getline(goldens, line)) {
    const Json row = Json::parse(line);
    const auto name = row[0].get<std::string>();
    if (!templates.contains(name))
      templates.emplace(name,
                        ChatTemplate::parse(read_test_file(folder / "templates" / (name + ".jinja")), name));
    const auto conversation = row[1].get<std::string>();
    const RenderRequest r = tried.request(conversation, row[2].get<size_t>());
    const std::string where = fmt::format("{} {} {}", name, conversation, row[2].get<int>());
    std::string text;
    bool failed = false;
    try {
      text = templates.at(name).render(r, tried.tokens);
    } catch (const TemplateError& error) {
      failed = true;
      if (row[3] != "error") ADD_FAILURE() << where << ": " << error.what();
    }
    if (row[3] == "error") {
      ++refused;
      EXPECT_TRUE(failed) << where << " should fail with " << row[4];
      continue;
    }
    ++rendered;
    EXPECT_EQ(text.size(), row[3].get<size_t>()) << where;
    EXPECT_EQ(fnv(text), row[4].get<std::string>()) << where << "\n" << text;
  }
  EXPECT_GE(rendered, 1000U);
  EXPECT_GE(refused, 20U);
  EXPECT_GE(templates.size(), 12U);
}

TEST(ChatTemplate, WritesAConversation) {
  const ChatTemplate chat = ChatTemplate::parse(kChatml);
  const Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  EXPECT_EQ(chat.render(simple(messages), {}), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.render(simple(messages, false), {}), "<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, VariablesHaveTransformersPrecedence) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{{ bos_token }}|{{ x }}|{{ tools is none }}|{{ documents is none }}|{{ messages|length }}|{{ "
      "eos_token is defined }}");
  RenderRequest r = simple({{{"role", "user"}, {"content", "Hi"}}});
  r.variables = {{"x", 5}, {"messages", "ignored"}, {"tools", 3}};
  EXPECT_EQ(chat.render(r, {{"bos_token", "<s>"}}), "<s>|5|True|True|1|False");
  r.variables["bos_token"] = "other";
  EXPECT_EQ(chat.render(r, {{"bos_token", "<s>"}}), "other|5|True|True|1|False");
}

TEST(ChatTemplate, ErrorsAreOneLineWithPlaceAndCause) {
  try {
    ChatTemplate::parse("ok\n{% if x %}\n", "model.gguf: chat template");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.line(), 2);
    EXPECT_EQ(
        std::string(error.what()).find("model.gguf: chat template, line 2: Unexpected end of template."), 0U)
        << error.what();
    EXPECT_EQ(error.details(), "    2 | {% if x %}");
  }
  const ChatTemplate refuses = ChatTemplate::parse("\n{{ raise_exception('roles must\nalternate') }}");
  try {
    refuses.render(simple({{{"role", "user"}, {"content", "x"}}}), {});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(std::string(error.what()),
              "chat template, line 2: the template refused the conversation: roles must\\x0aalternate");
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_EQ(error.kind(), jinja::FailureKind::raised);
  }
}

std::string error_of(const Json& messages) {
  try {
    prepare_messages(messages);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Messages, MalformedConversationsAreNamed) {
  EXPECT_EQ(error_of("x"), "messages must be an array of objects, got string");
  EXPECT_EQ(error_of(Json::array()), "messages is empty: a conversation needs at least one message");
  EXPECT_EQ(error_of({{{"role", "user"}}, 5}), "messages[1] must be an object with a role, got number");
  EXPECT_EQ(error_of({{{"content", "x"}}}), "messages[0] has no role");
  EXPECT_EQ(error_of({{{"role", 1}}}), "messages[0].role must be a text, got number");
  EXPECT_EQ(error_of(Json::parse(
                R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\": "}}]}])")),
            "messages[0].tool_calls[0]: its arguments are not a JSON object: {\"a\": ");
  EXPECT_EQ(error_of(Json::parse(R"([{"role":"assistant","tool_calls":{}}])")),
            "messages[0].tool_calls must be an array, got object");
}

TEST(Messages, AreNormalisedAsTransformersDoes) {
  // Null members go; reasoning is known under both names, `thinking` first.
  const Json out = prepare_messages(Json::parse(
      R"([{"role":"assistant","content":null,"reasoning":"r","tool_calls":[{"function":{"name":"f","arguments":"{\"b\":1,\"a\":[]}"}}]},
          {"role":"user","content":"x","thinking":"t","reasoning_content":"c"}])"));
  EXPECT_EQ(
      out.dump(),
      R"([{"thinking":"r","role":"assistant","reasoning":"r","tool_calls":[{"function":{"name":"f","arguments":{"b":1,"a":[]}}}],)"
      R"("reasoning_content":"r"},{"thinking":"t","role":"user","content":"x","reasoning_content":"c"}])");
}

TEST(Messages, TextPartsCollapse) {
  const Json messages = Json::parse(
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"image"}]},{"role":"user","content":"c"}])");
  const Json out = collapse_text_parts(messages);
  EXPECT_EQ(out[0]["content"], "ab");
  EXPECT_TRUE(out[1]["content"].is_array());
  EXPECT_EQ(out[2]["content"], "c");
}

TEST(Messages, SchemasGetTypes) {
  const Json tools = infer_schema_types(Json::parse(
      R"([{"function":{"name":"f","parameters":{"properties":{"a":{"enum":[1,2]},"b":{"items":{}},"c":{"anyOf":[{"type":"integer"}]},
          "d":{"type":"number"},"e":{"const":true}}}}}])"));
  const Json& parameters = tools[0]["function"]["parameters"];
  EXPECT_EQ(parameters["type"], "object");
  EXPECT_EQ(parameters["properties"]["a"]["type"], "integer");
  EXPECT_EQ(parameters["properties"]["b"]["type"], "array");
  EXPECT_EQ(parameters["properties"]["b"]["items"]["type"], "string");
  EXPECT_EQ(parameters["properties"]["c"]["type"], "integer");
  EXPECT_EQ(parameters["properties"]["d"]["type"], "number");
  EXPECT_EQ(parameters["properties"]["e"]["type"], "boolean");
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const ChatTemplate chat = ChatTemplate::parse(kChatml);
  RenderRequest r = simple(
      {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "Once upon "}}}, false);
  r.continue_final_message = "content";
  EXPECT_EQ(chat.render(r, {}), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce upon ");
  // A template that trims: the kept text is trimmed too.
  const ChatTemplate trims = ChatTemplate::parse("{% for m in messages %}[{{ m.content|trim }}]{% endfor %}");
  EXPECT_EQ(trims.render(r, {}), "[Hi][Once upon");
  // The last text part of a list.
  r.messages[1]["content"] = Json::parse(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])");
  const ChatTemplate parts = ChatTemplate::parse(
      "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}");
  r.messages[0]["content"] = Json::array();
  EXPECT_EQ(parts.render(r, {}), "<a><b");
}

TEST(ChatTemplate, RefusesWhatCannotBeContinued) {
  const auto message = [](const char* source, RenderRequest r) -> std::string {
    try {
      ChatTemplate::parse(source).render(r, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  RenderRequest r = simple({{{"role", "assistant"}, {"content", "text"}}}, false);
  r.continue_final_message = "content";
  EXPECT_EQ(message("{{ messages[0].content[:1] }}", r),
            "the final message cannot be continued: the template drops or changes its end");
  EXPECT_EQ(message("{{ messages[0].role }}", r),
            "the final message's \"content\" cannot be continued: the template does not use it");
  r.continue_final_message = "thinking";
  EXPECT_EQ(message(kChatml, r), "the final message has no \"thinking\" to continue");
  r.continue_final_message = "content";
  r.add_generation_prompt = true;
  EXPECT_NE(message(kChatml, r).find("exclude each other"), std::string::npos);
}

TEST(ChatTemplate, MarksWhatTheAssistantWrote) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}\n{% "
      "endgeneration %}{% else %}U:{{ m.content }}\n"
      "{% endif %}{% endfor %}");
  const auto out = chat.render_with_assistant_spans(simple({{{"role", "user"}, {"content", "é"}},
                                                            {{"role", "assistant"}, {"content", "ü"}},
                                                            {{"role", "user"}, {"content", "x"}}},
                                                           false),
                                                    {});
  EXPECT_EQ(out.text, "U:é\nA:ü\nU:x\n");
  ASSERT_EQ(out.generation.size(), 1U);
  EXPECT_EQ(out.text.substr(out.generation[0].begin, out.generation[0].end - out.generation[0].begin), "ü\n");
  EXPECT_THROW(ChatTemplate::parse(kChatml).render_with_assistant_spans(
                   simple({{{"role", "user"}, {"content", "x"}}}), {}),
               Error);
}

TEST(ChatTemplates, AreChosenByName) {
  ChatTemplates one = ChatTemplates::from_tokenizer_config({{"chat_template", "one"}});
  EXPECT_EQ(one.select(true), "one");
  ChatTemplates several = ChatTemplates::from_tokenizer_config(Json::parse(
      R"({"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"},{"name":"rag","template":"R"}]})"));
  EXPECT_EQ(several.select(false), "D");
  EXPECT_EQ(several.select(true), "T");
  EXPECT_EQ(several.select(true, "rag"), "R");
  EXPECT_EQ(several.select(false, "{{ messages }}"), "{{ messages }}");
  try {
    several.select(false, "nope");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_EQ(std::string(error.what()),
              "the model has no chat template named \"nope\" (it has: default, tool_use, rag)");
  }
  ChatTemplates gguf;
  gguf.add_gguf_key("tokenizer.chat_template.rag", "R");
  gguf.add_gguf_key("tokenizer.chat_template.other", "O");
  gguf.add_gguf_key("tokenizer.ggml.model", "ignored");
  EXPECT_THROW(gguf.select(false), Error);
  gguf.add_gguf_key("tokenizer.chat_template", "D");
  EXPECT_EQ(gguf.select(false), "D");
  EXPECT_EQ(gguf.sources().size(), 3U);
  EXPECT_THROW(ChatTemplates().select(false), Error);
  EXPECT_TRUE(ChatTemplates::from_tokenizer_config(Json::object()).empty());
  EXPECT_THROW(ChatTemplates::from_tokenizer_config({{"chat_template", 5}}), Error);
  EXPECT_THROW(ChatTemplates::from_tokenizer_config(Json::parse(R"({"chat_template":[{"name":"x"}]})")),
               Error);
}

}  // namespace
}  // namespace kvasir::chat
