#include "tokenizer/trie.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::tokenizer {

Trie::Trie(std::vector<Item> items) {
  root_.fill(kNone);
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.key < b.key; });

  // Breadth first: `work` holds, per node, the sorted items below it and how many bytes of them the node has
  // used.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> work;
  const auto expand = [&](const Range& r) {
    uint16_t children = 0;
    for (size_t i = r.begin; i < r.end;) {
      const auto byte = static_cast<unsigned char>(items[i].key[r.depth]);
      size_t end = i;
      while (end < r.end && static_cast<unsigned char>(items[end].key[r.depth]) == byte) ++end;
      KVASIR_CHECK(nodes_.size() < kNone);
      nodes_.emplace_back();
      labels_.push_back(byte);
      work.push_back({i, end, r.depth + 1});
      ++children;
      i = end;
    }
    return children;
  };
  KVASIR_CHECK(items.empty() || !items[0].key.empty());
  expand({0, items.size(), 0});
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (n < 256 && work[n].depth == 1) root_[labels_[n]] = static_cast<uint32_t>(n);
    Range r = work[n];
    while (r.begin < r.end && items[r.begin].key.size() == r.depth) nodes_[n].value = items[r.begin++].value;
    const auto first = static_cast<uint32_t>(nodes_.size());
    const uint16_t children = expand(r);
    nodes_[n].first_child = first;
    nodes_[n].children = children;
  }
}

}  // namespace kvasir::tokenizer
