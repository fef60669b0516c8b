#include "ops/matmul/matmul.h"

#include "base/error.h"
#include "base/thread_team.h"
#include "formats/iq_grids.h"
#include "ops/activation/activation.h"
#include "ops/matmul/kernels.h"

namespace kvasir::ops {
namespace {

// Rows are shared out among the members only when there are many of them and too few panels to go round.
constexpr int64_t kRowGrain = 16;

}  // namespace

int64_t out_columns(const Matmul& product) {
  const int64_t rows = product.weight_end > product.weight_begin ? product.weight_end - product.weight_begin
                                                                 : product.weight->rows();
  return product.epilogue == Epilogue::none ? rows : rows / 2;
}

namespace {

const int8_t* grid_table(const ComputeLayout& layout) {
  if (layout.codes != CodeKind::grid) return nullptr;
  switch (layout.grid) {
    case formats::StorageFormat::iq2_xxs:
      return formats::kIq2XxsGrid[0].data();
    case formats::StorageFormat::iq2_xs:
      return formats::kIq2XsGrid[0].data();
    case formats::StorageFormat::iq2_s:
      return formats::kIq2SGrid[0].data();
    case formats::StorageFormat::iq3_xxs:
      return formats::kIq3XxsGrid[0].data();
    case formats::StorageFormat::iq3_s:
      return formats::kIq3SGrid[0].data();
    default:
      return formats::kIq1Grid[0].data();
  }
}

}  // namespace

KernelWeight kernel_weight(const PackedMatrix& matrix) {
  KernelWeight weight;
  weight.layout = matrix.layout();
  weight.data = reinterpret_cast<const uint8_t*>(matrix.panel(0));
  weight.panel_stride = matrix.panel_stride();
  weight.chunk_stride = chunk_bytes(matrix.layout(), kChunkCols);
  weight.cols = matrix.padded_columns();
  weight.chunk_codes = code_bytes(matrix.layout(), kChunkCols);
  weight.grid = grid_table(matrix.layout());
  return weight;
}

int64_t matmul_units(const Matmul& product) {
  return (out_columns(product) + kPanelRows - 1) / kPanelRows;
}

namespace {

bool is_amd() {
#if defined(__x86_64__)
  static const bool amd = __builtin_cpu_is("amd");
  return amd;
#else
  return false;
#endif
}

// Units [begin, end) of input rows [row_begin, row_end).
void multiply(const Matmul& product, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) {
  const PackedMatrix& matrix = *product.weight;
  const MatmulKernels& kernels = matmul_kernels(product.isa);
  KernelCall call;
  call.weight = kernel_weight(matrix);
  call.weight.data += static_cast<size_t>(product.weight_begin / kPanelRows) * call.weight.panel_stride;
  call.input = reinterpret_cast<const uint8_t*>(product.input.data);
  call.cols = product.input.cols;
  call.out = product.out;
  call.out_stride = product.out_stride;
  call.out_first = product.out_first;
  call.bias = product.bias == nullptr ? nullptr : product.bias + product.weight_begin;
  call.bias_up = product.bias == nullptr ? nullptr : product.bias + matrix.rows() / 2;
  call.residual = product.residual;
  call.residual_stride = product.residual_stride;
  call.tensor_scale = matrix.tensor_scale();
  call.tensor_scale_up = matrix.tensor_scale(1);
  call.out_cols = out_columns(product);
  call.epilogue = product.epilogue;
  call.activation = &activation_kernels(product.isa);
  call.one_request = is_amd();

  const MatmulFunction function = product.input.mode == ActivationMode::f32    ? kernels.f32
                                  : product.input.mode == ActivationMode::bf16 ? kernels.bf16
                                                                               : kernels.int8;
  const auto with_planes = [&](int planes, int64_t from, int64_t to) {
    if (from >= to) return;
    call.planes = planes;
    call.input_stride = product.input.stride / static_cast<size_t>(planes);
    function(call, from, to, row_begin * planes, row_end * planes);
  };
  const int64_t coarse = (product.coarse_rows + kPanelRows - 1) / kPanelRows;
  with_planes(1, begin, coarse < end ? coarse : end);
  with_planes(product.input.mode == ActivationMode::int16 ? 2 : 1, begin > coarse ? begin : coarse, end);
}

}  // namespace

void matmul_piece(const Matmul& product, int64_t begin, int64_t end) {
  multiply(product, begin, end, 0, product.input.rows);
}

void matmul(const Matmul& product, int member, int members) {
  const int64_t units = matmul_units(product), rows = product.input.rows;
  if (units < 4 * members && rows >= kRowGrain * members) {
    const WorkRange share = split_work(rows, members, member, kRowGrain);
    if (share.begin < share.end) multiply(product, 0, units, share.begin, share.end);
    return;
  }
  const WorkRange share = split_work(units, members, member);
  if (share.begin < share.end && rows > 0) multiply(product, share.begin, share.end, 0, rows);
}

void check_matmul(const Matmul& product) {
  KVASIR_CHECK(product.weight != nullptr);
  const PackedMatrix& weight = *product.weight;
  KVASIR_CHECK_MSG(product.input.cols == weight.cols(), "{}: {} columns, input has {}", weight.name(),
                   weight.cols(), product.input.cols);
  if (!supports(product.input.mode, weight.format()))
    throw_error(ErrorCode::unsupported,
                "{}: {} weights have no integer form, so activations cannot be {}: use f32 or bf16",
                printable(weight.name()), formats::name(weight.format()), name(product.input.mode));
  KVASIR_CHECK((product.epilogue != Epilogue::none) == (weight.order() == PartOrder::interleaved));
  KVASIR_CHECK(product.weight_begin % kPanelRows == 0 && product.weight_begin >= 0 &&
               product.weight_end <= weight.rows());
  KVASIR_CHECK(product.weight_end % kPanelRows == 0 || product.weight_end == weight.rows());
  if (product.weight_end > 0) KVASIR_CHECK(weight.order() == PartOrder::stacked);
  KVASIR_CHECK(product.coarse_rows == 0 ||
               (product.input.mode == ActivationMode::int16 && weight.order() == PartOrder::stacked &&
                (product.coarse_rows % kPanelRows == 0 || product.coarse_rows == weight.rows())));
}

void prepare_activations(ActivationMode mode, const float* input, int64_t stride, int64_t cols, int64_t begin,
                         int64_t end, std::byte* out, size_t out_stride, IsaLevel isa) {
  prepare_columns(mode, input + begin * stride, stride, cols, 0, cols, end - begin,
                  out + static_cast<size_t>(begin) * out_stride, out_stride, isa);
}

void prepare_columns(ActivationMode mode, const float* input, int64_t stride, int64_t cols, int64_t col_begin,
                     int64_t col_end, int64_t rows, std::byte* out, size_t out_stride, IsaLevel isa) {
  const MatmulKernels& kernels = matmul_kernels(isa);
  const auto prepare = mode == ActivationMode::bf16   ? kernels.prepare_bf16
                       : mode == ActivationMode::int8 ? kernels.prepare_int8
                                                      : kernels.prepare_int16;
  prepare({input, stride, rows, col_begin, col_end, cols, reinterpret_cast<uint8_t*>(out), out_stride});
}

}  // namespace kvasir::ops
