// From scores to weights, and the factors with which a segment joins the state. Included by cpu.cc inside the
// level's own namespace.

// Per-row numbers of a tile, padded with zeros to whole vectors (what lies there by chance may be subnormal,
// and slow).
struct RowNumbers {
  alignas(64) float at[kTileRows];
  explicit RowNumbers(int rows) {
    for (int m = rows / 16 * 16; m < rows; m += 16) store(set(0.0f), at + m);
  }
  RowNumbers(int rows, const float* from) : RowNumbers(rows) {
    memcpy(at, from, static_cast<size_t>(rows) * 4);
  }
};

// A row that sees all 256 keys, without a cap: what almost every segment of a long context is.
HWY_INLINE void softmax_whole_row(float* scores, float scale, bool round, Fetch& fetch, float& row_max,
                                  float& row_sum) {
  FetchCursor ahead(fetch);
  const int rate = fetch.softmax_rate;
  V16 best = set(-INFINITY);
  _Pragma("GCC unroll 16") for (int i = 0; i < kSegmentBlocks; ++i) best = max(load(scores + i * 16), best);
  row_max = max_of(best) * scale;
  const V16 factor = set(scale), shift = set(row_max == -INFINITY ? 0.0f : -row_max);
  V16 sum = set(0.0f);
  for (int i = 0; i < kSegmentBlocks; i += 4) {
    V16 p[4];
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; ++j) p[j] =
        exp2_negative(fma(load(scores + (i + j) * 16), factor, shift));
    if (round) _Pragma("GCC unroll 4") for (int j = 0; j < 4; ++j) p[j] = round_weight(p[j]);
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; ++j) {
      sum = add(sum, p[j]);
      store(p[j], scores + (i + j) * 16);
    }
    ahead.advance(rate);
  }
  ahead.done();
  row_sum = sum_of(sum);
}

// Scores of one row become unnormalised weights, in place, rounded if asked: 2^(s - max), both in units of
// log2. Returns the row's maximum (-inf: it sees no key) and sum.
void softmax_row(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen, int m,
                 Fetch& fetch, float& row_max, float& row_sum) {
  const Visibility& visible = tile.visible[tile.row_token[m]];
  float* scores = tile.scratch.scores + m * kSegmentKeys;
  float scale = tile.scratch.row_scales[m];
  // Plain values meet rounded weights, so the sum is of those; quantized ones meet weights times scales.
  const bool round = tile.bf16 && tile.value->plain();
  if (tile.softcap == 0.0f && seen.count == kSegmentBlocks &&
      sees_all(visible, segment.first_key, kSegmentKeys))
    return softmax_whole_row(scores, scale, round, fetch, row_max, row_sum);
  const V16 none = set(-INFINITY);
  V16 best = none;
  for (int i = 0; i < seen.count; ++i) {
    float* at = scores + seen.at[i].block * kBlockTokens;
    V16 s = load(at);
    if (tile.softcap != 0.0f) {
      s = mul(soft_cap(mul(s, set(scale)), tile.softcap), set(kLog2E));
      store(s, at);
    }
    const int32_t first = segment.first_key + seen.at[i].block * kBlockTokens;
    if (!seen.at[i].whole && !sees_all(visible, first, kBlockTokens)) {
      s = select_bits(seen_bits(visible, tile.sinks, first), s, none);
      store(s, at);
    }
    best = max(s, best);
  }
  if (tile.softcap != 0.0f) scale = 1.0f;
  row_max = max_of(best) * scale;
  const V16 factor = set(scale), shift = set(row_max == -INFINITY ? 0.0f : -row_max);
  V16 sum = set(0.0f);
  for (int i = 0; i < seen.count; ++i) {
    float* at = scores + seen.at[i].block * kBlockTokens;
    V16 p = exp2_negative(fma(load(at), factor, shift));
    if (round) p = round_weight(p);
    sum = add(sum, p);
    store(p, at);
  }
  row_sum = sum_of(sum);
}

// What a part with these maxima and sums does to a state: factors of the old and of the new outputs; the
// state's maxima and sums are updated. A row that sees no key of the part (-inf) leaves its state alone.
void merge_factors(int rows, const float* part_max, const float* part_sum, const AttentionState& state,
                   float* keep, float* take) {
  RowNumbers old_max(rows, state.max), old_sum(rows, state.sum);
  const D d;
  for (int m = 0; m < rows; m += 16) {
    const V16 part = load(part_max + m), before = load(old_max.at + m);
    const V16 top = max(part, before);
    V16 old_factor = exp2_negative(sub(before, top));
    V16 new_factor = exp2_negative(sub(part, top));
    V16 new_max = top;
    FOR_PARTS {
      const auto nothing = hn::Eq(part.part[i], hn::Set(d, -INFINITY));
      old_factor.part[i] = hn::IfThenElse(nothing, hn::Set(d, 1.0f), old_factor.part[i]);
      new_factor.part[i] = hn::IfThenElse(nothing, hn::Zero(d), new_factor.part[i]);
      new_max.part[i] = hn::IfThenElse(nothing, before.part[i], new_max.part[i]);
    }
    store(old_factor, keep + m);
    store(new_factor, take + m);
    store(new_max, old_max.at + m);
    store(fma(load(old_sum.at + m), old_factor, mul(load(part_sum + m), new_factor)), old_sum.at + m);
  }
  memcpy(state.max, old_max.at, static_cast<size_t>(rows) * 4);
  memcpy(state.sum, old_sum.at, static_cast<size_t>(rows) * 4);
}

// f32 rows of weights (exactly bf16 already) as bf16.
void pack_bf16(const float* from, const SeenBlocks& seen, uint16_t* to) {
  for (int i = 0; i < seen.count; ++i) {
    const int column = seen.at[i].block * kBlockTokens;
#if defined(__AVX512F__)
    const __m512i bits = _mm512_loadu_si512(from + column);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + column),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
#else
    for (int j = 0; j < kBlockTokens; ++j) {
      uint32_t bits;
      memcpy(&bits, from + column + j, 4);
      to[column + j] = static_cast<uint16_t>(bits >> 16);
    }
#endif
  }
}
