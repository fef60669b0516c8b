// Prompts that begin like earlier ones are not computed again: kv::PrefixTree in the service of an engine's
// rows.
//
// Pages of the tree lie in the cache's own pools. What live rows do not need may hold prefixes, and is given
// back when a row needs it; EngineOptions::prefix_bytes adds room that rows never claim. For rows of models
// with full attention every computed page is published at once, and any token can be resumed. Windows cannot
// be rewound, so models that have some record resume points: the last token but one of the prompt (the same
// prompt again), the end of its stable part (what the next turn keeps of it), its end, every `interval`
// tokens, and the end of the turn.
//
// With a store, resume points are written to it in the background (kv/write_behind.h): those that memory
// gives up, and all of them when the engine has nothing to do and when the cache is closed. take() finds them
// again, also those of earlier runs of the same model and settings. What could not be written or read is
// computed: a warning or a count, never another answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_team.h"
#include "kv/prefix_tree.h"
#include "kv/store.h"
#include "kv/write_behind.h"

namespace kvasir::engine {

class PrefixCache {
 public:
  // `key`: everything that stored bytes depend on besides tokens (the NumericsKey). `interval` 0: none.
  // `disk` may be null; `team` (may be null) shares the copying of what is restored from it; `writing.ns` is
  // not used.
  PrefixCache(kv::KvCache& cache, std::string key, size_t cap_bytes, int64_t interval,
              std::unique_ptr<kv::DiskStore> disk = nullptr, ThreadTeam* team = nullptr,
              kv::WriteBehind::Options writing = {});
  ~PrefixCache();

  // Tokens of the prompt that are there; at most all but one.
  int32_t peek(std::span<const int32_t> prompt) const;
  // They, as a sequence of their own: from memory, or from disk where that has more. Nothing unless they are
  // more than `than`.
  std::optional<kv::Sequence> take(std::span<const int32_t> prompt, int32_t than);

  // Tokens at which the prefill of a prompt must stop to be recorded, ascending, beyond `reused`; `stable` 0:
  // not known.
  std::vector<int32_t> stops(int32_t reused, int32_t length, int32_t stable) const;
  // The most tokens of `prompt` that will be there once a row with the prompt `other` (which stops at
  // `stops`) has computed `other`; at most all but one.
  int32_t promised(std::span<const int32_t> prompt, std::span<const int32_t> other,
                   std::span<const int32_t> stops) const;

  // After a committed step of a row with these tokens: records a resume point at a stop, at a multiple of the
  // interval and at the end of the turn; otherwise, in prefill, full pages for everybody to use at once.
  // Stops that the row has reached leave `stops`. Nothing is recorded of what somebody else computed
  // (kv::Sequence::origin).
  enum class Stage : uint8_t { prefill, decode, finished };
  void stored(std::span<const int32_t> tokens, const kv::Sequence& sequence, std::vector<int32_t>& stops,
              Stage stage);

  // Before the steps of rows of which some decode (false), or none does: whether they may wait for prompts to
  // be written when they need the pages.
  void be_patient(bool patient);
  // Nothing is being computed: resume points that are not on disk go to the writer.
  void idle();

  // What a server asks for; see kv/write_behind.h. Without a store there is nothing to flush or to move, and
  // relief is what memory gives up.
  kv::WriteBehind::Flushed flush(std::chrono::milliseconds limit);
  size_t demote_idle(std::chrono::milliseconds unused);
  size_t relieve_pressure(size_t bytes);

  kv::PrefixTree::Stats stats() const { return tree_.stats(); }
  std::optional<kv::DiskStore::Stats> disk_stats() const;     // none: no store
  std::optional<kv::WriteBehind::Stats> write_stats() const;  // none: no store

 private:
  kv::KvCache& cache_;
  std::unique_ptr<kv::DiskStore> disk_;
  ThreadTeam* team_;
  kv::PrefixTree tree_;
  std::unique_ptr<kv::WriteBehind> writing_;  // null: no store
  std::string key_;
  int64_t interval_;
  int32_t page_;
};

}  // namespace kvasir::engine
