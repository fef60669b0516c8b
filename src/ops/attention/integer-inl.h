// Quantized planes on 8-bit dot products (AVX-512 VNNI): codes are unsigned bytes as they are, or a codebook
// on 8 bits; the other side is a 16-bit integer, as two signed bytes. Sums are exact in 32 bits: |sum| <= 255
// * 32512 * 256 < 2^31 over the keys of a segment, half of it over a group of channels. Included by cpu.cc
// inside the level's own namespace.

constexpr float kIntegerTop = 32512.0f;  // upper and lower byte both fit a signed byte
constexpr float kIntegerFloor = 1e-30f;  // below, a row counts as zero

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

template <int kBits>
HWY_INLINE void unit_bytes(const std::byte* unit, bool looks_up, __m512i low_table, __m512i high_table,
                           [[maybe_unused]] __m512i whole_table, std::byte* out) {
  constexpr kv::BitPlanes kPlanes = kv::bit_planes(kBits);
  constexpr int kSlots = 8 / kPlanes.first;
  _Pragma("GCC unroll 8") for (int q = 0; q < 8; ++q) {
    __m512i code = _mm512_loadu_si512(unit + (q / kSlots) * 64);
    code = _mm512_and_si512(_mm512_srli_epi16(code, static_cast<unsigned>((q % kSlots) * kPlanes.first)),
                            _mm512_set1_epi8(static_cast<char>((1 << kPlanes.first) - 1)));
    if constexpr (kPlanes.second != 0) {
      constexpr int kSecond = 8 / kPlanes.second;
      __m512i high = _mm512_loadu_si512(unit + kPlanes.first * 64 + (q / kSecond) * 64);
      const int shift = (q % kSecond) * kPlanes.second - kPlanes.first;  // to where the upper bits belong
      high = shift >= 0 ? _mm512_srli_epi16(high, static_cast<unsigned>(shift))
                        : _mm512_slli_epi16(high, static_cast<unsigned>(-shift));
      code = _mm512_or_si512(
          code, _mm512_and_si512(
                    high, _mm512_set1_epi8(static_cast<char>(((1 << kPlanes.second) - 1) << kPlanes.first))));
    }
#if defined(__AVX512VBMI__)
    if constexpr (kBits == 5) {
      if (looks_up) code = _mm512_permutexvar_epi8(code, whole_table);
      _mm512_storeu_si512(out + q * 64, code);
      continue;
    }
#endif
    if (looks_up) {
      __m512i entry = _mm512_shuffle_epi8(low_table, code);
      if constexpr (kBits == 5)
        entry = _mm512_mask_shuffle_epi8(entry, _mm512_test_epi8_mask(code, _mm512_set1_epi8(16)), high_table,
                                         _mm512_and_si512(code, _mm512_set1_epi8(15)));
      code = entry;
    }
    _mm512_storeu_si512(out + q * 64, code);
  }
}

// Channels [first, first + width) of a block (multiples of 32) as bytes, 512 a unit: in `out`, or where they
// lie.
const std::byte* decode_bytes(const PlaneFormat& f, const DecodeTable& table, const std::byte* block,
                              int first, int width, std::byte* out) {
  const std::byte* unit = block + (first / 32) * f.codec.bits * 64;
  if (f.codec.bits == 8) return unit;
  const __m512i low = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table.bytes)));
  const __m512i high =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table.bytes + 16)));
  const __m512i whole = _mm512_load_si512(table.bytes);
  for (int u = 0; u < width / 32; ++u, unit += f.codec.bits * 64) {
    std::byte* to = out + u * 512;
    switch (f.codec.bits) {
      case 2:
        unit_bytes<2>(unit, table.looks_up, low, high, whole, to);
        break;
      case 3:
        unit_bytes<3>(unit, table.looks_up, low, high, whole, to);
        break;
      case 4:
        unit_bytes<4>(unit, table.looks_up, low, high, whole, to);
        break;
      case 5:
        unit_bytes<5>(unit, table.looks_up, low, high, whole, to);
        break;
      default:
        unit_bytes<6>(unit, table.looks_up, low, high, whole, to);
        break;
    }
  }
  return out;
}

// 16 values as 16-bit integers on the scale `inverse`: upper bytes at to, lower bytes at to + low. Returns
// them.
HWY_INLINE __m512i store_integers(__m512 x, __m512 inverse, std::byte* to, size_t low) {
  const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
  const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
  const __m512i lower = _mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 8));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(upper));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + low), _mm512_cvtepi32_epi8(lower));
  return whole;
}

