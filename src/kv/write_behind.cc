#include "kv/write_behind.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/kvk_file.h"
#include "kv/tokens.h"

namespace kvasir::kv {

WriteBehind::WriteBehind(DiskStore& store, PrefixTree& tree, Options options)
    : store_(store),
      tree_(tree),
      options_(std::move(options)),
      queue_(
          [this](std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence,
                 const WriteWatch& watch) {
            const std::string ns = options_.ns(key);
            return store_.serves(ns, tokens, !sequence.attachments().empty()) ||
                   store_.put(ns, tokens, sequence, watch);
          },
          [this](std::string_view key, std::span<const int32_t> tokens, SpillQueue::Outcome outcome) {
            done(key, tokens, outcome);
          },
          options_.pinned_bytes) {
  tree_.on_evict([this](std::string_view key, std::span<const int32_t> tokens, Sequence sequence) {
    evicted(key, tokens, std::move(sequence));
  });
}

WriteBehind::~WriteBehind() {
  const Flushed left = flush(options_.closing);
  tree_.on_evict(nullptr);
  // What the store's cap has no room for is not worth a word: it would only be evicted again.
  if (!left.in_time && options_.warn)
    options_.warn(fmt::format("{} prompts could not be written to the prompt cache's disk within {} s",
                              left.pending, options_.closing.count() / 1000));
}

// ---- marks

WriteBehind::Mark* WriteBehind::find(std::string_view key, std::span<const int32_t> tokens) {
  const auto marks = marks_.find(key);
  if (marks == marks_.end()) return nullptr;
  const auto mark = marks->second.find(std::vector<int32_t>(tokens.begin(), tokens.end()));
  return mark == marks->second.end() ? nullptr : &mark->second;
}

void WriteBehind::mark(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
  auto marks = marks_.find(key);
  if (marks == marks_.end()) marks = marks_.emplace(std::string(key), Marks()).first;
  // As PrefixTree::put and DiskStore::put: where every position can be resumed, this one says it all but what
  // is attached to others.
  const bool attachments = !sequence.attachments().empty();
  if (!tree_.needs_points() && !attachments)
    std::erase_if(marks->second, [&](const auto& entry) {
      const auto length = static_cast<int32_t>(entry.first.size());
      return !entry.second.attachments && length < sequence.offset() && length >= sequence.min_reusable() &&
             common_prefix(entry.first, tokens) == length;
    });
  Mark& mark = marks->second[std::vector<int32_t>(tokens.begin(), tokens.end())];
  mark.resident = true;
  mark.attachments = attachments;
  if (mark.state != Mark::State::queued) mark.state = Mark::State::dirty;
}

void WriteBehind::done(std::string_view key, std::span<const int32_t> tokens, SpillQueue::Outcome outcome) {
  Mark* mark = find(key, tokens);
  if (mark == nullptr) return;  // a longer sequence says it
  if (outcome == SpillQueue::Outcome::written || !mark->resident) {
    missing_ += outcome != SpillQueue::Outcome::written;
    marks_.find(key)->second.erase(std::vector<int32_t>(tokens.begin(), tokens.end()));
    return;
  }
  mark->state = outcome == SpillQueue::Outcome::failed ? Mark::State::failed : Mark::State::dropped;
}

// ---- the writer's line

void WriteBehind::push(std::string_view key, std::span<const int32_t> tokens, Sequence snapshot) {
  if (Mark* mark = find(key, tokens)) mark->state = Mark::State::queued;
  queue_.push(std::string(key), std::vector<int32_t>(tokens.begin(), tokens.end()), std::move(snapshot));
}

void WriteBehind::write(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
  evicted(key, tokens, sequence.fork());
}

// Without an index nothing is: it is written, or computed again.
bool WriteBehind::stored(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
  try {
    return store_.serves(options_.ns(key), tokens, !sequence.attachments().empty());
  } catch (const Error&) {
    return false;
  }
}

void WriteBehind::evicted(std::string_view key, std::span<const int32_t> tokens, Sequence sequence) {
  Mark* mark = find(key, tokens);
  if (mark == nullptr) {
    // Stored once; the store may have evicted it since.
    if (stored(key, tokens, sequence)) return;
    mark = &marks_[std::string(key)][std::vector<int32_t>(tokens.begin(), tokens.end())];
  }
  mark->resident = false;
  if (mark->state == Mark::State::queued) return;
  if (eviction_ == Eviction::lose) {
    ++lost_;
    ++missing_;
    marks_.find(key)->second.erase(std::vector<int32_t>(tokens.begin(), tokens.end()));
    return;
  }
  push(key, tokens, std::move(sequence));
  if (eviction_ == Eviction::wait)
    while (queue_.stats().pending_bytes > 0 && queue_.wait_read(patient_until_)) {
    }
}

void WriteBehind::be_patient(bool patient) {
  patient_until_ = patient ? Clock::now() + options_.patience : Clock::time_point();
}

bool WriteBehind::evict_one(Eviction how) {
  eviction_ = how;
  const bool any = tree_.yield();
  eviction_ = Eviction::queue;
  return any;
}

bool WriteBehind::relieve() {
  if (queue_.reap()) return true;
  if (Clock::now() < patient_until_) {
    // First what waits to be written: the tree would only give up more recent pages, as long as these are
    // held.
    if (queue_.wait_read(patient_until_)) return true;
    if (Clock::now() < patient_until_) return evict_one(Eviction::wait) || queue_.reap();
  }
  return evict_one(Eviction::lose) || queue_.drop_oldest();
}

// What is marked and with the tree, as far as `room` bytes go from the last used one down; the least recently
// used first, which is the order in which the store is to evict them.
std::vector<WriteBehind::Marked> WriteBehind::marked(uint64_t room, bool one_at_least, bool failed_too) {
  std::vector<Marked> found;
  size_t open = 0;  // marks that are still to be come across
  for (const auto& [key, marks] : marks_)
    for (const auto& [tokens, mark] : marks) open += mark.state != Mark::State::queued;
  if (open == 0) return found;
  uint64_t bytes = 0;
  tree_.each_point([&](std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
    bytes += kvk_bytes_about(sequence);
    if (bytes > room && !(one_at_least && found.empty())) return false;
    const Mark* mark = find(key, tokens);
    if (mark == nullptr || mark->state == Mark::State::queued) return true;
    if (failed_too || mark->state != Mark::State::failed)
      found.push_back({std::string(key), {tokens.begin(), tokens.end()}, sequence.fork()});
    return --open > 0;
  });
  std::reverse(found.begin(), found.end());
  return found;
}

void WriteBehind::idle() {
  queue_.reap();
  const uint64_t pinned = queue_.stats().pending_bytes;
  const uint64_t room = queue_.cap_bytes() - std::min<uint64_t>(queue_.cap_bytes(), pinned);
  // Failed ones are left to flush: that the disk is full need not be said after every turn.
  for (Marked& point : marked(std::min(room, store_.room()), pinned == 0, false))
    push(point.key, point.tokens, std::move(point.snapshot));
}

// Marks of points that the tree gave up without a word (PrefixTree::clear).
void WriteBehind::forget_missing() {
  for (auto& [key, marks] : marks_)
    for (auto& [tokens, mark] : marks) mark.resident = false;
  tree_.each_point([&](std::string_view key, std::span<const int32_t> tokens, const Sequence&) {
    if (Mark* mark = find(key, tokens)) mark->resident = true;
    return true;
  });
  for (auto& [key, marks] : marks_)
    missing_ += std::erase_if(marks, [](const auto& entry) {
      return !entry.second.resident && entry.second.state != Mark::State::queued;
    });
}

WriteBehind::Flushed WriteBehind::flush(std::chrono::milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  Flushed result;
  result.in_time = queue_.drain(until);
  forget_missing();
  if (result.in_time)
    for (Marked& point : marked(store_.room(), false, true)) {
      push(point.key, point.tokens, std::move(point.snapshot));
      if (!(result.in_time = queue_.drain(until))) break;
    }
  for (const auto& [key, marks] : marks_)
    for (const auto& [tokens, mark] : marks) {
      result.failed += mark.state == Mark::State::failed;
      result.dropped += mark.state == Mark::State::dropped;
      result.pending += mark.state == Mark::State::dirty || mark.state == Mark::State::queued;
    }
  result.missing = std::exchange(missing_, 0);
  const DiskStore::Stats store = store_.stats();
  result.entries = store.entries;
  result.longest_durable_prefix_tokens = store.longest_prefix;
  result.durable = result.pending + result.failed + result.dropped + result.missing == 0;
  return result;
}

// ---- on the caller's thread

bool WriteBehind::store_now(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence) {
  if (!stored(key, tokens, sequence) && !store_.put(options_.ns(key), tokens, sequence)) {
    ++failed_here_;
    done(key, tokens, SpillQueue::Outcome::failed);
    return false;
  }
  done(key, tokens, SpillQueue::Outcome::written);
  ++demotions_;
  return true;
}

size_t WriteBehind::demote_idle(std::chrono::milliseconds unused) {
  if (!queue_.drain(Clock::now() + options_.patience)) return 0;
  return tree_.demote(Clock::now() - unused,
                      [this](std::string_view key, std::span<const int32_t> tokens,
                             const Sequence& sequence) { return store_now(key, tokens, sequence); });
}

size_t WriteBehind::relieve_pressure(size_t bytes) {
  if (!queue_.drain(Clock::now() + options_.patience)) return 0;
  return tree_.relieve(bytes, [this](std::string_view key, std::span<const int32_t> tokens,
                                     const Sequence& sequence) { return store_now(key, tokens, sequence); });
}

WriteBehind::Stats WriteBehind::stats() const {
  const SpillQueue::Stats queue = queue_.stats();
  Stats stats{.spills = queue.pushed,
              .demotions = demotions_,
              .pending_spills = queue.pending,
              .pending_spill_bytes = queue.pending_bytes,
              .dropped_spills = queue.dropped + lost_,
              .failed_spills = queue.failed + failed_here_};
  for (const auto& [key, marks] : marks_)
    for (const auto& [tokens, mark] : marks) stats.pending_snapshots += mark.state != Mark::State::queued;
  return stats;
}

}  // namespace kvasir::kv
