// Rounding input rows to int8 and int16 (prepared_rows.h). Included inside the per-level namespace.

// How a row becomes integers, for |x| <= 127 after scaling: nearest, ties to even. Blocks of 32 columns:
// scale = max|x| / 127, code = nearest(x * (127 / max|x|)). A NaN or infinity makes the block's scale, hence
// the row's results, NaN or infinite; a block of zeros, or too small to divide by, is zero. What is left of x
// * (127 / max|x|), at most a half, times 254 and to nearest are the remainder's codes, of scale / 254.
constexpr int kGroupBlocks = 8, kGroupCols = kGroupBlocks * kBlockCols;
constexpr int32_t kLeast = 0x03800000, kInfinite = 0x7F800000;  // bits of 2^-120, of infinity

// Eight blocks.
struct IntegerGroup {
  alignas(64) uint8_t codes[kGroupCols];
  alignas(32) float scales[kGroupBlocks];
  alignas(32) float sums[kGroupBlocks];             // scale * sum of a block's codes
  alignas(32) int16_t code_sums[2 * kGroupBlocks];  // of 16 codes
};

#if defined(__AVX512BW__)

// The largest magnitudes of eight blocks, as bits (so that a NaN or infinity wins), in their order. Halves of
// two vectors meet until a vector holds one element of each block.
KVASIR_INLINE __m256i largest_magnitudes(const float* const (&x)[kGroupBlocks]) {
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i m[kGroupBlocks];
  for (int b = 0; b < kGroupBlocks; ++b)
    m[b] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x[b]), mask),
                            _mm512_and_si512(_mm512_loadu_si512(x[b] + 16), mask));
  // Blocks b and b + 4 in halves; then b, b + 2, b + 4, b + 6 in quarters.
  for (int b = 0; b < 4; ++b)
    m[b] = _mm512_max_epi32(_mm512_shuffle_i64x2(m[b], m[b + 4], 0x44),
                            _mm512_shuffle_i64x2(m[b], m[b + 4], 0xEE));
  for (int b = 0; b < 2; ++b)
    m[b] = _mm512_max_epi32(_mm512_shuffle_i64x2(m[b], m[b + 2], 0x88),
                            _mm512_shuffle_i64x2(m[b], m[b + 2], 0xDD));
  // Quarters are of blocks 0 4 2 6 and 1 5 3 7; now pairs of elements of 0 1 | 4 5 | 2 3 | 6 7.
  __m512i all = _mm512_max_epi32(_mm512_unpacklo_epi64(m[0], m[1]), _mm512_unpackhi_epi64(m[0], m[1]));
  all = _mm512_max_epi32(all, _mm512_srli_epi64(all, 32));
  const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, all));
}

// Sums of 16 codes each, of eight blocks.
KVASIR_INLINE __m256i sums_of_codes(const __m512i (&codes)[4]) {
  __m512i sum[4];
  for (int i = 0; i < 4; ++i)  // of eight codes plus 128
    sum[i] = _mm512_sad_epu8(_mm512_xor_si512(codes[i], _mm512_set1_epi8(-128)), _mm512_setzero_si512());
  const __m512i low = _mm512_add_epi64(_mm512_unpacklo_epi64(sum[0], sum[1]),
                                       _mm512_unpackhi_epi64(sum[0], sum[1])),
                high = _mm512_add_epi64(_mm512_unpacklo_epi64(sum[2], sum[3]),
                                        _mm512_unpackhi_epi64(sum[2], sum[3]));
  // 64-bit sums 0 4 1 5 2 6 3 7 and 8 12 9 13 ...; each fits 16 bits.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 16, 20, 24, 28, 18, 22, 26, 30);
  const __m512i words = _mm512_permutex2var_epi32(low, order, high);
  return _mm512_cvtepi32_epi16(_mm512_sub_epi32(words, _mm512_set1_epi32(16 * 128)));
}

struct GroupCodes {
  __m512i bytes[4];
  KVASIR_INLINE void put(IntegerGroup& out, __m256 scales) const {
    for (int i = 0; i < 4; ++i) _mm512_store_si512(out.codes + 64 * i, bytes[i]);
    const __m256i sums = sums_of_codes(bytes);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.code_sums), sums);
    _mm256_store_ps(out.scales, scales);
    _mm256_store_ps(out.sums,
                    _mm256_mul_ps(scales, _mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)))));
  }
};

// 64 whole numbers as bytes in their order.
KVASIR_INLINE __m512i to_bytes(const __m512i (&x)[4]) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(
      order, _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3])));
}

