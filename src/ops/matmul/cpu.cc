// Preparing rows, finishing sums, and the table of this level's kernels.
#include "ops/activation/activation.h"
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

void matmul_f32(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                int64_t row_end);
void matmul_bf16(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                 int64_t row_end);
void matmul_int8(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                 int64_t row_end);
void unpack_lane(const KernelWeight& weight, int64_t panel, int lane, int64_t col_begin, int64_t count,
                 float* out);

void finish_unit(const KernelCall& call, int64_t unit, int64_t row_begin, int64_t rows, float* acc,
                 float* acc_up) {
  const int64_t col = unit * kPanelRows;
  const int cols = static_cast<int>(smaller(kPanelRows, call.out_cols - col));
  // One part's factor and bias; operands of the last, partial panel are gathered into whole vectors.
  const auto scale_and_shift = [&](float* sums, float tensor_scale, const float* part_bias, bool scaled) {
    if (!scaled && part_bias == nullptr) return;
    alignas(64) float bias[kPanelRows] = {};
    if (part_bias != nullptr)
      for (int i = 0; i < cols; ++i) bias[i] = part_bias[col + i];
    const Floats factor = set1(tensor_scale), shift = load(bias);
    for (int64_t r = 0; r < rows; ++r) {
      Floats value = load(sums + 16 * r);
      if (scaled) value = mul(value, factor);
      if (part_bias != nullptr) value = add(value, shift);
      store(sums + 16 * r, value);
    }
  };
  const bool scaled = call.tensor_scale != 1.0f || call.tensor_scale_up != 1.0f;
  scale_and_shift(acc, call.tensor_scale, call.bias, scaled);
  if (call.epilogue != Epilogue::none) {
    scale_and_shift(acc_up, call.tensor_scale_up, call.bias == nullptr ? nullptr : call.bias_up, scaled);
    call.activation->apply(
        call.epilogue == Epilogue::swiglu ? ActivationFunction::silu : ActivationFunction::gelu_tanh, {}, acc,
        acc_up, acc, rows * kPanelRows);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* out = call.out + (row_begin + r) * call.out_stride + (col - call.out_first);
    const float* residual =
        call.residual == nullptr ? nullptr : call.residual + (row_begin + r) * call.residual_stride + col;
    if (cols == kPanelRows) {
      Floats value = load(acc + 16 * r);
      if (residual != nullptr) value = add(value, load(residual));
      store(out, value);
    } else {
      for (int i = 0; i < cols; ++i)
        out[i] = residual != nullptr ? acc[16 * r + i] + residual[i] : acc[16 * r + i];
    }
  }
}

namespace {

// To bf16, nearest, ties to even; NaN stays a quiet NaN (base/dtype.h).
inline uint16_t round_bf16(uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

void prepare_bf16(const float* input, int64_t begin, int64_t end, int64_t cols, uint8_t* out) {
  auto* codes = reinterpret_cast<uint16_t*>(out);
  const auto* bits = reinterpret_cast<const uint32_t*>(input);
  for (int64_t c = begin; c < end; ++c) codes[c] = round_bf16(bits[c - begin]);
  if (end == cols)
    for (int64_t c = cols; c < prepared_cols(cols); ++c) codes[c] = 0;
}

// Rounds to the nearest whole number, ties to even, for |x| <= 127: the sum's ulp is 1.
KVASIR_INLINE Ints to_nearest(Floats x) {
  return sub(as_ints(add(x, set1(12582912.0f))), set1(0x4B400000));
}

// The bits of the largest magnitude in each block of 32 of a row. Found on the bits, so that a NaN or
// infinity wins.
KVASIR_INLINE int32_t largest_magnitude(Floats x0, Floats x1) {
  const Ints mask = set1(0x7FFFFFFF);
  const Ints m = max(bit_and(as_ints(x0), mask), bit_and(as_ints(x1), mask));
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)m.v[0]);
#else
  alignas(64) int32_t values[16];
  store(values, m);
  int32_t most = 0;
  for (int i = 0; i < 16; ++i) most = most > values[i] ? most : values[i];
  return most;
#endif
}

// Sixteen codes to bytes; their sum.
KVASIR_INLINE int put_codes(uint8_t* out, Ints codes) {
#if defined(__AVX512F__)
  const __m512i wide = (__m512i)codes.v[0];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(wide));
  return _mm512_reduce_add_epi32(wide);
#else
  alignas(64) int32_t values[16];
  store(values, codes);
  int sum = 0;
  for (int i = 0; i < 16; ++i) {
    sum += values[i];
    out[i] = static_cast<uint8_t>(values[i]);
  }
  return sum;
#endif
}

