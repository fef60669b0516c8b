// The rewrite changes which ops run, never a bit of what they give.
#include "ops/norm_prepare/norm_prepare.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/matmul/matmul_op.h"
#include "ops/op_test_program.h"
#include "ops/rms_norm/rms_norm.h"

namespace kvasir::ops {
namespace {

using program::Axis;
using program::Program;
using program::ProgramBuilder;
using program::ValueId;

struct Recorded {
  ProgramBuilder builder;
  ValueId x, prepared;
};

Recorded record(int64_t width, ActivationMode mode, IsaLevel isa, const float* gain, float offset) {
  Recorded r;
  r.x = r.builder.input("x", Dtype::f32, Axis::tokens, {width});
  const ValueId normed = rms_norm(r.builder, r.x, {1, 1e-5f, offset, {{1, gain}}}, isa);
  r.prepared = prepare_activations(r.builder, normed, mode, isa);
  r.builder.output("prepared", r.prepared);
  return r;
}

std::vector<std::byte> run(Recorded r, const TestMatrix& x, int threads) {
  const int64_t rows = x.rows;
  const size_t stride = r.builder.at(r.prepared).stride;
  Program program = std::move(r.builder).plan({rows, rows, rows}, threads);
  Arena arena(program.workspace_bytes() + 64, nullptr, MemoryCategory::workspace);
  program.allocate(arena);
  const size_t in_stride = program.values()[static_cast<size_t>(r.x.index)].stride;
  std::vector<std::byte> memory(static_cast<size_t>(rows) * in_stride + 64);
  auto* in = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(in + static_cast<size_t>(row) * in_stride, x.values.data() + row * x.cols,
                static_cast<size_t>(x.cols) * sizeof(float));
  program.bind(r.x, in);
  ThreadTeam team(threads);
  program::CpuExecutor executor(team);
  program::StepState step;
  step.tokens = step.rows = static_cast<int32_t>(rows);
  executor.run(program, step);
  const std::byte* out = program.data(r.prepared);
  return {out, out + static_cast<size_t>(rows) * stride};
}

TEST(NormPrepare, SameBitsAsTheTwoOps) {
  for (IsaLevel isa : testable_levels())
    for (ActivationMode mode : {ActivationMode::bf16, ActivationMode::int8, ActivationMode::int16})
      for (int64_t width : {1, 31, 64, 100, 576, 2048})
        for (float offset : {0.0f, 1.0f}) {
          const TestMatrix x = TestMatrix::random(7, width, static_cast<uint32_t>(width), 3.0f);
          const TestMatrix gain = TestMatrix::random(1, width + 16, 7);
          const auto two = run(record(width, mode, isa, gain.values.data(), offset), x, 1);
          for (int threads : {1, 2, 3}) {
            Recorded fused = record(width, mode, isa, gain.values.data(), offset);
            ASSERT_EQ(fuse_norm_prepare(fused.builder), 1);
            ASSERT_EQ(fused.builder.ops().size(), 1u);
            EXPECT_EQ(fused.builder.ops()[0]->kind(), "rms_norm_prepare");
            EXPECT_EQ(run(std::move(fused), x, threads), two)
                << name(isa) << " " << name(mode) << " " << width << " threads " << threads;
          }
        }
}

// What is read and written once: rows of f32, and the rounded rows, of as many rows as the input's axis has.
TEST(NormPrepare, CostsWhatItsRowsTake) {
  for (Axis axis : {Axis::tokens, Axis::logits})
    for (ActivationMode mode : {ActivationMode::bf16, ActivationMode::int8, ActivationMode::int16}) {
      ProgramBuilder b;
      const ValueId x = b.input("x", Dtype::f32, axis, {64});
      const ValueId prepared =
          prepare_activations(b, rms_norm(b, x, {}, IsaLevel::generic), mode, IsaLevel::generic);
      b.output("prepared", prepared);
      ASSERT_EQ(fuse_norm_prepare(b), 1);
      const double rows = axis == Axis::tokens ? 5 : 2;
      const double row_bytes = static_cast<double>(b.at(prepared).inner[0]);
      const program::Counts counts{.tokens = 5, .rows = 3, .logits = 2};
      const program::OpCost cost = std::move(b).plan(counts, 1).cost(0, counts);
      EXPECT_EQ(cost.bytes, rows * (64 * 4 + row_bytes)) << name(mode);
      EXPECT_EQ(cost.operations, rows * 64 * 8) << name(mode);
      EXPECT_GE(row_bytes, 64 * (mode == ActivationMode::int8 ? 1 : 2)) << name(mode);
    }
}

TEST(NormPrepare, LeavesNormsAloneThatSomethingElseReads) {
  const IsaLevel isa = IsaLevel::generic;
  const auto fused = [&](auto&& use) {
    ProgramBuilder b;
    const ValueId x = b.input("x", Dtype::f32, Axis::tokens, {64});
    use(b, x);
    return fuse_norm_prepare(b);
  };
  const auto prepare = [&](ProgramBuilder& b, ValueId v, ActivationMode mode) {
    return prepare_activations(b, v, mode, isa);
  };
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // the normed rows are a result
              const ValueId n = rms_norm(b, x, {}, isa);
              prepare(b, n, ActivationMode::int8);
              b.output("n", n);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // two forms of them
              const ValueId n = rms_norm(b, x, {}, isa);
              prepare(b, n, ActivationMode::int8);
              prepare(b, n, ActivationMode::bf16);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // heads
              prepare(b, rms_norm(b, x, {4, 1e-5f, 0.0f, {}}, isa), ActivationMode::int8);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // a view of some of the columns
              const ValueId n = rms_norm(b, x, {}, isa);
              prepare(b, n, ActivationMode::int8);
              rms_norm(b, b.columns(n, "half", 0, {32}), {}, isa);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // one of each
              const ValueId n = rms_norm(b, x, {}, isa);
              prepare(b, n, ActivationMode::int8);
              b.output("n", n);
              prepare(b, rms_norm(b, x, {}, isa), ActivationMode::int8);
            }),
            1);
}

}  // namespace
}  // namespace kvasir::ops
