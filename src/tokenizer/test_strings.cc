#include "tokenizer/test_strings.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  const std::string& one_of(const std::vector<std::string>& list) { return list[below(list.size())]; }

 private:
  uint64_t state_;
};

constexpr std::array<std::string_view, 12> kSpaces = {
    " ", "\t", "\n", "\r\n", "\r", "\u00a0", "\xC2\x85", "\u2028", "\u3000", "\u200b", "\ufeff", "\u000b"};

char32_t scalar(Random& random) {
  const uint64_t kind = random.below(8);
  if (kind < 2) return static_cast<char32_t>(random.below(0x300));
  if (kind < 5) {
    const auto c = static_cast<char32_t>(random.below(0x10000));
    return c >= 0xD800 && c < 0xE000 ? c - 0x1000 : c;
  }
  if (kind < 7) return static_cast<char32_t>(0x10000 + random.below(0x10000));
  return static_cast<char32_t>(0x20000 + random.below(0xF0000));
}

void repeat(std::string& out, std::string_view text, uint64_t times) {
  for (uint64_t i = 0; i < times; ++i) out += text;
}

// The first n characters.
std::string_view head(std::string_view text, uint64_t n) {
  size_t i = 0;
  while (n-- > 0 && i < text.size()) i += utf8_length(text[i]);
  return text.substr(0, i);
}

}  // namespace

Fragments Fragments::load(const std::string& path) {
  const auto json = nlohmann::json::parse(read_file(path, 1 << 20));
  return {json.at("words"), json.at("lines"), json.at("emoji"), json.at("punctuation")};
}

std::string test_string(uint64_t index, const Fragments& fragments, std::span<const std::string> specials) {
  Random random(index * 0x2545F4914F6CDD1D + 1);
  std::string out;
  const uint64_t parts = 1 + random.below(10);
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t kind = random.below(24);
    if (kind < 9) {
      out += random.one_of(fragments.words);
    } else if (kind < 11) {
      out += random.one_of(fragments.lines);
    } else if (kind < 13) {
      out += random.one_of(fragments.emoji);
    } else if (kind < 15) {
      const std::string_view space = random.below(2) ? kSpaces[random.below(kSpaces.size())] : " ";
      repeat(out, space, 1 + random.below(1 + random.below(40)));
    } else if (kind < 17) {
      for (uint64_t n = 1 + random.below(6); n > 0; --n) append_utf8(out, scalar(random));
    } else if (kind < 18) {
      for (uint64_t n = 1 + random.below(20); n > 0; --n)
        out.push_back(static_cast<char>('0' + random.below(10)));
    } else if (kind < 19) {
      out.push_back(static_cast<char>(random.below(32)));
    } else if (kind < 21) {
      if (!specials.empty()) {
        const std::string& special = specials[random.below(specials.size())];
        if (random.below(3)) {
          out += special;
        } else {
          out += head(special, 1 + random.below(count_characters(special)));
        }
      }
    } else if (kind < 22) {
      const std::string& word = random.one_of(fragments.words);
      repeat(out, word, 1 + random.below(60));
    } else if (kind < 23) {
      out += random.one_of(fragments.punctuation);
    } else {
      const char letter = static_cast<char>('a' + random.below(26));
      repeat(out, {&letter, 1}, 1 + random.below(300));
    }
    if (random.below(3)) out += ' ';
  }
  return out;
}

std::string test_bytes(uint64_t index) {
  Random random(index * 0x2545F4914F6CDD1D + 2);
  std::string out;
  const uint64_t parts = 1 + random.below(12);
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t kind = random.below(4);
    if (kind == 0) {
      for (uint64_t n = 1 + random.below(6); n > 0; --n) out.push_back(static_cast<char>(random.below(256)));
    } else if (kind == 1) {
      std::string encoded;
      append_utf8(encoded, scalar(random));
      out += encoded.substr(0, 1 + random.below(encoded.size()));
    } else if (kind == 2) {
      append_utf8(out, scalar(random));
    } else {
      for (uint64_t n = 1 + random.below(8); n > 0; --n)
        out.push_back(static_cast<char>(32 + random.below(95)));
    }
  }
  return out;
}

std::vector<int32_t> test_ids(uint64_t index, uint64_t size) {
  Random random(index * 0x2545F4914F6CDD1D + 3);
  std::vector<int32_t> ids(random.below(20));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(size));
  return ids;
}

uint64_t hash_ids(uint64_t state, std::span<const int32_t> ids) {
  constexpr uint64_t kPrime = 0x100000001B3;
  for (int32_t id : ids) state = (state ^ static_cast<uint64_t>(id)) * kPrime;
  return (state ^ (ids.size() + 0x10000000)) * kPrime;
}

uint64_t hash_bytes(uint64_t state, std::string_view bytes) {
  constexpr uint64_t kPrime = 0x100000001B3;
  for (char c : bytes) state = (state ^ static_cast<unsigned char>(c)) * kPrime;
  return (state ^ (bytes.size() + 0x10000000)) * kPrime;
}

}  // namespace kvasir::tokenizer
