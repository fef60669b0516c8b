// The two matrix products of attention in floating point, in register tiles. Included by cpu.cc inside the
// level's own namespace, after lanes-inl.h.

// ---- how a plane enters its product

enum class Operand {
  dot,      // both sides bf16 pairs, dpbf16ps
  pairs,    // left f32, right bf16 pairs: the same chain of fused multiply-adds
  f32,      // left f32, right f32
  integer,  // left 16-bit integers as two bytes, right unsigned bytes: 8-bit dot products, exact
  book,     // f32 in the same order, right bytes of the page, looked up between the multiply-adds
};

// 8-bit codes of a codebook, which lookup-inl.h knows.
bool has_byte_book(const PlaneFormat& f) {
  return kHasPermutes && f.codec.kind == kv::PlaneCodec::Kind::rotated && f.codec.bits == 8;
}

Operand operand_of(const PlaneFormat& f, const DecodeTable& table, const AttentionTile& tile) {
  if (f.plain()) {
    if (f.codec.plain != Dtype::bf16) return Operand::f32;
    return kHasDot && tile.bf16 && tile.use_dot ? Operand::dot : Operand::pairs;
  }
  if (kHasInteger && tile.bf16 && table.has_bytes) return Operand::integer;
  // With more rows than one register tile has, codes are looked up once and kept.
  return has_byte_book(f) && tile.byte_permutes && tile.rows <= kMaxRows ? Operand::book : Operand::f32;
}
Operand key_operand(const AttentionTile& tile) {
  return operand_of(*tile.key, *tile.key_table, tile);
}
Operand value_operand(const AttentionTile& tile) {
  return operand_of(*tile.value, *tile.value_table, tile);
}

// The right matrix of a product: block n starts at block[n]; vector (step k, 16 lanes v) lies k * step + v *
// 64 bytes on. A step is a pair (dot, pairs) or one element (f32).
#if defined(__AVX512BF16__)
HWY_INLINE __m512 dot(__m512 acc, uint32_t a, __m512i b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a))),
                          reinterpret_cast<__m512bh>(b));
}
#endif
HWY_INLINE uint32_t load_u32(const void* p) {
  uint32_t x;
  memcpy(&x, p, 4);
  return x;
}

template <int MR, int NR>
struct Accumulators {
  V16 at[MR][NR];
  HWY_INLINE void clear() {
    _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n)
        at[m][n] = set(0.0f);
  }
  // One step: row m's left element(s) at left + m * left_stride, right vectors at right[n] + offset.
  template <Operand kOperand>
  HWY_INLINE void step(const std::byte* left, size_t left_stride, const std::byte* const (&right)[NR],
                       size_t offset) {
    if constexpr (kOperand == Operand::dot) {
#if defined(__AVX512BF16__)
      __m512i b[NR];
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) b[n] = _mm512_loadu_si512(right[n] + offset);
      _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) {
        const uint32_t a = load_u32(left + static_cast<size_t>(m) * left_stride);
        _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) at[m][n].part[0].raw =
            dot(at[m][n].part[0].raw, a, b[n]);
      }
#endif
    } else if constexpr (kOperand == Operand::pairs && MR > kMaxRows) {
      V16 even[NR], odd[NR];
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) load_pairs(right[n] + offset, even[n], odd[n]);
      _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) {
        const float* a = reinterpret_cast<const float*>(left + static_cast<size_t>(m) * left_stride);
        const V16 first = set(a[0]), second = set(a[1]);
        _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) at[m][n] = fma(second, odd[n], at[m][n]);
        _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) at[m][n] = fma(first, even[n], at[m][n]);
      }
    } else if constexpr (kOperand == Operand::pairs) {
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
        V16 even, odd;
        load_pairs(right[n] + offset, even, odd);
        _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) {
          const float* a = reinterpret_cast<const float*>(left + static_cast<size_t>(m) * left_stride);
          at[m][n] = fma(set(a[1]), odd, at[m][n]);
          at[m][n] = fma(set(a[0]), even, at[m][n]);
        }
      }
    } else {
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
        const V16 b = load(reinterpret_cast<const float*>(right[n] + offset));
        _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) {
          const float* a = reinterpret_cast<const float*>(left + static_cast<size_t>(m) * left_stride);
          at[m][n] = fma(set(a[0]), b, at[m][n]);
        }
      }
    }
  }
};
constexpr size_t left_step(Operand operand) {
  return operand == Operand::pairs ? 8 : 4;
}

// ---- scores = Q K^T

