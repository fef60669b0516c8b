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

void finish_unit(const KernelCall& call, int64_t unit, int64_t row_begin, int64_t rows, const float* acc,
                 const float* acc_up) {
  const int64_t col = unit * kPanelRows;
  const int cols = static_cast<int>(smaller(kPanelRows, call.out_cols - col));
  // Operands of the last, partial panel are gathered into whole vectors.
  alignas(64) float bias[kPanelRows] = {}, bias_up[kPanelRows] = {}, buffer[kPanelRows] = {}, up[kPanelRows];
  if (call.bias != nullptr) {
    for (int i = 0; i < cols; ++i) bias[i] = call.bias[col + i];
    if (acc_up != nullptr && call.epilogue != Epilogue::none)
      for (int i = 0; i < cols; ++i) bias_up[i] = call.bias_up[col + i];
  }
  const Floats tensor_scale = set1(call.tensor_scale);
  const bool scaled = call.tensor_scale != 1.0f;
  for (int64_t r = 0; r < rows; ++r) {
    Floats value = load(acc + 16 * r);
    if (scaled) value = mul(value, tensor_scale);
    if (call.bias != nullptr) value = add(value, load(bias));
    if (call.epilogue != Epilogue::none) {
      Floats second = load(acc_up + 16 * r);
      if (scaled) second = mul(second, tensor_scale);
      if (call.bias != nullptr) second = add(second, load(bias_up));
      store(buffer, value);
      store(up, second);
      call.activation->apply(
          call.epilogue == Epilogue::swiglu ? ActivationFunction::silu : ActivationFunction::gelu_tanh, {},
          buffer, up, buffer, kPanelRows);
      value = load(buffer);
    }
    float* out = call.out + (row_begin + r) * call.out_stride + col;
    if (call.residual != nullptr) {
      const float* residual = call.residual + (row_begin + r) * call.residual_stride + col;
      if (cols == kPanelRows) {
        value = add(value, load(residual));
      } else {
        for (int i = 0; i < cols; ++i) buffer[i] = residual[i];
        value = add(value, load(buffer));
      }
    }
    if (cols == kPanelRows) {
      store(out, value);
    } else {
      store(buffer, value);
      for (int i = 0; i < cols; ++i) out[i] = buffer[i];
    }
  }
}

namespace {

// To bf16, nearest, ties to even; NaN stays a quiet NaN (base/dtype.h).
inline uint16_t round_bf16(uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

void prepare_bf16(const float* input, int64_t cols, uint8_t* out) {
  auto* codes = reinterpret_cast<uint16_t*>(out);
  const auto* bits = reinterpret_cast<const uint32_t*>(input);
  for (int64_t c = 0; c < cols; ++c) codes[c] = round_bf16(bits[c]);
  for (int64_t c = cols; c < prepared_cols(cols); ++c) codes[c] = 0;
}

// Rounds to the nearest whole number, ties to even, for |x| <= 127: the sum's ulp is 1.
KVASIR_INLINE Ints to_nearest(Floats x) {
  return sub(as_ints(add(x, set1(12582912.0f))), set1(0x4B400000));
}

// scale = max|x| / 127, code = nearest(x * (127 / max|x|)). The largest magnitude is found on the bits, so
// that a NaN or infinity wins and makes the block's scale, hence the row's results, NaN or infinite.
void prepare_int8(const float* input, int64_t cols, uint8_t* out) {
  const int64_t blocks = prepared_cols(cols) / kBlockCols, all_blocks = prepared_blocks(cols);
  uint8_t* codes = out;
  auto* scales = reinterpret_cast<float*>(out + int8_scales_offset(cols));
  auto* sums = reinterpret_cast<float*>(out + int8_sums_offset(cols));
  auto* code_sums = reinterpret_cast<int16_t*>(out + int8_code_sums_offset(cols));
  alignas(64) float padded[kBlockCols];
  for (int64_t b = 0; b < blocks; ++b) {
    const float* x = input + kBlockCols * b;
    if (kBlockCols * (b + 1) > cols) {
      const int64_t left = cols - kBlockCols * b;
      for (int i = 0; i < kBlockCols; ++i) padded[i] = i < left ? x[i] : 0.0f;
      x = padded;
    }
    const Floats x0 = load(x), x1 = load(x + 16);
    const Ints magnitude_mask = set1(0x7FFFFFFF);
    alignas(64) int32_t m0[16], m1[16];
    store(m0, bit_and(as_ints(x0), magnitude_mask));
    store(m1, bit_and(as_ints(x1), magnitude_mask));
    int32_t most = 0;
    for (int i = 0; i < 16; ++i) {
      const int32_t m = m0[i] > m1[i] ? m0[i] : m1[i];
      most = most > m ? most : m;
    }
    float amax;
    __builtin_memcpy(&amax, &most, 4);
    float inverse = 127.0f / amax;
    float scale = amax / 127.0f;
    if (!(amax > 0x1p-120f)) {  // zero, too small to divide by, or NaN
      inverse = 0.0f;
      if (amax == amax) scale = 0.0f;
    }
    if (most >= 0x7F800000) inverse = 0.0f;
    alignas(64) int32_t c0[16], c1[16];
    const Floats inverses = set1(inverse);
    const bool finite = most < 0x7F800000;
    store(c0, finite ? to_nearest(mul(x0, inverses)) : set1(0));
    store(c1, finite ? to_nearest(mul(x1, inverses)) : set1(0));
    int sum0 = 0, sum1 = 0;
    for (int i = 0; i < 16; ++i) {
      sum0 += c0[i];
      sum1 += c1[i];
      codes[kBlockCols * b + i] = static_cast<uint8_t>(c0[i]);
      codes[kBlockCols * b + 16 + i] = static_cast<uint8_t>(c1[i]);
    }
    scales[b] = scale;
    sums[b] = scale * static_cast<float>(sum0 + sum1);
    code_sums[2 * b] = static_cast<int16_t>(sum0);
    code_sums[2 * b + 1] = static_cast<int16_t>(sum1);
  }
  for (int64_t b = blocks; b < all_blocks; ++b) {
    scales[b] = sums[b] = 0.0f;
    code_sums[2 * b] = code_sums[2 * b + 1] = 0;
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const MatmulKernels KVASIR_ISA_SYMBOL(matmul_kernels);
const MatmulKernels KVASIR_ISA_SYMBOL(matmul_kernels) = {
    KVASIR_ISA_NAMESPACE::matmul_f32,   KVASIR_ISA_NAMESPACE::matmul_bf16,  KVASIR_ISA_NAMESPACE::matmul_int8,
    KVASIR_ISA_NAMESPACE::prepare_bf16, KVASIR_ISA_NAMESPACE::prepare_int8, KVASIR_ISA_NAMESPACE::unpack_lane,
};

}  // namespace kvasir::ops
