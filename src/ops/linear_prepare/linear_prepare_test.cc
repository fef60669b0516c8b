// The rewrite changes which ops run, never a bit of what they give.
#include "ops/linear_prepare/linear_prepare.h"

#include <gtest/gtest.h>

#include "ops/linear/linear.h"
#include "ops/matmul/matmul_op.h"
#include "ops/matmul/weight_cases.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

using formats::StorageFormat;
using program::ProgramBuilder;
using program::ValueId;

constexpr int64_t kHidden = 96;

// gate and up of `inner` rows each, and a single matrix of as many.
struct Weights {
  explicit Weights(int64_t inner)
      : gate(StorageFormat::q4_0, inner, kHidden, 1),
        up(StorageFormat::q4_0, inner, kHidden, 2),
        parts{{gate.source(), {}, 0, 0}, {up.source(), {}, 0, 0}},
        memory(PackedMatrix::packed_bytes(parts, PartOrder::interleaved)),
        single(std::make_unique<PackedWeight>(gate.source(), team)) {
    gate_up = PackedMatrix::pack(parts, memory.span(), team, {PartOrder::interleaved, {}});
  }
  ThreadTeam team{1};
  RandomWeight gate, up;
  std::vector<PackPart> parts;
  AlignedBytes memory;
  PackedMatrix gate_up;
  std::unique_ptr<PackedWeight> single;
};

ValueId record(ProgramBuilder& b, ValueId x, const Weights& w, Epilogue epilogue, ActivationMode in,
               IsaLevel isa) {
  LinearInput input;
  input.x = x;
  if (in != ActivationMode::f32) input.prepared[in] = prepare_activations(b, x, in, isa);
  LinearPart part;
  part.weight = epilogue == Epilogue::none ? &w.single->matrix : &w.gate_up;
  part.mode = in;
  part.epilogue = epilogue;
  return linear(b, "activated", input, {part}, std::nullopt, isa);
}

TEST(LinearPrepare, SameBytesAsTheTwoOps) {
  for (const int64_t inner : {1, 24, 104, 800}) {
    const Weights weights(inner);
    for (const int64_t rows : {1, 5, 130})
      for (IsaLevel isa : testable_levels())
        for (const Epilogue epilogue : {Epilogue::none, Epilogue::swiglu, Epilogue::geglu})
          for (const ActivationMode in : {ActivationMode::f32, ActivationMode::int8})
            for (const ActivationMode out :
                 {ActivationMode::bf16, ActivationMode::int8, ActivationMode::int16}) {
              if (rows == 130 && (in == ActivationMode::f32 || isa != best_isa_level())) continue;
              const TestMatrix x = TestMatrix::random(rows, kHidden, static_cast<uint32_t>(inner));
              const auto run = [&](bool fuse, int threads) {
                TestProgram program(
                    {&x},
                    [&](ProgramBuilder& b, auto& ids) {
                      const ValueId y =
                          prepare_activations(b, record(b, ids[0], weights, epilogue, in, isa), out, isa);
                      if (fuse) {
                        b.output("prepared", y);
                        EXPECT_EQ(fuse_linear_prepare(b), 1);
                        EXPECT_EQ(b.ops().back()->kind(), "linear_prepare");
                      }
                      return y;
                    },
                    threads);
                program.run();
                // Whole rows; what lies between the parts of a row belongs to nobody.
                std::vector<std::byte> bytes;
                for (int64_t r = 0; r < rows; ++r) {
                  const std::byte* row = program.row_data(r);
                  const size_t planes = out == ActivationMode::int16 ? 2 : 1,
                               plane = prepared_row_bytes(inner, out) / planes;
                  for (size_t p = 0; p < planes; ++p) {
                    const auto take = [&](size_t from, size_t count) {
                      bytes.insert(bytes.end(), row + p * plane + from, row + p * plane + from + count);
                    };
                    if (out == ActivationMode::bf16) {
                      take(0, static_cast<size_t>(prepared_cols(inner)) * 2);
                      continue;
                    }
                    const auto blocks = static_cast<size_t>(prepared_blocks(inner));
                    take(0, static_cast<size_t>(prepared_cols(inner)));
                    take(int8_scales_offset(inner), 4 * blocks);
                    take(int8_sums_offset(inner), 4 * blocks);
                    take(int8_code_sums_offset(inner), 4 * blocks);
                  }
                }
                return bytes;
              };
              const auto two = run(false, 1);
              for (int threads : {1, 3})
                ASSERT_EQ(run(true, threads), two)
                    << name(isa) << " inner " << inner << " rows " << rows << " " << name(in) << " to "
                    << name(out) << " threads " << threads;
              // One row among more members than rows: its columns are shared out.
              ASSERT_EQ(run(false, 3), two);
            }
  }
}

TEST(LinearPrepare, LeavesProductsAloneThatSomethingElseReads) {
  const Weights weights(64);
  const IsaLevel isa = IsaLevel::generic;
  const auto fused = [&](auto&& use) {
    ProgramBuilder b;
    const ValueId x = b.input("x", Dtype::f32, program::Axis::tokens, {kHidden});
    use(b, x);
    return fuse_linear_prepare(b);
  };
  const auto product = [&](ProgramBuilder& b, ValueId x) {
    return record(b, x, weights, Epilogue::swiglu, ActivationMode::f32, isa);
  };
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {
              b.output("y", prepare_activations(b, product(b, x), ActivationMode::int8, isa));
            }),
            1);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // the product is a result
              const ValueId y = product(b, x);
              prepare_activations(b, y, ActivationMode::int8, isa);
              b.output("y", y);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // two forms of it
              const ValueId y = product(b, x);
              prepare_activations(b, y, ActivationMode::int8, isa);
              prepare_activations(b, y, ActivationMode::bf16, isa);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // a view of it
              prepare_activations(b, b.columns(product(b, x), "half", 0, {32}), ActivationMode::int8, isa);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId x) {  // with a residual
              LinearInput input;
              input.x = x;
              LinearPart part;
              part.weight = &weights.single->matrix;
              const ValueId residual = b.input("r", Dtype::f32, program::Axis::tokens, {64});
              prepare_activations(b, linear(b, "y", input, {part}, residual, isa), ActivationMode::int8, isa);
            }),
            0);
}

// Nothing of the product's own is left in the program: memory for pieces of 128 rows and 256 columns a
// member.
TEST(LinearPrepare, KeepsNoRowsOfTheProduct) {
  const Weights weights(800);
  const auto bytes = [&](bool fuse) {
    ProgramBuilder b;
    const ValueId x = b.input("x", Dtype::f32, program::Axis::tokens, {kHidden});
    b.output("y", prepare_activations(
                      b, record(b, x, weights, Epilogue::swiglu, ActivationMode::f32, best_isa_level()),
                      ActivationMode::int8, best_isa_level()));
    EXPECT_EQ(fuse ? fuse_linear_prepare(b) : 1, 1);
    return std::move(b).plan({512, 1, 1}, 2).workspace_bytes();
  };
  EXPECT_EQ(bytes(false) - bytes(true), size_t{512} * 800 * 4 - size_t{2} * 128 * 256 * 4);
}

}  // namespace
}  // namespace kvasir::ops