struct ScoreTask {
  const std::byte* queries;  // row 0
  size_t query_stride;       // bytes
  const std::byte* keys[4];  // blocks
  Fetch* fetch;              // what the steps bring from memory meanwhile
  int columns[4];            // first column of each block's scores
  int group_steps;           // steps of one scale group (plain: all)
  int groups;
  const float* scales;   // [groups][256], null: plain
  const float* offsets;  // null: none
  const float* query_sums;
  size_t query_sum_stride;
  size_t low_bytes;     // integer: from a query's upper bytes to its lower ones
  int32_t byte_center;  // integer: bytes stand for themselves minus this
  const DecodeTable* table;
  float* scores;  // row 0, 256 columns
};

template <Operand kOperand, int MR, int NR>
void score_block(const ScoreTask& t) {
  const std::byte* right[NR];
  _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] = t.keys[n];
  const std::byte* left = t.queries;
  size_t offset = 0;
  Accumulators<MR, NR> acc;
  if (t.scales == nullptr) {
    acc.clear();
    FetchCursor ahead(*t.fetch);
    const int rate = t.fetch->key_rate;
    for (int k = 0; k < t.group_steps; ++k) {
      acc.template step<kOperand>(left, t.query_stride, right, offset);
      left += left_step(kOperand);
      offset += 64;
      ahead.advance(rate);
    }
    ahead.done();
    _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n)
        store(acc.at[m][n], t.scores + m * kSegmentKeys + t.columns[n]);
    return;
  }
  for (int g = 0; g < t.groups; ++g) {
    acc.clear();
    FetchCursor ahead(*t.fetch);
    const int rate = t.fetch->key_rate;
    for (int k = 0; k < t.group_steps; ++k) {
      acc.template step<kOperand>(left, t.query_stride, right, offset);
      left += left_step(kOperand);
      offset += 64;
      ahead.advance(rate);
    }
    ahead.done();
    const float* scales = t.scales + g * kSegmentKeys;
    _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m)
        _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
      float* out = t.scores + m * kSegmentKeys + t.columns[n];
      V16 total = g == 0 ? set(0.0f) : load(out);
      total = fma(acc.at[m][n], load(scales + t.columns[n]), total);
      if (t.offsets != nullptr)
        total = fma(set(t.query_sums[static_cast<size_t>(m) * t.query_sum_stride + static_cast<size_t>(g)]),
                    load(t.offsets + g * kSegmentKeys + t.columns[n]), total);
      store(total, out);
    }
  }
}

// ---- out = out * a + (P V + bias) * b

struct ValueTask {
  const std::byte* weights;  // row 0, 256 columns
  size_t weight_stride;      // bytes
  int blocks;
  const std::byte* values[kSegmentBlocks];  // first channel of the tile
  Fetch* fetch;                             // what the steps bring from memory meanwhile
  size_t steps[kSegmentBlocks];             // bytes from one step (pair of keys, or key) to the next
  int columns[kSegmentBlocks];              // first column of each block's weights
  const float* bias;                        // [rows]
  const float* factors;                     // integer: [rows], of the weights
  const int32_t* centers;                   // integer: [rows], taken off the sums
  const DecodeTable* table;
  const float* keep;  // [rows] a
  const float* take;  // [rows] b
  float* out;         // row 0, first channel of the tile
  size_t out_stride;  // floats
};

template <Operand kOperand, int MR, int NR>
void value_block(const ValueTask& t) {
  constexpr int kSteps = kOperand == Operand::f32 ? kBlockTokens : kBlockTokens / 2;
  constexpr size_t kColumn = kOperand == Operand::dot ? 2 : 4;
  Accumulators<MR, NR> acc;
  acc.clear();
  for (int b = 0; b < t.blocks; ++b) {
    const std::byte* left = t.weights + static_cast<size_t>(t.columns[b]) * kColumn;
    const std::byte* right[NR];
    FetchCursor ahead(*t.fetch);
    const int rate = t.fetch->value_rate;
    _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] = t.values[b] + n * 64;
    size_t offset = 0;
    const size_t step = t.steps[b];
    for (int k = 0; k < kSteps; ++k) {
      acc.template step<kOperand>(left, t.weight_stride, right, offset);
      left += left_step(kOperand);
      offset += step;
      ahead.advance(rate);
    }
    ahead.done();
  }
  _Pragma("GCC unroll 16") for (int m = 0; m < MR; ++m) {
    const V16 bias = set(t.bias[m]), keep = set(t.keep[m]), take = set(t.take[m]);
    _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
      float* out = t.out + static_cast<size_t>(m) * t.out_stride + n * 16;
      store(fma(load(out), keep, mul(add(acc.at[m][n], bias), take)), out);
    }
  }
}

