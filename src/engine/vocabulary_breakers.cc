#include "engine/vocabulary_breakers.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::engine {

std::shared_ptr<const DryBreakers> make_dry_breakers(const tokenizer::Tokenizer& tokenizer,
                                                     std::span<const std::string> texts) {
  constexpr size_t kMostBytes = 40, kMostTail = 20;
  auto breakers = std::make_shared<DryBreakers>();
  for (const std::string& whole : texts) {
    if (whole.empty())
      throw_error(ErrorCode::invalid_input, "a sequence breaker of DRY is empty: expected a text");
    const std::string text = whole.substr(0, kMostBytes);
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (!tokenizer.exists(id)) continue;
      const std::string token = tokenizer.decode({&id, 1}, {.skip_special = false});
      std::vector<std::vector<int32_t>>& tails = (*breakers)[id];
      if (token.find(text) != std::string::npos) {
        tails.emplace_back();
        continue;
      }
      for (size_t at = token.find(text.front()); at != std::string::npos;
           at = token.find(text.front(), at + 1)) {
        const std::string end = token.substr(at);
        if (!text.starts_with(end)) continue;
        std::vector<int32_t> tail =
            tokenizer.encode(text.substr(end.size()), {.add_special = false, .parse_special = false});
        if (tail.size() > kMostTail) tail.resize(kMostTail);
        if (std::find(tails.begin(), tails.end(), tail) == tails.end()) tails.push_back(std::move(tail));
      }
    }
  }
  std::erase_if(*breakers, [](const auto& entry) { return entry.second.empty(); });
  return breakers;
}

}  // namespace kvasir::engine
