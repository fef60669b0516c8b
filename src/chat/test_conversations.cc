#include "chat/test_conversations.h"

#include <cstdlib>
#include <ctime>

#include "base/mapped_file.h"

namespace kvasir::chat {

TestConversations TestConversations::load() {
  setenv("TZ", "UTC", 1);
  tzset();
  const Json data = Json::parse(read_test_file(chat_test_data() / "conversations.json"));
  TestConversations out;
  out.conversations = data["conversations"];
  out.options = data["options"];
  for (const auto& [name, text] : data["tokens"].items())
    out.tokens.emplace_back(name, text.get<std::string>());
  return out;
}

RenderRequest TestConversations::request(const std::string& conversation, size_t setting) const {
  RenderRequest out;
  out.messages = conversations.at(conversation);
  for (const auto& [key, value] : options.at(setting).items()) {
    if (key == "add_generation_prompt")
      out.add_generation_prompt = value.get<bool>();
    else if (key == "tools")
      out.tools = value;
    else if (key == "documents")
      out.documents = value;
    else
      out.variables[key] = value;
  }
  out.now = 1735787045;
  return out;
}

std::filesystem::path chat_test_data() {
  return std::filesystem::path(KVASIR_TEST_DATA) / "chat";
}

std::string read_test_file(const std::filesystem::path& path) {
  return read_file(path, size_t{1} << 24);
}

std::string fnv(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return fmt::format("{:016x}", hash);
}

}  // namespace kvasir::chat
