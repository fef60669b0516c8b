// What this machine can do at most, measured: streaming reads, and the dot-product instructions of each
// activation mode. Every speed that kvasir reports is a fraction of these, taken in the same run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "base/thread_team.h"

namespace kvasir::ops {

enum class Arithmetic : uint8_t { f32, bf16, int8 };

struct LimitKernels {
  // Runs `loops` rounds of independent multiply-adds from registers and returns the operations done (a
  // multiply-add is two). A level without an instruction for the type does what its matrix products would:
  // f32 arithmetic for bf16, 16-bit multiply-adds for int8.
  double (*f32)(int64_t loops);
  double (*bf16)(int64_t loops);
  double (*int8)(int64_t loops);
  // Reads `bytes` (a multiple of 512) once, with the widest loads; the result depends on all of them.
  uint64_t (*read)(const std::byte* data, size_t bytes);
};

KVASIR_KERNEL_TABLE(LimitKernels, limit_kernels)

// Operations per second of the whole team. Best of several short runs.
double measure_arithmetic(ThreadTeam& team, IsaLevel isa, Arithmetic arithmetic);
// Bytes per second of the whole team, over a buffer that no cache holds (256 MB a team, freed afterwards).
double measure_read_bandwidth(ThreadTeam& team, IsaLevel isa);

}  // namespace kvasir::ops