struct Int8Arrays {
  uint8_t* codes;
  float* scales;
  float* sums;
  int16_t* code_sums;
};
Int8Arrays int8_arrays(uint8_t* row, int64_t cols) {
  return {row, reinterpret_cast<float*>(row + int8_scales_offset(cols)),
          reinterpret_cast<float*>(row + int8_sums_offset(cols)),
          reinterpret_cast<int16_t*>(row + int8_code_sums_offset(cols))};
}
KVASIR_INLINE void put_sums(const Int8Arrays& out, int64_t block, float scale, int sum0, int sum1) {
  out.scales[block] = scale;
  out.sums[block] = scale * static_cast<float>(sum0 + sum1);
  out.code_sums[2 * block] = static_cast<int16_t>(sum0);
  out.code_sums[2 * block + 1] = static_cast<int16_t>(sum1);
}

// scale = max|x| / 127, code = nearest(x * (127 / max|x|)). A NaN or infinity makes the block's scale, hence
// the row's results, NaN or infinite; a block of zeros, or too small to divide by, is zero. What is left of
// x * (127 / max|x|), at most a half, times 254 and to nearest are the remainder's codes, of scale / 254.
template <bool kRest>
KVASIR_INLINE void prepare_integers(const float* input, int64_t begin, int64_t end, int64_t cols,
                                    uint8_t* out, uint8_t* rest) {
  // The row's end brings the surplus blocks along.
  const int64_t begin_block = begin / kBlockCols, blocks = prepared_cols(end) / kBlockCols,
                all_blocks = end == cols ? prepared_blocks(cols) : blocks;
  const Int8Arrays to = int8_arrays(out, cols), fine = int8_arrays(kRest ? rest : out, cols);
  alignas(64) float last[kBlockCols] = {};
  const bool partial = end % kBlockCols != 0;
  if (partial)
    __builtin_memcpy(last, input + (blocks - 1 - begin_block) * kBlockCols,
                     static_cast<size_t>(end % kBlockCols) * 4);
  // Eight blocks at a time: magnitudes, one vector of divisions, codes.
  for (int64_t first = begin_block; first < all_blocks; first += 8) {
    const int count = first < blocks ? static_cast<int>(smaller(8, blocks - first)) : 0;
    const int count_all = static_cast<int>(smaller(8, all_blocks - first));
    const auto source = [&](int b) {
      return partial && first + b == blocks - 1 ? last : input + kBlockCols * (first + b - begin_block);
    };
    alignas(64) int32_t most[16] = {};
    for (int b = 0; b < count; ++b) most[b] = largest_magnitude(load(source(b)), load(source(b) + 16));
    const Floats amax = as_floats(load(most));
    alignas(64) float inverse[16], scale[16];
    store(inverse, divide(set1(127.0f), amax));
    store(scale, divide(amax, set1(127.0f)));
    for (int b = 0; b < count_all; ++b) {
      if (b >= count || most[b] < 0x03800000) scale[b] = inverse[b] = 0.0f;  // below 2^-120
      int sums[2] = {}, fine_sums[2] = {};
      const int64_t at = kBlockCols * (first + b);
      if (b < count) {
        if (most[b] >= 0x7F800000) {
          __builtin_memset(to.codes + at, 0, kBlockCols);
          if (kRest) __builtin_memset(fine.codes + at, 0, kBlockCols);
        } else {
          for (int half = 0; half < 2; ++half) {
            const Floats x = mul(load(source(b) + 16 * half), set1(inverse[b]));
            const Ints codes = to_nearest(x);
            sums[half] = put_codes(to.codes + at + 16 * half, codes);
            if (kRest)
              fine_sums[half] = put_codes(fine.codes + at + 16 * half,
                                          to_nearest(mul(sub(x, to_float(codes)), set1(254.0f))));
          }
        }
      }
      put_sums(to, first + b, scale[b], sums[0], sums[1]);
      if (kRest)
        put_sums(fine, first + b, most[b] >= 0x7F800000 ? 0.0f : scale[b] * (1.0f / 254.0f), fine_sums[0],
                 fine_sums[1]);
    }
  }
}

void prepare_int8(const float* input, int64_t begin, int64_t end, int64_t cols, uint8_t* out) {
  prepare_integers<false>(input, begin, end, cols, out, nullptr);
}
void prepare_int16(const float* input, int64_t begin, int64_t end, int64_t cols, uint8_t* out,
                   uint8_t* rest) {
  prepare_integers<true>(input, begin, end, cols, out, rest);
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const MatmulKernels KVASIR_ISA_SYMBOL(matmul_kernels);
const MatmulKernels KVASIR_ISA_SYMBOL(matmul_kernels) = {
    KVASIR_ISA_NAMESPACE::matmul_f32,   KVASIR_ISA_NAMESPACE::matmul_bf16,
    KVASIR_ISA_NAMESPACE::matmul_int8,  KVASIR_ISA_NAMESPACE::prepare_bf16,
    KVASIR_ISA_NAMESPACE::prepare_int8, KVASIR_ISA_NAMESPACE::prepare_int16,
    KVASIR_ISA_NAMESPACE::unpack_lane,
};

}  // namespace kvasir::ops
