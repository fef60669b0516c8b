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

void prepare_bf16(const PrepareCall& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    auto* codes = reinterpret_cast<uint16_t*>(call.out + static_cast<size_t>(row) * call.out_stride);
    const auto* bits = reinterpret_cast<const uint32_t*>(call.input + row * call.stride);
    for (int64_t c = call.begin; c < call.end; ++c) codes[c] = round_bf16(bits[c - call.begin]);
    if (call.end == call.cols)
      for (int64_t c = call.cols; c < prepared_cols(call.cols); ++c) codes[c] = 0;
  }
}

#include "ops/matmul/prepare_integers.h"

void prepare_int8(const PrepareCall& call) {
  prepare_integers<false>(call);
}
void prepare_int16(const PrepareCall& call) {
  prepare_integers<true>(call);
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
