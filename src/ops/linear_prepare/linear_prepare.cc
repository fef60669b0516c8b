#include "ops/linear_prepare/linear_prepare.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul_op.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

// Of a piece.
constexpr int64_t kMostUnits = 16;

class LinearPrepare final : public program::Op {
 public:
  LinearPrepare(std::vector<ValueId> in, ValueId y, RecordedLinear linear, const RecordedPrepare& prepare)
      : Op(std::move(in), {y}), linear_(std::move(linear)), prepare_(prepare) {}

  std::string_view kind() const override { return "linear_prepare"; }
  std::string describe() const override {
    return linear_.describe() + "; to " + std::string(name(prepare_.mode));
  }
  size_t workspace_bytes(const program::Counts& maxima, int threads) const override {
    return static_cast<size_t>(threads) * scratch_bytes(std::max(maxima.tokens, maxima.logits));
  }
  program::OpCost cost(int64_t rows) const override { return linear_.cost(rows); }

  void run(const OpContext& context) const override {
    const ValueId y = outputs()[0];
    const int64_t rows = context.count(y), columns = prepare_.cols;
    if (rows == 0) return;
    const RecordedLinear::Part& part = linear_.parts[0];
    Matmul product = linear_.product(context, inputs(), part, rows);
    product.out = reinterpret_cast<float*>(context.workspace +
                                           static_cast<size_t>(context.member) * scratch_bytes(rows));
    // Pairs of units are whole blocks of 32 columns.
    const int64_t units = matmul_units(product);
    const int64_t grain = std::min(linear_.piece_units(units, context.members), kMostUnits);
    product.out_stride = grain * kPanelRows;
    WorkRange piece{};
    while (context.work.take(context.member, units, grain, piece)) {
      product.out_first = piece.begin * kPanelRows;
      const int64_t end = std::min(piece.end * kPanelRows, columns);
      matmul_piece_by_rows(product, piece.begin, piece.end, [&](int64_t row, int64_t count) {
        prepare_columns(prepare_.mode, product.out, product.out_stride, columns, product.out_first, end,
                        count, context.row<std::byte>(y, row), context.stride(y), prepare_.isa);
      });
    }
  }

 private:
  static size_t scratch_bytes(int64_t rows) {
    return static_cast<size_t>(std::min(rows, kPieceRows) * kMostUnits * kPanelRows) * sizeof(float);
  }

  RecordedLinear linear_;
  RecordedPrepare prepare_;
};

}  // namespace

int fuse_linear_prepare(program::ProgramBuilder& builder) {
  std::vector<std::unique_ptr<program::Op>>& ops = builder.mutable_ops();
  int fused = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    std::optional<RecordedLinear> linear = recorded_linear(*ops[i]);
    if (!linear || linear->has_residual || linear->parts.size() != 1) continue;
    const ValueId product = ops[i]->outputs()[0];
    const std::optional<size_t> reader = builder.only_reader(product);
    if (!reader || builder.is_output(product)) continue;
    const std::optional<RecordedPrepare> prepare = recorded_prepare(*ops[*reader]);
    if (!prepare || ops[*reader]->inputs()[0] != product) continue;
    KVASIR_CHECK(prepare->isa == linear->isa && prepare->cols == builder.at(product).width);
    // At the linear's place: its inputs are alive there, and every reader of the prepared rows comes later.
    ops[i] = std::make_unique<LinearPrepare>(ops[i]->inputs(), ops[*reader]->outputs()[0], std::move(*linear),
                                             *prepare);
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(*reader));
    ++fused;
  }
  return fused;
}
}  // namespace kvasir::ops
