// Base64 (RFC 4648, with padding), as tokenizer.json stores binary members.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

// Nothing where `text` is no base64.
std::optional<std::vector<uint8_t>> decode_base64(std::string_view text);

}  // namespace kvasir::tokenizer
