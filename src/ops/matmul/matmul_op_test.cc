#include "ops/matmul/matmul_op.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/dequantize.h"
#include "ops/matmul/weight_cases.h"
#include "program/executor.h"

namespace kvasir::ops {
namespace {

using formats::StorageFormat;
using program::Axis;
using program::ValueId;

// embedding rows -> rounded -> product + bias + residual, as a program on two threads, against the functions
// that the ops stand for.
TEST(MatmulOps, AreTheFunctionsThatTheyRecord) {
  const int64_t hidden = 96, vocab = 40, tokens = 5;
  ThreadTeam team(2);
  RandomWeight table_source(StorageFormat::q8_0, vocab, hidden, 1);
  table_source.source().tensor_scale = 0.5f;
  const RandomWeight weight_source(StorageFormat::q4_1, hidden, hidden, 2);
  const PackedWeight table(table_source.source(), team), weight(weight_source.source(), team);
  std::vector<float> bias(static_cast<size_t>(hidden), 0.25f),
      external(static_cast<size_t>(2 * hidden), 3.0f);
  const std::vector<int32_t> ids = {3, 39, ~1, 0, 3};

  for (ActivationMode mode :
       {ActivationMode::f32, ActivationMode::bf16, ActivationMode::int8, ActivationMode::int16}) {
    program::ProgramBuilder builder;
    const ValueId x = gather_rows(builder, table.matrix, 4.0f, best_isa_level());
    const ValueId prepared = prepare_activations(builder, x, mode, best_isa_level());
    MatmulOptions options;
    options.bias = bias.data();
    options.residual = x;
    const ValueId y = matmul(builder, prepared, mode, weight.matrix, options, best_isa_level());
    builder.output("x", x);
    builder.output("y", y);
    program::Program recorded =
        std::move(builder).plan({.tokens = tokens, .rows = 1, .logits = 1}, team.size());
    MemoryLedger ledger;
    Arena arena(recorded.workspace_bytes() + 4096, &ledger, MemoryCategory::workspace);
    recorded.allocate(arena);
    program::StepState step;
    step.tokens = tokens;
    step.rows = step.logits = 1;
    step.token_ids = ids;
    step.external_embeddings = external.data();
    step.external_stride = hidden;
    program::CpuExecutor executor(team);
    executor.run(recorded, step);

    std::vector<float> rows(static_cast<size_t>(tokens * hidden), 3.0f), row(static_cast<size_t>(hidden));
    for (size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] < 0) continue;
      formats::dequantize_row(table_source.source(), ids[t], row);
      for (size_t c = 0; c < row.size(); ++c) rows[t * row.size() + c] = row[c] * 0.5f * 4.0f;
    }
    const size_t x_stride = recorded.values()[static_cast<size_t>(x.index)].stride;
    for (size_t t = 0; t < ids.size(); ++t)
      ASSERT_EQ(std::memcmp(recorded.data(recorded.output("x")) + t * x_stride, rows.data() + t * row.size(),
                            row.size() * 4),
                0)
          << "token " << t;

    Matmul direct;
    AlignedBytes bytes(prepared_row_bytes(hidden, mode) * static_cast<size_t>(tokens));
    direct.input = {mode, reinterpret_cast<const std::byte*>(rows.data()), static_cast<size_t>(hidden) * 4,
                    tokens, hidden};
    if (mode != ActivationMode::f32) {
      direct.input.stride = prepared_row_bytes(hidden, mode);
      prepare_activations(mode, rows.data(), hidden, hidden, 0, tokens, bytes.span().data(),
                          direct.input.stride, best_isa_level());
      direct.input.data = bytes.span().data();
    }
    std::vector<float> expected(static_cast<size_t>(tokens * hidden));
    direct.weight = &weight.matrix;
    direct.out = expected.data();
    direct.out_stride = hidden;
    direct.bias = bias.data();
    direct.residual = rows.data();
    direct.residual_stride = hidden;
    direct.isa = best_isa_level();
    matmul(direct, 0, 1);
    const size_t y_stride = recorded.values()[static_cast<size_t>(y.index)].stride;
    for (size_t t = 0; t < ids.size(); ++t)
      ASSERT_EQ(std::memcmp(recorded.data(recorded.output("y")) + t * y_stride,
                            expected.data() + t * row.size(), row.size() * 4),
                0)
          << name(mode) << ", token " << t;
  }
}

}  // namespace
}  // namespace kvasir::ops
