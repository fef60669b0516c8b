// Prefixes of sequences that were computed before, found by their tokens (kv-cache.md 14).
//
// A node is one page of tokens after its parent's; it references the page of every full-attention group.
// Nodes are found by a hash chain and always verified by comparing tokens. Models with full attention only
// hit at any token (the last, partial page is shared and copied when the new sequence writes). Windows and
// recurrent state cannot be rewound, so other models hit at resume points: token boundaries at which put()
// was called, whose window pages and state slot are kept with them.
//
// What a key stands for is the caller's: everything but the tokens that the stored bytes depend on (the
// NumericsKey, the digests of adapters and media). With delayed conversion, plain and encoded pages live in
// separate trees under one key, since a position before `start` may only be reused plain and one behind it
// only encoded.
//
// What is attached to a sequence (attachments.h) is kept with its resume point, whatever the model, and comes
// back with exactly the tokens of that point. The pages under it serve shorter and longer prompts as all
// others do, without it. Its bytes count like pages.
//
// Every distinct page held is counted once; the sum stays within the cap by evicting the least recently used
// leaves and points. Pages are shared with live sequences by reference: nothing is copied by put or take.
// Same thread as the cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"

namespace kvasir::kv {

class PrefixTree {
 public:
  // At most `cap_bytes` of pages and state; 0 keeps nothing. The cache outlives the tree.
  PrefixTree(KvCache& cache, size_t cap_bytes);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree();

  // The longest reusable proper prefix of `tokens` (one token at least must be forwarded), as a sequence of
  // its own. An empty sequence (offset 0) when there is none. O(pages of the prefix).
  Sequence take(std::string_view key, std::span<const int32_t> tokens);
  int32_t peek(std::string_view key, std::span<const int32_t> tokens) const;  // its length; changes nothing

  // Publishes the full pages of a sequence whose tokens these are (tokens.size() == offset()): during
  // prefill, so that others with the same prompt share it at once. No resume point is recorded.
  void publish(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence);
  // Publishes all of it and records a resume point at its end (end of the stable prompt, end of a turn, every
  // N tokens). Where every position can be resumed it takes the place of the points before it, but for those
  // with attachments, and of none when it has some itself. An equal point is replaced. Returns false, storing
  // nothing, when it alone is larger than the cap. Neither takes anything of a sequence that somebody else
  // computed (Sequence::origin).
  bool put(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence);

  // Called with a resume point that is about to be evicted for space: its key, tokens and a sequence that may
  // be kept or saved.
  using Spill = std::function<void(std::string_view key, std::span<const int32_t> tokens, Sequence sequence)>;
  void on_evict(Spill spill) { spill_ = std::move(spill); }

  // Calls visit(key, tokens, sequence) for every resume point, the last used first, until it returns false.
  // It must not change the tree: neither put nor allocate pages.
  void each_point(const std::function<bool(std::string_view key, std::span<const int32_t> tokens,
                                           const Sequence& sequence)>& visit) const;

  // Windows or recurrent state: only resume points can be resumed.
  bool needs_points() const { return needs_points_; }

  // Gives up the least recently used page that no live sequence shares; false when there is none. For
  // KvCache::on_pressure.
  bool yield();

  // Called with a resume point that is to be given up, in place of Spill: false keeps it, and ends the call
  // below.
  using Keep =
      std::function<bool(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence)>;
  // Gives up what was last used before `since`, the least recently used first. Returns how many points went.
  size_t demote(std::chrono::steady_clock::time_point since, const Keep& keep);
  // yield() until `bytes` of pools are free that were not (or nothing is left that would free some). Returns
  // the bytes.
  size_t relieve(size_t bytes, const Keep& keep);
  void set_cap(size_t cap_bytes);
  void clear();  // no spills

  struct Stats {
    size_t entries = 0;  // resume points
    size_t nodes = 0;
    size_t bytes = 0, cap_bytes = 0;
    uint64_t hits = 0, misses = 0, hit_tokens = 0, evictions = 0, spills = 0;
  };
  Stats stats() const;

 private:
  struct Node;
  struct Point;
  struct Root;
  struct Match {
    Root* root = nullptr;
    std::vector<Node*> path;  // nodes of pages 0, 1, ...
    int32_t length = 0;
    Point* point = nullptr;
  };
  struct Recent {  // either a node or one of its points
    Node* node;
    Point* point;
    std::chrono::steady_clock::time_point used;
  };

  Root* find_root(std::string_view key, bool encoded) const;
  Root& make_root(std::string_view key, bool encoded);
  Match match(std::string_view key, std::span<const int32_t> tokens) const;
  void match_root(Root& root, std::span<const int32_t> tokens, Match& best) const;
  Node* find_child(const Root& root, const Node& parent, std::span<const int32_t> tokens) const;
  Node* insert(Root& root, Node& parent, std::span<const int32_t> tokens, const Sequence& sequence);
  void adopt(Node& node, const Sequence& sequence);
  Node* publish_pages(Root& root, std::span<const int32_t> tokens, const Sequence& sequence);
  Sequence build(const Match& match) const;
  void touch(Node& node, std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());
  void touch(Point& point);
  void remove_point(Point& point);
  void remove_leaf(Node& node);
  void prune(Node* node);
  Sequence sequence_of(const Point& point) const;
  void check_publishable(std::span<const int32_t> tokens, const Sequence& sequence) const;
  void attach(Point& point, std::shared_ptr<const Attachments> attachments);
  void find_attached(Match& match, std::span<const int32_t> tokens) const;
  bool evict(std::map<uint64_t, Recent>::iterator oldest, const Keep* keep = nullptr);
  bool yield(const Keep* keep);
  void shrink_to_cap();
  void hold(size_t group, bool encoded, PageId id);
  void drop(size_t group, bool encoded, PageId id);
  void hold_state(SlotId id);
  void drop_state(SlotId id);
  bool shared(const Node& node) const;
  std::vector<int32_t> tokens_of(const Node& node, int32_t length) const;

  KvCache& cache_;
  size_t cap_;
  size_t bytes_ = 0;
  int32_t page_;
  bool needs_points_ = false;
  uint64_t clock_ = 0;
  std::map<std::string, std::unique_ptr<Root>, std::less<>> roots_;
  std::map<uint64_t, Recent>
      recent_;  // by stamp; a parent is always more recent than its children and points
  std::vector<std::vector<uint32_t>> holds_;  // [group * 2 + encoded][page]: how often the tree holds it
  std::vector<uint32_t> state_holds_;
  Spill spill_;
  size_t points_ = 0, nodes_ = 0;
  uint64_t hits_ = 0, misses_ = 0, hit_tokens_ = 0, evictions_ = 0, spills_ = 0;
};

}  // namespace kvasir::kv