// False, and nothing done, if a value is infinite or NaN.
template <bool kRest>
KVASIR_INLINE bool round_group(const float* const (&x)[kGroupBlocks], IntegerGroup& out, IntegerGroup& rest) {
  const __m256i most = largest_magnitudes(x);
  if (_mm256_cmpge_epi32_mask(most, _mm256_set1_epi32(kInfinite)) != 0) return false;
  const __mmask8 some = _mm256_cmpge_epi32_mask(most, _mm256_set1_epi32(kLeast));
  const __m256 top = _mm256_set1_ps(127.0f), largest = _mm256_castsi256_ps(most);
  const __m256 scales = _mm256_maskz_div_ps(some, largest, top);
  alignas(32) float inverse[kGroupBlocks];
  _mm256_store_ps(inverse, _mm256_maskz_div_ps(some, top, largest));
  GroupCodes codes, fine;
  for (int i = 0; i < 4; ++i) {
    __m512i whole[4], left[4];
    for (int j = 0; j < 4; ++j) {
      const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x[2 * i + j / 2] + 16 * (j % 2)),
                                         _mm512_set1_ps(inverse[2 * i + j / 2]));
      whole[j] = _mm512_cvtps_epi32(value);
      if constexpr (kRest)
        left[j] = _mm512_cvtps_epi32(
            _mm512_mul_ps(_mm512_sub_ps(value, _mm512_cvtepi32_ps(whole[j])), _mm512_set1_ps(254.0f)));
    }
    codes.bytes[i] = to_bytes(whole);
    if constexpr (kRest) fine.bytes[i] = to_bytes(left);
  }
  codes.put(out, scales);
  if constexpr (kRest) fine.put(rest, _mm256_mul_ps(scales, _mm256_set1_ps(1.0f / 254.0f)));
  return true;
}

#else

template <bool kRest>
KVASIR_INLINE bool round_group(const float* const (&)[kGroupBlocks], IntegerGroup&, IntegerGroup&) {
  return false;
}

#endif

// Rounds to the nearest whole number, ties to even, for |x| <= 127: the sum's ulp is 1.
KVASIR_INLINE Ints to_nearest(Floats x) {
  return sub(as_ints(add(x, set1(12582912.0f))), set1(0x4B400000));
}

// The bits of the largest magnitude in a block of 32.
KVASIR_INLINE int32_t largest_magnitude(Floats x0, Floats x1) {
  const Ints mask = set1(0x7FFFFFFF);
  alignas(64) int32_t values[16];
  store(values, max(bit_and(as_ints(x0), mask), bit_and(as_ints(x1), mask)));
  int32_t most = 0;
  for (int i = 0; i < 16; ++i) most = most > values[i] ? most : values[i];
  return most;
}

// Sixteen codes to bytes; their sum.
KVASIR_INLINE int put_codes(uint8_t* out, Ints codes) {
  alignas(64) int32_t values[16];
  store(values, codes);
  int sum = 0;
  for (int i = 0; i < 16; ++i) {
    sum += values[i];
    out[i] = static_cast<uint8_t>(values[i]);
  }
  return sum;
}

KVASIR_INLINE void put_sums(IntegerGroup& out, int b, float scale, int sum0, int sum1) {
  out.scales[b] = scale;
  out.sums[b] = scale * static_cast<float>(sum0 + sum1);
  out.code_sums[2 * b] = static_cast<int16_t>(sum0);
  out.code_sums[2 * b + 1] = static_cast<int16_t>(sum1);
}

// The first `count` blocks, of any values, on any level.
template <bool kRest>
void round_any_group(const float* const (&x)[kGroupBlocks], int count, IntegerGroup& out,
                     IntegerGroup& rest) {
  alignas(64) int32_t most[16] = {};
  for (int b = 0; b < count; ++b) most[b] = largest_magnitude(load(x[b]), load(x[b] + 16));
  const Floats amax = as_floats(load(most));
  alignas(64) float inverse[16], scale[16];
  store(inverse, divide(set1(127.0f), amax));
  store(scale, divide(amax, set1(127.0f)));
  for (int b = 0; b < count; ++b) {
    if (most[b] < kLeast) scale[b] = inverse[b] = 0.0f;
    int sums[2] = {}, fine_sums[2] = {};
    for (int half = 0; half < 2; ++half) {
      const int at = kBlockCols * b + 16 * half;
      Ints codes = set1(0), fine = set1(0);
      if (most[b] < kInfinite) {
        const Floats value = mul(load(x[b] + 16 * half), set1(inverse[b]));
        codes = to_nearest(value);
        if (kRest) fine = to_nearest(mul(sub(value, to_float(codes)), set1(254.0f)));
      }
      sums[half] = put_codes(out.codes + at, codes);
      if (kRest) fine_sums[half] = put_codes(rest.codes + at, fine);
    }
    put_sums(out, b, scale[b], sums[0], sums[1]);
    if (kRest)
      put_sums(rest, b, most[b] >= kInfinite ? 0.0f : scale[b] * (1.0f / 254.0f), fine_sums[0], fine_sums[1]);
  }
}

