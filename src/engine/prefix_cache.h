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
// With a store, resume points that memory gives up are written to it before their pages go, and those that
// are left when the cache is closed as well; take() finds them again, also those of earlier runs of the same
// model and settings. What cannot be written or read is computed: a warning, never another answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_team.h"
#include "kv/prefix_tree.h"
#include "kv/store.h"

namespace kvasir::engine {

class PrefixCache {
 public:
  // `key`: everything that stored bytes depend on besides tokens (the NumericsKey). `interval` 0: none.
  // `disk` may be null; `team` (may be null) shares the copying of what is restored from it.
  PrefixCache(kv::KvCache& cache, std::string key, size_t cap_bytes, int64_t interval,
              std::unique_ptr<kv::DiskStore> disk = nullptr, ThreadTeam* team = nullptr);
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
  // Stops that the row has reached leave `stops`.
  enum class Stage : uint8_t { prefill, decode, finished };
  void stored(std::span<const int32_t> tokens, const kv::Sequence& sequence, std::vector<int32_t>& stops,
              Stage stage);

  kv::PrefixTree::Stats stats() const { return tree_.stats(); }
  std::optional<kv::DiskStore::Stats> disk_stats() const;  // none: no store

 private:
  void keep_on_disk(std::span<const int32_t> tokens, const kv::Sequence& sequence);

  kv::KvCache& cache_;
  std::unique_ptr<kv::DiskStore> disk_;
  ThreadTeam* team_;
  kv::PrefixTree tree_;
  std::string key_;
  int64_t interval_;
  int32_t page_;
};

}  // namespace kvasir::engine
