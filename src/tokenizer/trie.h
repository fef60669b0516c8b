// A read-only trie over byte strings: all keys that are a prefix of a text, shortest first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

class Trie {
 public:
  struct Item {
    std::string_view key;  // not empty
    int32_t value;
  };

  Trie() { root_.fill(kNone); }
  // Of equal keys the last item counts. O(sum of key lengths + n log n). The keys need not outlive the call.
  explicit Trie(std::vector<Item> items);

  bool empty() const { return nodes_.empty(); }
  size_t memory_bytes() const { return nodes_.capacity() * sizeof(Node) + labels_.capacity(); }
  bool may_start(char byte) const { return root_[static_cast<unsigned char>(byte)] != kNone; }

  // on_match(length, value) for every key that is a prefix of `text`.
  template <typename OnMatch>
  void prefixes(std::string_view text, OnMatch&& on_match) const {
    if (text.empty()) return;
    uint32_t node = root_[static_cast<unsigned char>(text[0])];
    for (size_t depth = 1; node != kNone; ++depth) {
      if (nodes_[node].value >= 0) on_match(depth, nodes_[node].value);
      if (depth == text.size()) return;
      node = child(node, static_cast<unsigned char>(text[depth]));
    }
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    int32_t value = -1;  // -1: no key ends here
    uint32_t first_child = 0;
    uint16_t children = 0;
  };

  uint32_t child(uint32_t node, unsigned char byte) const {
    const Node& n = nodes_[node];
    const unsigned char* labels = labels_.data() + n.first_child;
    uint32_t low = 0, high = n.children;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (labels[middle] < byte) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < n.children && labels[low] == byte ? n.first_child + low : kNone;
  }

  std::array<uint32_t, 256> root_;
  std::vector<Node> nodes_;            // the children of a node are neighbours, in the order of their labels
  std::vector<unsigned char> labels_;  // of each node, the byte that leads to it
};

}  // namespace kvasir::tokenizer