// Rounds blocks, eight at a time, of however many rows they are.
template <bool kRest>
class IntegerRounder {
 public:
  explicit IntegerRounder(int64_t cols)
      : scales_(int8_scales_offset(cols)),
        sums_(int8_sums_offset(cols)),
        code_sums_(int8_code_sums_offset(cols)) {}

  // `count` values, 32 but for a row's last block.
  void add(const float* x, int count, uint8_t* out, uint8_t* rest, int64_t block) {
    if (count < kBlockCols) {
      float* padded = padded_[count_];
      __builtin_memset(padded, 0, sizeof padded_[0]);
      __builtin_memcpy(padded, x, static_cast<size_t>(count) * 4);
      x = padded;
    }
    x_[count_] = x;
    out_[count_] = out;
    rest_[count_] = rest;
    block_[count_] = block;
    if (++count_ == kGroupBlocks) finish();
  }
  // A block behind the last column: zeros that have no codes.
  void add_surplus(uint8_t* out, uint8_t* rest, int64_t block) const {
    const auto clear = [&](uint8_t* row) {
      for (const size_t facts : {scales_, sums_, code_sums_}) __builtin_memset(row + facts + 4 * block, 0, 4);
    };
    clear(out);
    if (kRest) clear(rest);
  }
  void finish() {
    if (count_ == 0) return;
    alignas(64) static constexpr float kNothing[kBlockCols] = {};
    for (int b = count_; b < kGroupBlocks; ++b) x_[b] = kNothing;
    IntegerGroup group, remainder;
    if (!round_group<kRest>(x_, group, remainder)) round_any_group<kRest>(x_, count_, group, remainder);
    if (count_ == kGroupBlocks && out_[7] == out_[0] && block_[7] == block_[0] + 7) {
      put<kGroupBlocks>(group, 0, out_[0]);
      if (kRest) put<kGroupBlocks>(remainder, 0, rest_[0]);
    } else {
      for (int b = 0; b < count_; ++b) {
        put<1>(group, b, out_[b]);
        if (kRest) put<1>(remainder, b, rest_[b]);
      }
    }
    count_ = 0;
  }

 private:
  // Blocks [b, b + kCount), which follow each other in a row.
  template <int kCount>
  KVASIR_INLINE void put(const IntegerGroup& group, int b, uint8_t* row) const {
    const auto at = static_cast<size_t>(block_[b]);
    __builtin_memcpy(row + kBlockCols * at, group.codes + kBlockCols * b, kBlockCols * kCount);
    __builtin_memcpy(row + scales_ + 4 * at, group.scales + b, 4 * kCount);
    __builtin_memcpy(row + sums_ + 4 * at, group.sums + b, 4 * kCount);
    __builtin_memcpy(row + code_sums_ + 4 * at, group.code_sums + 2 * b, 4 * kCount);
  }

  size_t scales_, sums_, code_sums_;  // where a row's arrays begin
  int count_ = 0;
  const float* x_[kGroupBlocks];
  uint8_t* out_[kGroupBlocks];
  uint8_t* rest_[kGroupBlocks];
  int64_t block_[kGroupBlocks];
  alignas(64) float padded_[kGroupBlocks][kBlockCols];
};

template <bool kRest>
KVASIR_INLINE void prepare_integers(const PrepareCall& call) {
  // The row's end brings the surplus blocks along.
  const int64_t begin = call.begin / kBlockCols, blocks = prepared_cols(call.end) / kBlockCols,
                all_blocks = call.end == call.cols ? prepared_blocks(call.cols) : blocks;
  IntegerRounder<kRest> rounder(call.cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const float* x = call.input + row * call.stride;
    uint8_t* out = call.out + static_cast<size_t>(row) * call.out_stride;
    uint8_t* rest = out + call.out_stride / 2;
    for (int64_t block = begin; block < blocks; ++block, x += kBlockCols)
      rounder.add(x, static_cast<int>(smaller(kBlockCols, call.end - block * kBlockCols)), out, rest, block);
    for (int64_t block = blocks; block < all_blocks; ++block) rounder.add_surplus(out, rest, block);
  }
  rounder.finish();
}