void load_integer_query(const AttentionTile& tile, int m, const float* row, std::byte* to) {
  const PlaneFormat& f = *tile.key;
  __m512 top = _mm512_setzero_ps();
  for (int i = 0; i < f.dim; i += 16) top = _mm512_max_ps(top, _mm512_abs_ps(_mm512_loadu_ps(row + i)));
  const float largest = _mm512_reduce_max_ps(top);
  const bool some = largest > kIntegerFloor && largest < 1e30f;
  const __m512 inverse = _mm512_set1_ps(some ? kIntegerTop / largest : 0.0f);
  tile.scratch.row_scales[m] = some ? score_unit(tile) * (largest / kIntegerTop) : 1.0f;
  for (int g = 0; g < f.groups; ++g) {
    __m512i sum = _mm512_setzero_si512();
    for (int i = g * f.group; i < (g + 1) * f.group; i += 16)
      sum = _mm512_add_epi32(
          sum, store_integers(_mm512_loadu_ps(row + i), inverse, to + i, static_cast<size_t>(f.dim)));
    tile.scratch.query_sums[m * f.groups + g] = static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
}

void quantize_weights(const AttentionTile& tile, const SeenBlocks& seen, const float* scales,
                      const float* offsets, int m, float& factor, int32_t& center) {
  const float* p = tile.scratch.scores + m * kSegmentKeys;
  std::byte* row = tile.scratch.weights + m * kSegmentKeys * 2;
  alignas(64) float scaled[kSegmentKeys];
  if (seen.count != kSegmentBlocks) memset(scaled, 0, sizeof(scaled));
  __m512 top = _mm512_setzero_ps(), bias = _mm512_setzero_ps();
  for (int i = 0; i < seen.count; ++i) {
    const int column = seen.at[i].block * kBlockTokens;
    const __m512 weight = _mm512_loadu_ps(p + column);
    // A weight of zero stays zero whatever lies in the slots of keys that are not seen.
    const __mmask16 some = _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512 x = _mm512_maskz_mul_ps(some, weight, _mm512_loadu_ps(scales + column));
    if (offsets != nullptr)
      bias = _mm512_mask3_fmadd_ps(weight, _mm512_loadu_ps(offsets + column), bias, some);
    top = _mm512_max_ps(top, _mm512_abs_ps(x));
    _mm512_store_ps(scaled + column, x);
  }
  const float largest = _mm512_reduce_max_ps(top);
  const bool some = largest > kIntegerFloor && largest < 1e30f;
  const __m512 inverse = _mm512_set1_ps(some ? kIntegerTop / largest : 0.0f);
  factor = some ? largest / kIntegerTop : 0.0f;
  // Four vectors at a time become two of bytes, as in store_integers: with t = x + 128, the upper byte is t
  // >> 8 and the lower one (t & 255) - 128. Packing works within lanes of 128 bits; one permutation puts them
  // right.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i sum = _mm512_setzero_si512();
  _Pragma("GCC unroll 4") for (int column = 0; column < kSegmentKeys; column += 64) {
    __m512i t[4];
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; ++j) {
      t[j] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(scaled + column + j * 16), inverse));
      sum = _mm512_add_epi32(sum, t[j]);
      t[j] = _mm512_add_epi32(t[j], _mm512_set1_epi32(128));
    }
    const __m512i first = _mm512_packs_epi32(t[0], t[1]), second = _mm512_packs_epi32(t[2], t[3]);
    const __m512i upper = _mm512_packs_epi16(_mm512_srai_epi16(first, 8), _mm512_srai_epi16(second, 8));
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i lower =
        _mm512_xor_si512(_mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low)),
                         _mm512_set1_epi8(-128));
    _mm512_storeu_si512(row + column, _mm512_permutexvar_epi32(order, upper));
    _mm512_storeu_si512(row + column + kSegmentKeys, _mm512_permutexvar_epi32(order, lower));
  }
  center = tile.value_table->byte_center * _mm512_reduce_add_epi32(sum);
  V16 lanes;
  lanes.part[0].raw = bias;
  tile.scratch.bias[m] = sum_of(lanes);
}

// acc += sums of four products of unsigned and signed bytes. In assembly because GCC 12 copies the sums of
// the intrinsic to and fro.
HWY_INLINE void add_products(__m512i& acc, __m512i codes, __m512i integers) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(integers));
}
HWY_INLINE __m512i broadcast(const std::byte* p) {
  return _mm512_set1_epi32(static_cast<int>(load_u32(p)));
}

