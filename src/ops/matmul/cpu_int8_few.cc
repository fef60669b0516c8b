// int8 activations, few rows (decode, small batches): one pass over the packed panel at the speed of memory.
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

#include "ops/matmul/tiles.h"

using Direct = void (*)(const uint8_t* p, ptrdiff_t ahead, const CodeChunk& w, const HalfScales& halves,
                        int blocks, const Int8Row& x, int offset, float* acc);

#if defined(__AVX512F__)
constexpr int kMostRows = 8;
#else
constexpr int kMostRows = 2;
#endif

struct Directs {
  Direct eight, four, two, one;
};
template <int kBits, Table kTable, int kSub, bool kMinima>
constexpr Directs make() {
  constexpr bool kWide = kBits == 8 || kTable == Table::iq4;
  return {int8_direct<kMostRows, kBits, kTable, kSub, kMinima, kWide>,
          int8_direct < kMostRows < 4 ? kMostRows : 4,
          kBits,
          kTable,
          kSub,
          kMinima,
          kWide >,
          int8_direct<2, kBits, kTable, kSub, kMinima, kWide>,
          int8_direct<1, kBits, kTable, kSub, kMinima, kWide>};
}

constexpr Table kNone = Table::none;
constexpr Directs kCodes4 = make<4, kNone, 32, false>(), kCodes4Min = make<4, kNone, 32, true>(),
                  kCodes5 = make<5, kNone, 32, false>(), kCodes5Min = make<5, kNone, 32, true>(),
                  kCodes6Sub16 = make<6, kNone, 16, false>(), kCodes8 = make<8, kNone, 32, false>(),
                  kCodes8Min = make<8, kNone, 32, true>(), kCodes3Sub16 = make<3, kNone, 16, false>(),
                  kCodes2Sub16Min = make<2, kNone, 16, true>(), kCodes2Min = make<2, kNone, 32, true>(),
                  kCodes3Min = make<3, kNone, 32, true>(), kCodes6Min = make<6, kNone, 32, true>(),
                  kIq4 = make<4, Table::iq4, 32, false>(), kE2m1 = make<4, Table::e2m1_doubled, 32, false>(),
                  kE2m1Sub16 = make<4, Table::e2m1_doubled, 16, false>();

const Directs* find(const ComputeLayout& layout) {
  const bool sub16 = layout.group == 16;
  if (layout.codes == CodeKind::table)
    return layout.table == Table::iq4 ? &kIq4 : sub16 ? &kE2m1Sub16 : &kE2m1;
  if (layout.codes != CodeKind::codes) return nullptr;
  switch (layout.bits) {
    case 2:
      return !layout.minima ? nullptr : sub16 ? &kCodes2Sub16Min : &kCodes2Min;
    case 3:
      return sub16 ? &kCodes3Sub16 : layout.minima ? &kCodes3Min : nullptr;
    case 4:
      return layout.minima ? &kCodes4Min : &kCodes4;
    case 5:
      return layout.minima ? &kCodes5Min : &kCodes5;
    case 6:
      return sub16 ? &kCodes6Sub16 : layout.minima ? &kCodes6Min : nullptr;
    case 8:
      return layout.minima ? &kCodes8Min : &kCodes8;
    default:
      return nullptr;
  }
}

}  // namespace

// acc [rows][16] = the panel times `rows` prepared rows; false when the layout has no such kernel.
bool multiply_few_rows(const KernelCall& call, int64_t panel, const uint8_t* x, int rows, float* acc) {
  const KernelWeight& weight = call.weight;
  const ComputeLayout& layout = weight.layout;
  const Directs* direct = find(layout);
  if (direct == nullptr) return false;
  const int offset = static_cast<int>(layout.offset) - (kSignedWide && wide_codes(layout) ? 128 : 0);
  const size_t scales = int8_scales_offset(call.cols), sums = int8_sums_offset(call.cols),
               code_sums = int8_code_sums_offset(call.cols);
  const uint8_t* data = weight.data + static_cast<size_t>(panel) * weight.panel_stride;
  __builtin_memset(acc, 0, static_cast<size_t>(rows) * 64);
  CodeChunk chunk;
  const bool halves_only = layout.scales == ScaleKind::f16 && !layout.zeros && layout.group % kBlockCols == 0;
  HalfScales halves;
  while (halves_only && kBlockCols << halves.shift < layout.group) ++halves.shift;
  for (int64_t col = 0; col < weight.cols; col += kChunkCols, data += weight.chunk_stride) {
    const int cols = static_cast<int>(smaller(kChunkCols, weight.cols - col));
    const size_t codes = code_bytes_of(weight, cols);
    const size_t rest = weight.panel_stride - static_cast<size_t>(col / kChunkCols) * weight.chunk_stride;
    const size_t bytes = rest < weight.chunk_stride ? rest : weight.chunk_stride;
    // Scales are read before the codes in front of them: those of the next chunk are needed first.
    ptrdiff_t ahead = kInTwoSteps;
    if (call.one_request) {
      ahead = static_cast<ptrdiff_t>(kOneAheadOfFew + bytes - codes);
      for (size_t line = 0; line < bytes - codes; line += 64)
        __builtin_prefetch(data + kOneAheadOfFew + line, 0, 3);
    } else {
      for (size_t line = codes; line < weight.chunk_stride; line += 64) {
        __builtin_prefetch(data + line + kFarAhead, 0, 2);
        __builtin_prefetch(data + line + weight.chunk_stride, 0, 3);
      }
    }
    if (halves_only) {
      halves.scales = data + codes;
      halves.minima = halves.scales + static_cast<size_t>((cols + layout.group - 1) / layout.group) * 32;
    } else {
      unpack_scales(weight, data, cols, chunk);
    }
    const auto block = static_cast<size_t>(col / kBlockCols);
    Int8Row input{x + col, x + scales + 4 * block, x + sums + 4 * block, x + code_sums + 4 * block,
                  call.input_stride};
    for (int r = 0; r < rows;) {
      const int left = rows - r;
      const int step = left >= kMostRows ? kMostRows : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const Direct tile = step == kMostRows ? direct->eight
                          : step == 4       ? direct->four
                          : step == 2       ? direct->two
                                            : direct->one;
      tile(data, r > 0 ? 0 : ahead, chunk, halves, cols / kBlockCols, input, offset, acc + 16 * r);
      input.advance(step);
      r += step;
    }
  }
  return true;
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
