#include "kv/restore.h"

#include <algorithm>
#include <cstring>

#include "kv/row.h"

namespace kvasir::kv {

Sequence fill_sequence(KvCache& cache, const StoredRow& stored, const ReadTokens& read, ThreadTeam* team) {
  const CacheShape& shape = cache.shape();
  const size_t state_bytes = cache.states().bytes_per_slot();
  KVASIR_CHECK(stored.state.size() == state_bytes && stored.first.size() == shape.groups.size());
  const int32_t page = shape.page_tokens;
  const int32_t count = (stored.offset - 1) / page + 1;
  struct Part {
    size_t group;
    int32_t index;
  };
  std::vector<Part> parts;
  std::vector<uint32_t> needed(shape.groups.size(), 0);
  for (size_t g = 0; g < shape.groups.size(); ++g)
    for (int32_t i = 0; i < count; ++i) {
      const bool sink = i * page < shape.groups[g].geometry.sinks;
      if (i < stored.first[g] / page && !sink) continue;
      parts.push_back({g, i});
      ++needed[g];
    }
  cache.require_pages(needed, stored.encoded, state_bytes > 0 ? 1 : 0);

  Sequence sequence = cache.create();
  Row& row = SequenceAccess::row(sequence);
  row.encoded = stored.encoded;
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    row.groups[g].ids.assign(static_cast<size_t>(count), kNoPage);
    row.groups[g].pages.assign(static_cast<size_t>(count), nullptr);
    row.groups[g].evicted_below = stored.first[g];
  }
  for (const Part& part : parts) {
    PagePool& pool = cache.pool(part.group, stored.encoded);
    const PageId id = pool.allocate();
    row.groups[part.group].ids[static_cast<size_t>(part.index)] = id;
    row.groups[part.group].pages[static_cast<size_t>(part.index)] = pool.page(id);
  }
  std::vector<std::vector<std::byte>> buffers(team == nullptr ? 1 : static_cast<size_t>(team->size()));
  share(team, parts.size(), [&](size_t i, size_t member) {
    const Part& part = parts[i];
    std::vector<std::byte>& buffer = buffers[member];
    const PageLayout& layout = cache.layout(part.group, stored.encoded);
    const int32_t begin = part.index * page, end = std::min(begin + page, stored.offset);
    const auto copy = [&](int32_t from, int32_t to) {
      if (from >= to) return;
      buffer.resize(static_cast<size_t>(to - from) * layout.token_bytes());
      read(part.group, from, to - from, buffer);
      layout.import_tokens(row.groups[part.group].pages[static_cast<size_t>(part.index)], from - begin,
                           to - from, buffer);
    };
    const int32_t first = stored.first[part.group];
    const int32_t sink_end = std::clamp(std::min(shape.groups[part.group].geometry.sinks, first), begin, end);
    copy(begin, sink_end);
    copy(std::clamp(first, sink_end, end), end);
  });
  if (state_bytes > 0) {
    row.state = cache.states().allocate();
    std::memcpy(cache.states().slot(row.state), stored.state.data(), state_bytes);
  }
  row.min_reusable = stored.min_reusable;
  row.offset = stored.offset;
  row.origin = stored.origin;
  return sequence;
}

}  // namespace kvasir::kv
