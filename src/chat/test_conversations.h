// The conversations and settings that templates are tried with in the tests
// (tests/data/chat/conversations.json, written with the goldens by tools/oracles/chat_template_renders.py).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "chat/template.h"

namespace kvasir::chat {

struct TestConversations {
  Json conversations;  // name -> messages
  Json options;        // settings: what a request has beside its messages
  SpecialTokens tokens;

  // At the moment of the goldens, whose clock shows UTC: sets this process's time zone.
  static TestConversations load();
  RenderRequest request(const std::string& conversation, size_t setting) const;
};

std::filesystem::path chat_test_data();  // tests/data/chat
std::string read_test_file(const std::filesystem::path& path);
std::string fnv(std::string_view text);  // 64-bit FNV-1a, 16 hexadecimal digits

}  // namespace kvasir::chat
