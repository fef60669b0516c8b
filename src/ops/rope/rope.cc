#include "ops/rope/rope.h"

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

class RopeTableOp final : public program::Op {
 public:
  RopeTableOp(const RopeTable& table, ValueId y, IsaLevel isa)
      : Op({}, {y}), table_(table), kernels_(rope_kernels(isa)) {}

  std::string_view kind() const override { return "rope_table"; }
  std::string describe() const override {
    return fmt::format("pairs {}, pre-scale {:g}", table_.inverse_frequency.size(), table_.pre_scale);
  }
  // What is written; a cosine and a sine are counted as one operation each.
  program::OpCost cost(int64_t rows) const override {
    const double numbers =
        2.0 * static_cast<double>(rows) * static_cast<double>(table_.inverse_frequency.size());
    return {4 * numbers, numbers};
  }

  void run(const OpContext& context) const override {
    const ValueId y = outputs()[0];
    const int64_t pairs = static_cast<int64_t>(table_.inverse_frequency.size());
    const auto& positions = context.step.rope_position;
    const WorkRange work = split_work(context.count(y), context.members, context.member);
    for (int64_t t = work.begin; t < work.end; ++t) {
      const auto at = static_cast<size_t>(t);
      const float position[3] = {static_cast<float>(positions[0][at]), static_cast<float>(positions[1][at]),
                                 static_cast<float>(positions[2][at])};
      float* row = context.row<float>(y, t);
      kernels_.table(position, table_.selector.empty() ? nullptr : table_.selector.data(),
                     table_.inverse_frequency.data(), table_.pre_scale, pairs, row, row + pairs);
    }
  }

 private:
  RopeTable table_;
  const RopeKernels& kernels_;
};

class Rope final : public program::Op {
 public:
  Rope(ValueId x, ValueId table, ValueId y, const RecordedRope& what)
      : Op({x, table}, {y}), what_(what), rotate_(what.kernel()) {}

  std::string_view kind() const override { return "rope"; }
  std::string describe() const override { return what_.describe(); }
  const RecordedRope& recorded() const { return what_; }
  int in_place_input() const override { return 0; }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * what_.heads * what_.head_dim);
    return {8 * elements, 3 * elements};
  }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], table = inputs()[1], y = outputs()[0];
    const WorkRange work = split_work(context.count(x) * what_.heads, context.members, context.member);
    for (int64_t i = work.begin; i < work.end; ++i) {
      const int64_t token = i / what_.heads, at = i % what_.heads * what_.head_dim;
      const float* cosines = context.row<const float>(table, token);
      rotate_(context.row<const float>(x, token) + at, cosines, cosines + what_.pairs,
              context.row<float>(y, token) + at, what_.pairs, what_.head_dim);
    }
  }

 private:
  RecordedRope what_;
  decltype(RopeKernels::half_split) rotate_;
};

}  // namespace

std::string RecordedRope::describe() const {
  return fmt::format("heads {}, {} of {} elements, {}", heads, 2 * pairs, head_dim,
                     layout == RopeLayout::half_split ? "half-split" : "interleaved");
}

decltype(RopeKernels::half_split) RecordedRope::kernel() const {
  const RopeKernels& kernels = rope_kernels(isa);
  return layout == RopeLayout::half_split ? kernels.half_split : kernels.interleaved;
}

std::optional<RecordedRope> recorded_rope(const program::Op& op) {
  const auto* rope = dynamic_cast<const Rope*>(&op);
  if (rope == nullptr) return std::nullopt;
  return rope->recorded();
}

ValueId rope_table(program::ProgramBuilder& builder, const RopeTable& table, IsaLevel isa) {
  const int64_t pairs = static_cast<int64_t>(table.inverse_frequency.size());
  KVASIR_CHECK(pairs > 0 &&
               (table.selector.empty() || table.selector.size() == table.inverse_frequency.size()));
  const ValueId y = builder.value("rope_table", Dtype::f32, program::Axis::tokens, {2, pairs});
  builder.append(std::make_unique<RopeTableOp>(table, y, isa));
  return y;
}

ValueId rope(program::ProgramBuilder& builder, ValueId x, ValueId table, int64_t heads, RopeLayout layout,
             IsaLevel isa) {
  const program::Value& value = builder.at(x);
  KVASIR_CHECK(value.dtype == Dtype::f32 && heads > 0 && value.width % heads == 0);
  const int64_t head_dim = value.width / heads, pairs = builder.at(table).width / 2;
  KVASIR_CHECK(2 * pairs <= head_dim);
  const ValueId y =
      builder.value(value.name + ".rope", Dtype::f32, value.axis, value.inner, value.fixed_count);
  builder.append(std::make_unique<Rope>(x, table, y, RecordedRope{heads, head_dim, pairs, layout, isa}));
  return y;
}

}  // namespace kvasir::ops
