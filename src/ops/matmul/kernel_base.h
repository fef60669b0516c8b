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

// Rows of the input that are carried through a panel together: their codes and sums over one chunk, and the
// chunk, stay in the first-level cache.
inline constexpr int kRowBlock = 72;
// The same for int8: more rows share one unpacking of a chunk, and their sums may spill into the second
// level.
inline constexpr int kInt8RowBlock = 128;
// Up to this many rows codes go straight from the packed panel to the dot products, a panel at a time
// (kFewRows16: with two scales a block).
inline constexpr int kFewRows = 7, kFewRows16 = 8;
// Packed bytes that are read once are requested ahead of the block at work: far ahead into the second-level
// cache (memory's latency times a core's share of its bandwidth, and some), again shortly before into the
// first. Both together read at the speed of a bare load loop; one of them alone at 80 to 87% of it.
inline constexpr size_t kFarAhead = 16384, kNearAhead = 2048;
KVASIR_INLINE void request(const uint8_t* p) {
  __builtin_prefetch(p + kFarAhead, 0, 2);
  __builtin_prefetch(p + kNearAhead, 0, 3);
}
// Where one request a line is enough (KernelCall::one_request): into the first-level cache, every line once
// and in the order in which they lie, codes and scales alike; whole lines. Few rows are nearer to the speed
// of memory and want them later.
inline constexpr size_t kOneAhead = 10240, kOneAheadOfFew = 6656;
KVASIR_INLINE void request_chunk(const uint8_t* p, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) request(p + line);
}

KVASIR_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Bytes of the codes of a chunk of `cols` columns.
KVASIR_INLINE size_t code_bytes_of(const KernelWeight& weight, int cols) {
  return cols == kChunkCols ? weight.chunk_codes
                            : static_cast<size_t>(cols) * kPanelRows * weight.layout.bits / 8;
}

#include "ops/matmul/unpack.h"

// Sums of one unit (panel, or gate and up panels: acc_up) of `rows` rows, 16 each, to the output. The sums
// are used up.
void finish_unit(const KernelCall& call, int64_t unit, int64_t row_begin, int64_t rows, float* acc,
                 float* acc_up);

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
