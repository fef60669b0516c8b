// Which keys a token sees, and which blocks of a segment a tile must visit. Included by cpu.cc inside the
// level's own namespace.

bool sees_all(const Visibility& v, int32_t first, int32_t count) {
  return first >= v.begin && first + count <= v.end &&
         (v.draft == ~uint64_t{0} || first + count <= v.end - 64);
}
bool sees(const Visibility& v, int sinks, int32_t key) {
  if (key >= v.end) return false;
  if (key < sinks) return true;
  if (key < v.begin) return false;
  const int32_t age = v.end - 1 - key;
  return age >= 64 || ((v.draft >> age) & 1u) != 0;
}
// The keys of a block that a token sees: bit j is key first + j.
uint32_t seen_bits(const Visibility& v, int sinks, int32_t first) {
  const auto below = [first](int32_t end) {  // keys before `end`
    const int32_t count = end - first;
    return count <= 0 ? 0u : count >= kBlockTokens ? 0xFFFFu : (1u << count) - 1;
  };
  const int32_t sink_end = sinks < v.end ? sinks : v.end;
  uint32_t bits = (below(v.end) & ~below(v.begin)) | below(sink_end);
  if (v.draft != ~uint64_t{0})
    for (int j = 0; j < kBlockTokens; ++j)
      if (!sees(v, sinks, first + j)) bits &= ~(1u << j);
  return bits;
}
// Of the tokens [token_begin, token_end) together.
uint32_t seen_bits(const AttentionTile& tile, int32_t first, int token_begin, int token_end) {
  uint32_t bits = 0;
  for (int t = token_begin; t < token_end && bits != 0xFFFFu; ++t)
    bits |= seen_bits(tile.visible[t], tile.sinks, first);
  return bits;
}
struct SeenBlock {
  int block;
  bool whole;     // every row sees every key
  uint32_t keys;  // bit j: some row sees key j (of blocks that are not whole)
};
struct SeenBlocks {
  int count = 0;
  SeenBlock at[kSegmentBlocks];
};
SeenBlocks seen_blocks(const AttentionTile& tile, const KeySegment& segment) {
  SeenBlocks out;
  int32_t first_begin = INT32_MAX, last_begin = 0, first_end = INT32_MAX, last_end = 0;
  for (int t = 0; t < tile.tokens; ++t) {
    const Visibility& visible = tile.visible[t];
    first_begin = visible.begin < first_begin ? visible.begin : first_begin;
    last_begin = visible.begin > last_begin ? visible.begin : last_begin;
    last_end = visible.end > last_end ? visible.end : last_end;
    const int32_t end = visible.draft == ~uint64_t{0} ? visible.end : visible.end - 64;
    first_end = end < first_end ? end : first_end;
  }
  for (int b = 0; b < kSegmentBlocks; ++b) {
    const int32_t first = segment.first_key + b * kBlockTokens;
    const bool any = first < last_end && (first + kBlockTokens > first_begin || first < tile.sinks);
    if (!any || segment.keys[b] == nullptr) continue;
    const bool whole = first >= last_begin && first + kBlockTokens <= first_end;
    out.at[out.count++] = {b, whole, whole ? 0xFFFFu : seen_bits(tile, first, 0, tile.tokens)};
  }
  return out;
}

// From a product to a score: in units of log2 unless a cap comes first.
float score_unit(const AttentionTile& tile) {
  return tile.softcap != 0.0f ? tile.scale : tile.scale * kLog2E;
}
