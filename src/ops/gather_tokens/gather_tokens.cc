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
  GatherTokens(ValueId x, ValueId y) : Op({x}, {y}) {}
  std::string_view kind() const override { return "gather_tokens"; }
  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const size_t bytes = static_cast<size_t>(context.width(x)) * sizeof(float);
    const WorkRange work = split_work(context.count(y), context.members, context.member);
    for (int64_t i = work.begin; i < work.end; ++i)
      std::memcpy(context.row<float>(y, i),
                  context.row<const float>(x, context.step.logit_tokens[static_cast<size_t>(i)]), bytes);
  }
};

}  // namespace

ValueId gather_tokens(program::ProgramBuilder& builder, ValueId x) {
  const program::Value& value = builder.at(x);
  KVASIR_CHECK(value.axis == program::Axis::tokens && value.dtype == Dtype::f32);
  const ValueId y = builder.value(value.name + ".wanted", Dtype::f32, program::Axis::logits, value.inner);
  builder.append(std::make_unique<GatherTokens>(x, y));
  return y;
}

}  // namespace kvasir::ops
