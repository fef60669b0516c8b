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
bool may_see(const Visibility& v, int sinks, int32_t first, int32_t count) {
  return first < v.end && (first + count > v.begin || first < sinks);
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
  for (int b = 0; b < kSegmentBlocks; ++b) {
    if (segment.keys[b] == nullptr) continue;
    const int32_t first = segment.first_key + b * kBlockTokens;
    bool any = false, all = true;
    for (int t = 0; t < tile.tokens; ++t) {
      any = any || may_see(tile.visible[t], tile.sinks, first, kBlockTokens);
      all = all && sees_all(tile.visible[t], first, kBlockTokens);
    }
    if (any) out.at[out.count++] = {b, all};
  }
  return out;
}
