// For benchmarks: what a linear reads and multiplies by when its activations are int8, and a weight in memory
// as models have it.
#pragma once

#include "base/memory.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul_op.h"
#include "ops/matmul/random_weight.h"

namespace kvasir::ops {

inline LinearInput int8_input(program::ProgramBuilder& builder, program::ValueId x, IsaLevel isa) {
  LinearInput input;
  input.x = x;
  input.prepared[ActivationMode::int8] = prepare_activations(builder, x, ActivationMode::int8, isa);
  return input;
}

inline LinearPart int8_part(const PackedMatrix& weight) {
  LinearPart part;
  part.weight = &weight;
  part.mode = ActivationMode::int8;
  return part;
}

struct BenchWeight {
  BenchWeight(formats::StorageFormat format, int64_t rows, int64_t cols) {
    const RandomWeight source(format, rows, cols, 1);
    const size_t bytes = PackedMatrix::packed_bytes(source.source());
    arena = Arena(bytes, nullptr, MemoryCategory::weights);
    ThreadTeam team(1);
    matrix = PackedMatrix::pack(source.source(), {arena.allocate(bytes), bytes}, team);
  }
  Arena arena;
  PackedMatrix matrix;
};

}  // namespace kvasir::ops
