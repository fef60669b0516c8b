#include "ops/elementwise/elementwise.h"

#include <cmath>

#include "base/error.h"
#include "ops/element_blocks.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ProgramBuilder;
using program::ValueId;

// Every op of this room: `kernel(context, row, first, count)` computes a range of one row.
template <typename Kernel>
class Elementwise final : public program::Op {
 public:
  Elementwise(std::string_view kind, std::string attributes, std::vector<ValueId> in, ValueId out,
              int64_t width, Kernel kernel)
      : Op(std::move(in), {out}),
        kind_(kind),
        attributes_(std::move(attributes)),
        width_(width),
        kernel_(kernel) {}

  std::string_view kind() const override { return kind_; }
  std::string describe() const override { return attributes_; }
  int in_place_input() const override { return 0; }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * width_);
    return {4 * elements * static_cast<double>(inputs().size() + 1), elements};
  }
  void run(const OpContext& context) const override {
    for_each_block(
        context, context.count(outputs()[0]), width_,
        [&](int64_t row, int64_t first, int64_t count) { kernel_(*this, context, row, first, count); });
  }

  const float* in(const OpContext& context, size_t which, int64_t row, int64_t first) const {
    return context.row<const float>(inputs()[which], row) + first;
  }
  float* out(const OpContext& context, int64_t row, int64_t first) const {
    return context.row<float>(outputs()[0], row) + first;
  }

 private:
  std::string_view kind_;
  std::string attributes_;
  int64_t width_;
  Kernel kernel_;
};

template <typename Kernel>
ValueId record(ProgramBuilder& builder, std::string_view kind, std::string attributes,
               std::vector<ValueId> in, Kernel kernel) {
  const program::Value& x = builder.at(in[0]);
  for (ValueId id : in) {
    const program::Value& other = builder.at(id);
    KVASIR_CHECK(other.dtype == Dtype::f32 && other.width == x.width && other.axis == x.axis);
  }
  const int64_t width = x.width;
  const ValueId y = builder.value(std::string(kind), Dtype::f32, x.axis, x.inner, x.fixed_count);
  builder.append(
      std::make_unique<Elementwise<Kernel>>(kind, std::move(attributes), std::move(in), y, width, kernel));
  return y;
}

}  // namespace

ValueId add(ProgramBuilder& builder, ValueId a, ValueId b, IsaLevel isa, float multiplier) {
  return record(builder, "add",
                multiplier == 1.0f ? std::string() : fmt::format("multiplier {:g}", multiplier), {a, b},
                [&kernels = elementwise_kernels(isa), multiplier](auto& op, const OpContext& context,
                                                                  int64_t row, int64_t first, int64_t count) {
                  kernels.add(op.in(context, 0, row, first), op.in(context, 1, row, first), multiplier,
                              op.out(context, row, first), count);
                });
}

ValueId scale(ProgramBuilder& builder, ValueId x, float factor, IsaLevel isa) {
  return record(builder, "scale", fmt::format("by {:g}", factor), {x},
                [&kernels = elementwise_kernels(isa), factor](auto& op, const OpContext& context, int64_t row,
                                                              int64_t first, int64_t count) {
                  kernels.scale(op.in(context, 0, row, first), factor, op.out(context, row, first), count);
                });
}

ValueId divide(ProgramBuilder& builder, ValueId x, float divisor, IsaLevel isa) {
  return record(builder, "divide", fmt::format("by {:g}", divisor), {x},
                [&kernels = elementwise_kernels(isa), divisor](auto& op, const OpContext& context,
                                                               int64_t row, int64_t first, int64_t count) {
                  kernels.divide(op.in(context, 0, row, first), divisor, op.out(context, row, first), count);
                });
}

ValueId softcap(ProgramBuilder& builder, ValueId x, float cap, IsaLevel isa) {
  KVASIR_CHECK(cap > 0.0f);
  return record(builder, "softcap", fmt::format("cap {:g}", cap), {x},
                [&kernels = elementwise_kernels(isa), cap](auto& op, const OpContext& context, int64_t row,
                                                           int64_t first, int64_t count) {
                  kernels.softcap(op.in(context, 0, row, first), cap, op.out(context, row, first), count);
                });
}

ValueId add_bias(ProgramBuilder& builder, ValueId x, const float* bias, IsaLevel isa) {
  return record(builder, "add_bias", {}, {x},
                [&kernels = elementwise_kernels(isa), bias](auto& op, const OpContext& context, int64_t row,
                                                            int64_t first, int64_t count) {
                  kernels.add(op.in(context, 0, row, first), bias + first, 1.0f, op.out(context, row, first),
                              count);
                });
}

ValueId clamp(ProgramBuilder& builder, ValueId x, float low, float high, IsaLevel isa) {
  return record(builder, "clamp", fmt::format("to [{:g}, {:g}]", low, high), {x},
                [&kernels = elementwise_kernels(isa), low, high](auto& op, const OpContext& context,
                                                                 int64_t row, int64_t first, int64_t count) {
                  kernels.clamp(op.in(context, 0, row, first), low, high, op.out(context, row, first), count);
                });
}

ValueId scale_by_position(ProgramBuilder& builder, ValueId x, double beta, double original, IsaLevel isa) {
  KVASIR_CHECK(original > 0 && builder.at(x).axis == program::Axis::tokens);
  return record(builder, "scale_by_position", fmt::format("beta {:g}, original {:g}", beta, original), {x},
                [&kernels = elementwise_kernels(isa), beta, original](
                    auto& op, const OpContext& context, int64_t row, int64_t first, int64_t count) {
                  const double position = context.step.rope_position[0][static_cast<size_t>(row)];
                  const double factor = 1.0 + beta * std::log(1.0 + std::floor(position / original));
                  kernels.scale(op.in(context, 0, row, first), static_cast<float>(factor),
                                op.out(context, row, first), count);
                });
}

}  // namespace kvasir::ops
