#include "ops/gather_tokens/gather_tokens.h"

#include <cstring>

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

// A copy bound by memory, written with memcpy: one form for every instruction-set level.
class GatherTokens final : public program::Op {
 public:
  GatherTokens(ValueId x, ValueId y, int64_t width) : Op({x}, {y}), width_(width) {}
  std::string_view kind() const override { return "gather_tokens"; }
  program::OpCost cost(int64_t rows) const override { return {8.0 * static_cast<double>(rows * width_)}; }
  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const size_t bytes = static_cast<size_t>(context.width(x)) * sizeof(float);
    const WorkRange work = split_work(context.count(y), context.members, context.member);
    for (int64_t i = work.begin; i < work.end; ++i)
      std::memcpy(context.row<float>(y, i),
                  context.row<const float>(x, context.step.logit_tokens[static_cast<size_t>(i)]), bytes);
  }

 private:
  int64_t width_;
};

class ReorderHeads final : public program::Op {
 public:
  ReorderHeads(ValueId x, ValueId y, std::vector<int32_t> from, int64_t head_dim)
      : Op({x}, {y}), from_(std::move(from)), head_dim_(head_dim) {}
  std::string_view kind() const override { return "reorder_heads"; }
  program::OpCost cost(int64_t rows) const override {
    return {8.0 * static_cast<double>(rows * head_dim_) * static_cast<double>(from_.size())};
  }
  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const WorkRange work = split_work(context.count(y), context.members, context.member);
    for (int64_t row = work.begin; row < work.end; ++row)
      for (size_t h = 0; h < from_.size(); ++h)
        std::memcpy(context.row<float>(y, row) + static_cast<int64_t>(h) * head_dim_,
                    context.row<const float>(x, row) + from_[h] * head_dim_,
                    static_cast<size_t>(head_dim_) * sizeof(float));
  }

 private:
  std::vector<int32_t> from_;
  int64_t head_dim_;
};

}  // namespace

ValueId gather_tokens(program::ProgramBuilder& builder, ValueId x) {
  const program::Value& value = builder.at(x);
  KVASIR_CHECK(value.axis == program::Axis::tokens && value.dtype == Dtype::f32);
  const ValueId y = builder.value(value.name + ".wanted", Dtype::f32, program::Axis::logits, value.inner);
  builder.append(std::make_unique<GatherTokens>(x, y, value.width));
  return y;
}

ValueId reorder_heads(program::ProgramBuilder& builder, ValueId x, const std::vector<int32_t>& from) {
  const program::Value& value = builder.at(x);
  const auto heads = static_cast<int64_t>(from.size());
  KVASIR_CHECK(value.dtype == Dtype::f32 && heads > 0 && value.width % heads == 0);
  const int64_t head_dim = value.width / heads;
  const ValueId y =
      builder.value(value.name + ".reordered", Dtype::f32, value.axis, value.inner, value.fixed_count);
  builder.append(std::make_unique<ReorderHeads>(x, y, from, head_dim));
  return y;
}

}  // namespace kvasir::ops
