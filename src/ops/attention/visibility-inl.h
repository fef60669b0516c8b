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
struct SeenBlock {
  int block;
  bool whole;  // every row sees every key
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
    if (any && segment.keys[b] != nullptr)
      out.at[out.count++] = {b, first >= last_begin && first + kBlockTokens <= first_end};
  }
  return out;
}

// From a product to a score: in units of log2 unless a cap comes first.
float score_unit(const AttentionTile& tile) {
  return tile.softcap != 0.0f ? tile.scale : tile.scale * kLog2E;
}