template <int MR, int NR>
struct IntegerSums {
  __m512i upper[MR][NR], lower[MR][NR];
  HWY_INLINE void clear() {
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n)
        upper[m][n] = lower[m][n] = _mm512_setzero_si512();
  }
  HWY_INLINE void step(const std::byte* left, size_t stride, size_t low,
                       const std::byte* const (&right)[NR]) {
    __m512i b[NR];
    _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) b[n] = _mm512_loadu_si512(right[n]);
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
      const std::byte* at = left + static_cast<size_t>(m) * stride;
      const __m512i high = broadcast(at), rest = broadcast(at + low);
      _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) {
        add_products(upper[m][n], b[n], high);
        add_products(lower[m][n], b[n], rest);
      }
    }
  }
  HWY_INLINE V16 sum(int m, int n, int32_t center) const {
    const __m512i total = _mm512_add_epi32(_mm512_slli_epi32(upper[m][n], 8), lower[m][n]);
    V16 out;
    out.part[0].raw = _mm512_cvtepi32_ps(_mm512_sub_epi32(total, _mm512_set1_epi32(center)));
    return out;
  }
};

template <int MR, int NR>
void integer_scores(const ScoreTask& t) {
  const std::byte* right[NR];
  _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) right[n] = t.keys[n];
  const std::byte* left = t.queries;
  for (int g = 0; g < t.groups; ++g) {
    IntegerSums<MR, NR> sums;
    sums.clear();
    for (int k = 0; k < t.group_steps; ++k, left += 4) {
      sums.step(left, t.query_stride, t.low_bytes, right);
      _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) right[n] += 64;
    }
    t.fetch->advance(t.group_steps * t.fetch->key_rate);
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
      const float query_sum =
          t.query_sums[static_cast<size_t>(m) * t.query_sum_stride + static_cast<size_t>(g)];
      const int32_t center = static_cast<int32_t>(query_sum) * t.byte_center;
      _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) {
        float* out = t.scores + m * kSegmentKeys + t.columns[n];
        V16 s = fma(sums.sum(m, n, center), load(t.scales + g * kSegmentKeys + t.columns[n]),
                    g == 0 ? set(0.0f) : load(out));
        if (t.offsets != nullptr)
          s = fma(set(query_sum), load(t.offsets + g * kSegmentKeys + t.columns[n]), s);
        store(s, out);
      }
    }
  }
}

template <int MR>
void integer_values(const ValueTask& t) {
  IntegerSums<MR, 2> sums;
  sums.clear();
  for (int b = 0; b < t.blocks; ++b) {
    const std::byte* left = t.weights + t.columns[b];
    const std::byte* right[2] = {t.values[b], t.values[b] + 256};
    _Pragma("GCC unroll 4") for (int k = 0; k < kBlockTokens / 4; ++k, left += 4) {
      sums.step(left, t.weight_stride, kSegmentKeys, right);
      right[0] += 64;
      right[1] += 64;
    }
    t.fetch->advance(kBlockTokens / 4 * t.fetch->value_rate);
  }
  _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
    const V16 factor = set(t.factors[m]), bias = set(t.bias[m]), keep = set(t.keep[m]), take = set(t.take[m]);
    _Pragma("GCC unroll 2") for (int n = 0; n < 2; ++n) {
      float* out = t.out + static_cast<size_t>(m) * t.out_stride + n * 16;
      store(fma(load(out), keep, mul(fma(sums.sum(m, n, t.centers[m]), factor, bias), take)), out);
    }
  }
}

template <int MR>
void integer_score_rows(int vectors, const ScoreTask& t) {
  return vectors == 2 ? integer_scores<MR, 2>(t) : integer_scores<MR, 1>(t);
}
void integer_score_tile(int rows, int vectors, const ScoreTask& t) {
  switch (rows) {
    case 1:
      return integer_score_rows<1>(vectors, t);
    case 2:
      return integer_score_rows<2>(vectors, t);
    case 3:
      return integer_score_rows<3>(vectors, t);
    case 4:
      return integer_score_rows<4>(vectors, t);
    case 5:
      return integer_score_rows<5>(vectors, t);
    default:
      return integer_score_rows<6>(vectors, t);
  }
}
void integer_value_tile(int rows, const ValueTask& t) {
  switch (rows) {
    case 1:
      return integer_values<1>(t);
    case 2:
      return integer_values<2>(t);
    case 3:
      return integer_values<3>(t);
    case 4:
      return integer_values<4>(t);
    case 5:
      return integer_values<5>(t);
    default:
      return integer_values<6>(t);
  }
}

#else  // kHasInteger is false: never called

const std::byte* decode_bytes(const PlaneFormat&, const DecodeTable&, const std::byte* block, int, int,
                              std::byte*) {
  return block;
}
void load_integer_query(const AttentionTile&, int, const float*, std::byte*) {}
void quantize_weights(const AttentionTile&, const SeenBlocks&, const float*, const float*, int, float&,
                      int32_t&) {}
void integer_score_tile(int, int, const ScoreTask&) {}
void integer_value_tile(int, const ValueTask&) {}

#endif