// ---- dispatch on the register tile

// The register tiles of a product of `rows` rows: vectors side by side, and the rows of the next tile when
// `left` are left.
class TileShape {
 public:
  TileShape(int rows, Operand operand)
      : rows_(rows),
        tall_(operand != Operand::integer && operand != Operand::book && kTallRows > kMaxRows &&
              rows >= kTallRows),
        vectors_(operand == Operand::integer || operand == Operand::book ? kIntegerVectors
                 : tall_                                                 ? kTallVectors
                                                                         : kMaxVectors) {}
  int vectors() const { return vectors_; }
  int rows(int left) const {
    return tall_ && left >= kTallRows ? kTallRows : left < kMaxRows ? left : kMaxRows;
  }
  int tiles() const {
    int count = 0;
    for (int left = rows_; left > 0; left -= rows(left)) ++count;
    return count;
  }

 private:
  int rows_;
  bool tall_;
  int vectors_;
};

template <Operand kOperand, int MR>
void score_rows(int vectors, const ScoreTask& t) {
  if constexpr (kMaxVectors >= 4) {
    if (vectors == 4) return score_block<kOperand, MR, 4>(t);
    if (vectors == 3) return score_block<kOperand, MR, 3>(t);
  }
  if (vectors == 2) return score_block<kOperand, MR, 2>(t);
  return score_block<kOperand, MR, 1>(t);
}
template <Operand kOperand, int MR>
void value_rows(int vectors, const ValueTask& t) {
  if constexpr (kMaxVectors >= 4) {
    if (vectors == 4) return value_block<kOperand, MR, 4>(t);
    if (vectors == 3) return value_block<kOperand, MR, 3>(t);
  }
  if (vectors == 2) return value_block<kOperand, MR, 2>(t);
  return value_block<kOperand, MR, 1>(t);
}
template <Operand kOperand>
void score_tile(int rows, int vectors, const ScoreTask& t) {
  if constexpr (kTallRows > kMaxRows) {
    if (rows == kTallRows)
      return vectors == 2 ? score_block<kOperand, kTallRows, 2>(t) : score_block<kOperand, kTallRows, 1>(t);
  }
  if constexpr (kMaxRows >= 6) {
    if (rows == 6) return score_rows<kOperand, 6>(vectors, t);
    if (rows == 5) return score_rows<kOperand, 5>(vectors, t);
    if (rows == 4) return score_rows<kOperand, 4>(vectors, t);
  }
  if (rows == 3) return score_rows<kOperand, 3>(vectors, t);
  if (rows == 2) return score_rows<kOperand, 2>(vectors, t);
  return score_rows<kOperand, 1>(vectors, t);
}
template <Operand kOperand>
void value_tile(int rows, int vectors, const ValueTask& t) {
  if constexpr (kTallRows > kMaxRows) {
    if (rows == kTallRows)
      return vectors == 2 ? value_block<kOperand, kTallRows, 2>(t) : value_block<kOperand, kTallRows, 1>(t);
  }
  if constexpr (kMaxRows >= 6) {
    if (rows == 6) return value_rows<kOperand, 6>(vectors, t);
    if (rows == 5) return value_rows<kOperand, 5>(vectors, t);
    if (rows == 4) return value_rows<kOperand, 4>(vectors, t);
  }
  if (rows == 3) return value_rows<kOperand, 3>(vectors, t);
  if (rows == 2) return value_rows<kOperand, 2>(vectors, t);
  return value_rows<kOperand, 1>(vectors, t);
}
void score_tile(Operand operand, int rows, int vectors, const ScoreTask& t) {
  if (kHasDot && operand == Operand::dot)
    return score_tile < kHasDot ? Operand::dot : Operand::f32 > (rows, vectors, t);
  if (operand == Operand::pairs) return score_tile<Operand::pairs>(rows, vectors, t);
  return score_tile<Operand::f32>(rows, vectors, t);
}
void value_tile(Operand operand, int rows, int vectors, const ValueTask& t) {
  if (kHasDot && operand == Operand::dot)
    return value_tile < kHasDot ? Operand::dot : Operand::f32 > (rows, vectors, t);
  if (operand == Operand::pairs) return value_tile<Operand::pairs>(rows, vectors, t);
  return value_tile<Operand::f32>(rows, vectors, t);
}
