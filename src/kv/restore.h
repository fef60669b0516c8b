// How a stored sequence becomes pages of a cache again, and work on its parts. Private to kv/.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_team.h"
#include "kv/cache.h"

namespace kvasir::kv {

// work(i, member) of every i below `count`, by all members of the team (null: by the caller).
template <typename Work>
void share(ThreadTeam* team, size_t count, const Work& work) {
  const auto part = [&](size_t member, size_t members) {
    for (size_t i = member; i < count; i += members) work(i, member);
  };
  if (team == nullptr) return part(0, 1);
  team->run([&](int member) { part(static_cast<size_t>(member), static_cast<size_t>(team->size())); });
}

struct StoredRow {
  int32_t offset = 0;
  int32_t min_reusable = 0;
  bool encoded = true;
  std::vector<int32_t> first;             // [groups] positions [first, offset) and the sinks are stored
  std::span<const std::byte> state = {};  // of as many bytes as a slot of the cache has
  Origin origin = {};
};

// Canonical bytes of `count` stored tokens of a group from position `first` on, as PageLayout::export_tokens
// gives them. Several threads call it at once.
using ReadTokens = std::function<void(size_t group, int32_t first, int32_t count, std::span<std::byte> out)>;

// A sequence of the row's tokens. What they are must have been compared with the cache's shape. `team` (may
// be null) shares the copying. Throws KvPoolExhausted, and what `read` throws; then nothing has changed.
Sequence fill_sequence(KvCache& cache, const StoredRow& stored, const ReadTokens& read, ThreadTeam* team);

}  // namespace kvasir::kv
