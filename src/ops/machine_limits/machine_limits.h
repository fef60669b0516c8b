// What this machine can do at most, measured: streaming reads, and the dot-product instructions of each
// activation mode. Every speed that kvasir reports is a fraction of these, taken in the same run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "base/memory.h"
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

// Reading memory with the whole team, over a buffer that no cache holds (256 MB, held while this lives).
class ReadLimit {
 public:
  ReadLimit(ThreadTeam& team, IsaLevel isa);
  double pass();  // bytes per second of reading the buffer once

 private:
  ThreadTeam& team_;
  const LimitKernels& kernels_;
  Reservation buffer_;
};
// The dot products of one type with the whole team, from registers.
class ArithmeticLimit {
 public:
  ArithmeticLimit(ThreadTeam& team, IsaLevel isa, Arithmetic arithmetic);
  double pass();  // operations per second of a few milliseconds

 private:
  ThreadTeam& team_;
  double (*kernel_)(int64_t loops);
};

// Operations and bytes per second: the best of five passes.
double measure_arithmetic(ThreadTeam& team, IsaLevel isa, Arithmetic arithmetic);
double measure_read_bandwidth(ThreadTeam& team, IsaLevel isa);

}  // namespace kvasir::ops
