#include "tokenizer/named_sets.h"

#include <cstddef>

namespace kvasir::tokenizer {
namespace {

struct NamedSet {
  std::string_view brief, name;
  size_t begin, end;
};

#include "tokenizer/named_sets.inc"

}  // namespace

std::span<const CodePointRange> named_set(std::string_view name) {
  for (const NamedSet& set : kNamedSets) {
    if (name == set.name || name == set.brief)
      return std::span(kNamedRanges).subspan(set.begin, set.end - set.begin);
  }
  return {};
}

}  // namespace kvasir::tokenizer
