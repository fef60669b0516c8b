#include "kv/prefix_tree.h"

#define XXH_STATIC_LINKING_ONLY  // the state of a streamed hash on the stack
#include <xxhash.h>

#include <algorithm>

#include "kv/row.h"
#include "kv/tokens.h"

namespace kvasir::kv {

// A token boundary on `node` that can be resumed although windows moved on: (node.depth * P, (node.depth + 1)
// * P].
struct PrefixTree::Point {
  Node* node = nullptr;
  int32_t position = 0;
  uint64_t stamp = 0;
  SlotId state = StateSlotPool::kInitial;
  struct Window {
    int32_t evicted_below = 0;
    std::vector<std::pair<uint32_t, PageId>> pages;  // index, id: sinks and the window
  };
  std::vector<Window> windows;  // [groups]
  std::shared_ptr<const Attachments> attachments;
};

struct PrefixTree::Node {
  Root* root = nullptr;
  Node* parent = nullptr;
  int32_t depth = 0;  // page index; -1: the root's own node
  uint64_t hash = 0;
  uint64_t stamp = 0;
  std::vector<int32_t> tokens;  // P of them, fewer in a last, partial page
  std::vector<PageId> pages;    // [groups], kNoPage for windowed groups
  std::vector<std::unique_ptr<Node>> children;
  std::vector<std::unique_ptr<Point>> points;
};

struct PrefixTree::Root {
  std::string key;
  bool encoded = false;
  Node node;
  std::unordered_multimap<uint64_t, Node*> index;  // full pages by chain hash
};

namespace {

uint64_t chain(uint64_t parent, std::span<const int32_t> tokens) {
  // XXH64(parent as u64 LE, then the tokens as u32 LE), kv-cache.md 14.
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  XXH64_update(&state, &parent, sizeof parent);
  XXH64_update(&state, tokens.data(), tokens.size_bytes());
  return XXH64_digest(&state);
}

std::string root_name(std::string_view key, bool encoded) {
  return fmt::format("{}{}", encoded ? 'e' : 'p', key);
}

}  // namespace

PrefixTree::PrefixTree(KvCache& cache, size_t cap_bytes)
    : cache_(cache),
      cap_(cap_bytes),
      page_(cache.shape().page_tokens),
      needs_points_(!cache.states().empty()) {
  for (const LayerGroup& group : cache.shape().groups)
    needs_points_ = needs_points_ || group.geometry.window.has_value();
  holds_.resize(cache.groups() * 2);
}

PrefixTree::~PrefixTree() {
  clear();
}

// ---- what is held

void PrefixTree::hold(size_t group, bool encoded, PageId id) {
  if (id == kNoPage) return;
  PagePool& pool = cache_.pool(group, encoded);
  // A group that does not convert has one pool for both stages, and one count.
  auto& holds = holds_[group * 2 + (encoded || !cache_.shape().converts(group))];
  if (holds.size() <= id) holds.resize(pool.capacity(), 0);
  if (holds[id]++ == 0) bytes_ += pool.page_bytes();
  pool.retain(id);
}

void PrefixTree::drop(size_t group, bool encoded, PageId id) {
  if (id == kNoPage) return;
  PagePool& pool = cache_.pool(group, encoded);
  if (--holds_[group * 2 + (encoded || !cache_.shape().converts(group))][id] == 0)
    bytes_ -= pool.page_bytes();
  pool.release(id);
}

void PrefixTree::hold_state(SlotId id) {
  if (cache_.states().empty() || id == StateSlotPool::kInitial) return;
  if (state_holds_.size() <= id) state_holds_.resize(cache_.states().pages().capacity(), 0);
  if (state_holds_[id]++ == 0) bytes_ += cache_.states().stored_bytes();
  cache_.states().retain(id);
}

void PrefixTree::drop_state(SlotId id) {
  if (cache_.states().empty() || id == StateSlotPool::kInitial) return;
  if (--state_holds_[id] == 0) bytes_ -= cache_.states().stored_bytes();
  cache_.states().release(id);
}

// ---- order of use

void PrefixTree::touch(Node& node, std::chrono::steady_clock::time_point now) {
  // Deepest first, so that every parent ends up more recent than its children: the oldest entry is always a
  // leaf or a point.
  for (Node* at = &node; at->depth >= 0; at = at->parent) {
    recent_.erase(at->stamp);
    at->stamp = ++clock_;
    recent_[at->stamp] = {at, nullptr, now};
  }
}

void PrefixTree::touch(Point& point) {
  const auto now = std::chrono::steady_clock::now();
  recent_.erase(point.stamp);
  point.stamp = ++clock_;
  recent_[point.stamp] = {point.node, &point, now};
  touch(*point.node, now);
}

// ---- lookup

PrefixTree::Root* PrefixTree::find_root(std::string_view key, bool encoded) const {
  const auto found = roots_.find(root_name(key, encoded));
  return found == roots_.end() ? nullptr : found->second.get();
}

PrefixTree::Root& PrefixTree::make_root(std::string_view key, bool encoded) {
  auto& root = roots_[root_name(key, encoded)];
  if (root == nullptr) {
    root = std::make_unique<Root>();
    root->key = key;
    root->encoded = encoded;
    root->node.root = root.get();
    root->node.depth = -1;
    root->node.hash = XXH64(key.data(), key.size(), encoded ? 1 : 0);
  }
  return *root;
}

PrefixTree::Node* PrefixTree::find_child(const Root& root, const Node& parent,
                                         std::span<const int32_t> tokens) const {
  const auto [begin, end] = root.index.equal_range(chain(parent.hash, tokens));
  for (auto at = begin; at != end; ++at)
    if (at->second->parent == &parent &&
        std::equal(tokens.begin(), tokens.end(), at->second->tokens.begin(), at->second->tokens.end()))
      return at->second;
  return nullptr;
}

void PrefixTree::match_root(Root& root, std::span<const int32_t> tokens, Match& best) const {
  const bool converts = cache_.shape().converts();
  const int32_t start = cache_.shape().start;
  // A token at least is left to forward. Plain pages serve up to the conversion, encoded ones from it on.
  int32_t most = static_cast<int32_t>(std::min<size_t>(tokens.size() - 1, INT32_MAX));
  if (converts && !root.encoded) most = std::min(most, start);
  const int32_t least = std::max(best.length + 1, converts && root.encoded ? start : 1);
  if (most < least) return;
  std::vector<Node*> path;
  const auto consider = [&](int32_t length, Node* last, Point* point) {
    if (length < std::max(least, best.length + 1) || length > most) return;
    best.root = &root;
    best.path = path;
    if (last != nullptr) best.path.push_back(last);
    best.path.resize(static_cast<size_t>((length + page_ - 1) / page_));
    best.length = length;
    best.point = point;
  };
  Node* node = &root.node;
  int32_t covered = 0;
  for (;;) {
    const auto rest = tokens.subspan(static_cast<size_t>(covered));
    if (needs_points_) {
      // A point inside the next page may hang on any child that begins like the tokens, also beside the one
      // that goes on.
      for (const auto& child : node->children) {
        if (child->points.empty()) continue;
        const int32_t length = common_prefix(child->tokens, rest);
        for (const auto& point : child->points)
          if (point->position - covered <= length) consider(point->position, child.get(), point.get());
      }
    }
    Node* next = nullptr;
    if (rest.size() >= static_cast<size_t>(page_))
      next = find_child(root, *node, rest.first(static_cast<size_t>(page_)));
    if (next == nullptr) break;
    node = next;
    path.push_back(node);
    covered += page_;
  }
  if (needs_points_) return;
  consider(std::min(covered, most), nullptr, nullptr);
  // The page that the tokens leave, or end in.
  for (const auto& child : node->children)
    if (const int32_t length = common_prefix(child->tokens, tokens.subspan(static_cast<size_t>(covered)));
        length > 0)
      consider(std::min(covered + length, most), child.get(), nullptr);
}

PrefixTree::Match PrefixTree::match(std::string_view key, std::span<const int32_t> tokens) const {
  Match best;
  if (tokens.empty()) return best;
  for (const bool encoded : {true, false})
    if (Root* root = find_root(key, encoded)) match_root(*root, tokens, best);
  if (!needs_points_ && best.length > 0) find_attached(best, tokens);
  return best;
}

// Where any position can be resumed, the end of the match may be that of an entry with attachments: on the
// last page of the path, or on another one that begins with the same tokens.
void PrefixTree::find_attached(Match& match, std::span<const int32_t> tokens) const {
  Node& last = *match.path.back();
  const auto begin = static_cast<size_t>(last.depth) * static_cast<size_t>(page_);
  const auto rest = tokens.subspan(begin, static_cast<size_t>(match.length) - begin);
  for (const auto& child : last.parent->children)
    for (const auto& point : child->points)
      if (point->position == match.length && point->attachments != nullptr &&
          common_prefix(child->tokens, rest) == static_cast<int32_t>(rest.size())) {
        match.path.back() = child.get();
        match.point = point.get();
        return;
      }
}

int32_t PrefixTree::peek(std::string_view key, std::span<const int32_t> tokens) const {
  return match(key, tokens).length;
}

Sequence PrefixTree::build(const Match& match) const {
  Sequence sequence = cache_.create();
  if (match.length == 0) return sequence;
  Row& row = SequenceAccess::row(sequence);
  row.encoded = match.root->encoded;
  row.offset = match.length;
  row.min_reusable = row.encoded && cache_.shape().converts() ? cache_.shape().start : 0;
  for (size_t g = 0; g < cache_.groups(); ++g) {
    PagePool& pool = cache_.pool(g, row.encoded);
    RowGroup& group = row.groups[g];
    group.ids.assign(match.path.size(), kNoPage);
    if (cache_.shape().groups[g].geometry.window) {
      const Point::Window& window = match.point->windows[g];
      group.evicted_below = window.evicted_below;
      for (const auto& [index, id] : window.pages) group.ids[index] = id;
    } else {
      for (size_t i = 0; i < match.path.size(); ++i) group.ids[i] = match.path[i]->pages[g];
    }
    group.pages.resize(group.ids.size());
    for (size_t i = 0; i < group.ids.size(); ++i) {
      group.pages[i] = group.ids[i] == kNoPage ? nullptr : pool.page(group.ids[i]);
      if (group.ids[i] != kNoPage) pool.retain(group.ids[i]);
    }
  }
  if (match.point != nullptr && !cache_.states().empty()) {
    row.state = match.point->state;
    if (row.state != StateSlotPool::kInitial) cache_.states().retain(row.state);
  }
  if (match.point != nullptr) row.attachments = match.point->attachments;
  return sequence;
}

Sequence PrefixTree::take(std::string_view key, std::span<const int32_t> tokens) {
  const Match found = match(key, tokens);
  if (found.length == 0) {
    ++misses_;
    return cache_.create();
  }
  ++hits_;
  hit_tokens_ += static_cast<uint64_t>(found.length);
  Sequence sequence = build(found);
  Node& last = *found.path.back();
  for (const auto& point : last.points)
    if (found.point == nullptr || point.get() == found.point) touch(*point);
  touch(last);
  return sequence;
}

// ---- insertion

PrefixTree::Node* PrefixTree::insert(Root& root, Node& parent, std::span<const int32_t> tokens,
                                     const Sequence& sequence) {
  auto owned = std::make_unique<Node>();
  Node& node = *owned;
  node.root = &root;
  node.parent = &parent;
  node.depth = parent.depth + 1;
  node.hash = chain(parent.hash, tokens);
  node.tokens.assign(tokens.begin(), tokens.end());
  node.pages.assign(cache_.groups(), kNoPage);
  const Row& row = SequenceAccess::row(sequence);
  for (size_t g = 0; g < cache_.groups(); ++g) {
    if (cache_.shape().groups[g].geometry.window) continue;
    node.pages[g] = row.groups[g].ids[static_cast<size_t>(node.depth)];
    hold(g, row.encoded, node.pages[g]);
  }
  if (static_cast<int32_t>(tokens.size()) == page_) root.index.emplace(node.hash, &node);
  // Shorter last pages that this one continues hold nothing more; their points move here.
  for (size_t i = 0; i < parent.children.size();) {
    Node& sibling = *parent.children[i];
    if (static_cast<int32_t>(sibling.tokens.size()) < page_ &&
        common_prefix(sibling.tokens, tokens) == static_cast<int32_t>(sibling.tokens.size())) {
      for (auto& point : sibling.points) {
        point->node = &node;
        recent_[point->stamp].node = &node;
        node.points.push_back(std::move(point));
      }
      sibling.points.clear();
      remove_leaf(sibling);
    } else {
      ++i;
    }
  }
  parent.children.push_back(std::move(owned));
  ++nodes_;
  return &node;
}

// A full page that the sequence computed, or copied, itself takes the place of an equal one. Otherwise the
// tree's could neither be yielded, once pages of the sequence hang below it, nor be used by it.
void PrefixTree::adopt(Node& node, const Sequence& sequence) {
  const Row& row = SequenceAccess::row(sequence);
  for (size_t g = 0; g < node.pages.size(); ++g) {
    if (node.pages[g] == kNoPage) continue;
    const PageId own = row.groups[g].ids[static_cast<size_t>(node.depth)];
    if (own == node.pages[g]) continue;
    hold(g, row.encoded, own);
    drop(g, row.encoded, node.pages[g]);
    node.pages[g] = own;
  }
}

PrefixTree::Node* PrefixTree::publish_pages(Root& root, std::span<const int32_t> tokens,
                                            const Sequence& sequence) {
  Node* node = &root.node;
  for (size_t done = 0; tokens.size() - done >= static_cast<size_t>(page_);
       done += static_cast<size_t>(page_)) {
    const auto page = tokens.subspan(done, static_cast<size_t>(page_));
    Node* child = find_child(root, *node, page);
    if (child != nullptr) adopt(*child, sequence);
    node = child != nullptr ? child : insert(root, *node, page, sequence);
  }
  touch(*node);
  return node;
}

void PrefixTree::check_publishable(std::span<const int32_t> tokens, const Sequence& sequence) const {
  const Row& row = SequenceAccess::row(sequence);
  check_between_steps(row, "publication");
  if (row.round)
    throw_error(ErrorCode::invalid_input, "publication inside a speculative round: resolve it first");
  KVASIR_CHECK(&sequence.cache() == &cache_ && static_cast<int32_t>(tokens.size()) == row.offset);
}

void PrefixTree::publish(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
  check_publishable(tokens, sequence);
  if (cap_ == 0 || tokens.size() < static_cast<size_t>(page_) || sequence.origin()) return;
  publish_pages(make_root(key, sequence.encoded()), tokens, sequence);
  shrink_to_cap();
}

bool PrefixTree::put(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
  check_publishable(tokens, sequence);
  if (tokens.empty() || cap_ == 0 || sequence.origin() || sequence.physical_bytes() > cap_) return false;
  Root& root = make_root(key, sequence.encoded());
  const Row& row = SequenceAccess::row(sequence);
  Node* node = publish_pages(root, tokens, sequence);
  const auto rest = tokens.subspan(tokens.size() / static_cast<size_t>(page_) * static_cast<size_t>(page_));
  if (!rest.empty()) {
    Node* tail = nullptr;
    for (const auto& child : node->children)
      if (common_prefix(child->tokens, rest) == static_cast<int32_t>(rest.size())) tail = child.get();
    node = tail != nullptr ? tail : insert(root, *node, rest, sequence);
  }
  if (!needs_points_) {
    // Every position of this path can be resumed, so earlier ends on it say nothing more.
    // But what is attached to one of them is of that end only; and what has attachments serves its own end
    // only.
    for (Node* at = node; at->depth >= 0 && row.attachments == nullptr; at = at->parent)
      for (size_t i = at->points.size(); i-- > 0;)
        if (at->points[i]->position < row.offset && at->points[i]->attachments == nullptr)
          remove_point(*at->points[i]);
  }
  Point* point = nullptr;
  for (const auto& other : node->points)
    if (other->position == row.offset) point = other.get();
  if (point == nullptr) {
    point = node->points.emplace_back(std::make_unique<Point>()).get();
    ++points_;
    point->node = node;
    point->position = row.offset;
    point->state = row.state;
    hold_state(point->state);
    point->windows.resize(cache_.groups());
    for (size_t g = 0; g < cache_.groups(); ++g) {
      if (!cache_.shape().groups[g].geometry.window) continue;
      point->windows[g].evicted_below = row.groups[g].evicted_below;
      for (uint32_t i = 0; i < row.groups[g].ids.size(); ++i)
        if (row.groups[g].ids[i] != kNoPage) {
          point->windows[g].pages.emplace_back(i, row.groups[g].ids[i]);
          hold(g, row.encoded, row.groups[g].ids[i]);
        }
    }
  }
  attach(*point, row.attachments);  // those of an equal entry that was there before are replaced
  touch(*point);
  shrink_to_cap();
  return true;
}

void PrefixTree::attach(Point& point, std::shared_ptr<const Attachments> attachments) {
  if (point.attachments != nullptr) bytes_ -= attached_bytes(*point.attachments);
  if (attachments != nullptr) bytes_ += attached_bytes(*attachments);
  point.attachments = std::move(attachments);
}

// ---- removal

void PrefixTree::remove_point(Point& point) {
  Node& node = *point.node;
  recent_.erase(point.stamp);
  attach(point, nullptr);
  for (size_t g = 0; g < point.windows.size(); ++g)
    for (const auto& [index, id] : point.windows[g].pages) drop(g, node.root->encoded, id);
  drop_state(point.state);
  --points_;
  node.points.erase(
      std::find_if(node.points.begin(), node.points.end(), [&](const auto& p) { return p.get() == &point; }));
}

void PrefixTree::remove_leaf(Node& node) {
  KVASIR_CHECK(node.children.empty() && node.points.empty() && node.depth >= 0);
  recent_.erase(node.stamp);
  for (size_t g = 0; g < node.pages.size(); ++g) drop(g, node.root->encoded, node.pages[g]);
  const auto [begin, end] = node.root->index.equal_range(node.hash);
  for (auto at = begin; at != end; ++at)
    if (at->second == &node) {
      node.root->index.erase(at);
      break;
    }
  --nodes_;
  auto& siblings = node.parent->children;
  siblings.erase(std::find_if(siblings.begin(), siblings.end(),
                              [&](const auto& child) { return child.get() == &node; }));
}

// Pages that no resume point needs any more are of no use to models that can only resume at points.
void PrefixTree::prune(Node* node) {
  while (needs_points_ && node->depth >= 0 && node->children.empty() && node->points.empty()) {
    Node* parent = node->parent;
    remove_leaf(*node);
    node = parent;
  }
}

std::vector<int32_t> PrefixTree::tokens_of(const Node& node, int32_t length) const {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (const Node* at = &node; at->depth >= 0; at = at->parent) {
    const size_t first = static_cast<size_t>(at->depth) * static_cast<size_t>(page_);
    for (size_t i = 0; i < at->tokens.size() && first + i < tokens.size(); ++i)
      tokens[first + i] = at->tokens[i];
  }
  return tokens;
}

Sequence PrefixTree::sequence_of(const Point& point) const {
  Match whole{.root = point.node->root,
              .path = std::vector<Node*>(static_cast<size_t>(point.node->depth + 1)),
              .length = point.position,
              .point = const_cast<Point*>(&point)};
  for (Node* at = point.node; at->depth >= 0; at = at->parent)
    whole.path[static_cast<size_t>(at->depth)] = at;
  return build(whole);
}

void PrefixTree::each_point(
    const std::function<bool(std::string_view, std::span<const int32_t>, const Sequence&)>& visit) const {
  for (auto at = recent_.rbegin(); at != recent_.rend(); ++at) {
    const Point* point = at->second.point;
    if (point == nullptr) continue;
    const Sequence sequence = sequence_of(*point);
    if (!visit(point->node->root->key, tokens_of(*point->node, point->position), sequence)) return;
  }
}

// False: `keep` did, and nothing has changed.
bool PrefixTree::evict(std::map<uint64_t, Recent>::iterator oldest, const Keep* keep) {
  const auto [node, point, used] = oldest->second;
  if (point == nullptr) {
    ++evictions_;
    Node* parent = node->parent;
    remove_leaf(*node);
    prune(parent);
    return true;
  }
  if (keep != nullptr) {
    if (!(*keep)(node->root->key, tokens_of(*node, point->position), sequence_of(*point))) return false;
  } else if (spill_ != nullptr) {
    ++spills_;
    spill_(node->root->key, tokens_of(*node, point->position), sequence_of(*point));
  }
  ++evictions_;
  remove_point(*point);
  prune(node);
  return true;
}

void PrefixTree::shrink_to_cap() {
  while (bytes_ > cap_ && !recent_.empty()) evict(recent_.begin());
}

bool PrefixTree::shared(const Node& node) const {
  for (size_t g = 0; g < node.pages.size(); ++g) {
    if (node.pages[g] == kNoPage) continue;
    const bool encoded = node.root->encoded || !cache_.shape().converts(g);
    if (cache_.pool(g, encoded).references(node.pages[g]) > holds_[g * 2 + encoded][node.pages[g]])
      return true;
  }
  return false;
}

bool PrefixTree::yield() {
  return yield(nullptr);
}

bool PrefixTree::yield(const Keep* keep) {
  for (auto at = recent_.begin(); at != recent_.end(); ++at) {
    const auto [node, point, used] = at->second;
    // Evicting what live sequences share frees nothing.
    if (point == nullptr && (!node->children.empty() || !node->points.empty() || shared(*node))) continue;
    if (point != nullptr && !needs_points_ && shared(*node)) continue;
    return evict(at, keep);
  }
  return false;
}

size_t PrefixTree::demote(std::chrono::steady_clock::time_point since, const Keep& keep) {
  const size_t before = points_;
  // Parents are used no earlier than what hangs on them, so the oldest is always a leaf or a point.
  while (!recent_.empty() && recent_.begin()->second.used < since && evict(recent_.begin(), &keep)) {
  }
  return before - points_;
}

size_t PrefixTree::relieve(size_t bytes, const Keep& keep) {
  const size_t before = cache_.used_bytes();
  const auto freed = [&] { return before - std::min(before, cache_.used_bytes()); };
  while (freed() < bytes && yield(&keep)) {
  }
  return freed();
}

void PrefixTree::set_cap(size_t cap_bytes) {
  cap_ = cap_bytes;
  shrink_to_cap();
}

void PrefixTree::clear() {
  const Spill kept = std::exchange(spill_, nullptr);
  while (!recent_.empty()) evict(recent_.begin());
  roots_.clear();
  spill_ = kept;
}

PrefixTree::Stats PrefixTree::stats() const {
  return {.entries = points_,
          .nodes = nodes_,
          .bytes = bytes_,
          .cap_bytes = cap_,
          .hits = hits_,
          .misses = misses_,
          .hit_tokens = hit_tokens_,
          .evictions = evictions_,
          .spills = spills_};
}

}  // namespace kvasir::kv
