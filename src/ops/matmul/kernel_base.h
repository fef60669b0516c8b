// What the kernel sources of this folder share, compiled once per instruction-set level in its own namespace.
// No standard-library templates here: the linker could keep a copy compiled for a level that the machine
// lacks.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "ops/matmul/compute_layout.h"
#include "ops/matmul/kernels.h"
#include "ops/matmul/prepared_rows.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

#include "ops/matmul/simd.h"

// Rows of the input that are carried through a panel together: their sums rest in kRowBlock * 64 bytes.
inline constexpr int kRowBlock = 64;

KVASIR_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Bytes of the codes of a chunk (compute_layout.cc has the general form; a kernel meets only these).
KVASIR_INLINE size_t code_bytes_of(const ComputeLayout& layout, int cols) {
  if (layout.codes == CodeKind::trits) return 13 * 64;
  return static_cast<size_t>(cols) * kPanelRows * layout.bits / 8;
}

#include "ops/matmul/unpack.h"

// Sums of one unit (panel, or gate and up panels: acc_up) of `rows` rows to the output.
void finish_unit(const KernelCall& call, int64_t unit, int64_t row_begin, int64_t rows, const float* acc,
                 const float* acc_up);

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
