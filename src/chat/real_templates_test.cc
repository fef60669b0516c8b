// Publishers' own chat templates against transformers' rendering: those that tools/oracles/real_templates.py
// has put into models/templates (their text is not ours to commit) and those in the starter models.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "chat/test_conversations.h"
#include "formats/gguf.h"

namespace kvasir::chat {
namespace {

std::string source_of(const std::filesystem::path& path) {
  if (path.extension() == ".gguf")
    return std::string(formats::GgufFile::open(path).string("tokenizer.chat_template"));
  return read_test_file(path);
}

// What the golden says of a render: "length hash", "refused" (the template raised an exception itself) or
// "error".
std::string outcome(const ChatTemplate& chat, const RenderRequest& request, const SpecialTokens& tokens,
                    std::string& text) {
  try {
    text = chat.render(request, tokens);
    return fmt::format("{} {}", text.size(), fnv(text));
  } catch (const TemplateError& error) {
    text = error.what();
    return error.kind() == jinja::FailureKind::raised ? "refused" : "error";
  }
}

TEST(RealTemplates, RenderAsInTransformers) {
  const TestConversations tried = TestConversations::load();
  std::set<std::string> names;
  size_t rendered = 0, refused = 0;
  std::istringstream goldens(read_test_file(chat_test_data() / "real_renders.jsonl"));
  std::string line;
  while (std::getline(goldens, line)) {
    const Json golden = Json::parse(line);
    const auto name = golden.at("template").get<std::string>();
    names.insert(name);
    const bool model = name.ends_with(".gguf");
    const std::filesystem::path path =
        std::filesystem::path(KVASIR_MODELS_DIR) / (model ? "" : "templates") / name;
    ASSERT_TRUE(std::filesystem::exists(path)) << path << ": `make models` fetches it";
    const std::string source = source_of(path);
    if (fnv(source) != golden.at("source")) {
      ADD_FAILURE() << path
                    << ": not the template that the goldens were made from: `make models` fetches that one, "
                       "tools/oracles/chat_template_renders.py --real makes goldens from another";
      continue;
    }
    const ChatTemplate chat = ChatTemplate::parse(source, name);
    size_t different = 0, texts = 0;
    for (const auto& [conversation, messages] : tried.conversations.items()) {
      const Json& expected = golden.at(conversation);
      ASSERT_EQ(expected.size(), tried.options.size()) << name << " " << conversation;
      for (size_t setting = 0; setting < expected.size(); ++setting) {
        std::string text;
        const std::string got = outcome(chat, tried.request(conversation, setting), tried.tokens, text);
        got.find(' ') == std::string::npos ? ++refused : ++texts;
        if (got != expected[setting] && different++ == 0)  // the first of a template tells enough
          ADD_FAILURE() << name << ", conversation " << conversation << ", setting " << setting << ": " << got
                        << ", transformers: " << expected[setting] << "\n"
                        << text;
      }
    }
    EXPECT_EQ(different, 0U) << name << ": renders that differ";
    EXPECT_GT(texts, 0U) << name << " refuses every conversation: that says little";
    rendered += texts;
  }
  EXPECT_EQ(names.size(), 72U);
  EXPECT_GE(rendered, 8500U);
  EXPECT_GE(refused, 1000U);
}

}  // namespace
}  // namespace kvasir::chat
