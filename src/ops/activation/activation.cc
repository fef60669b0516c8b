#include "ops/activation/activation.h"

#include "base/error.h"
#include "ops/element_blocks.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

std::vector<ValueId> operands(ValueId gate, std::optional<ValueId> up) {
  std::vector<ValueId> list = {gate};
  if (up) list.push_back(*up);
  return list;
}

class Activation final : public program::Op {
 public:
  Activation(ActivationFunction function, const XieluParameters& xielu, ValueId gate,
             std::optional<ValueId> up, ValueId y, int64_t width, IsaLevel isa)
      : Op(operands(gate, up), {y}),
        function_(function),
        xielu_(xielu),
        width_(width),
        kernels_(activation_kernels(isa)) {}

  std::string_view kind() const override { return "activation"; }
  std::string describe() const override {
    return std::string(name(function_)) + (inputs().size() == 2 ? " times up" : "");
  }
  int in_place_input() const override { return 0; }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * width_);
    return {(inputs().size() == 2 ? 12 : 8) * elements, 20 * elements};
  }

  void run(const OpContext& context) const override {
    const ValueId gate = inputs()[0], y = outputs()[0];
    for_each_block(context, context.count(gate), width_, [&](int64_t row, int64_t first, int64_t count) {
      kernels_.apply(function_, xielu_, context.row<const float>(gate, row) + first,
                     inputs().size() == 2 ? context.row<const float>(inputs()[1], row) + first : nullptr,
                     context.row<float>(y, row) + first, count);
    });
  }

 private:
  ActivationFunction function_;
  XieluParameters xielu_;
  int64_t width_;
  const ActivationKernels& kernels_;
};

}  // namespace

ValueId activation(program::ProgramBuilder& builder, ActivationFunction function, ValueId gate,
                   std::optional<ValueId> up, IsaLevel isa, const XieluParameters& xielu) {
  const program::Value& value = builder.at(gate);
  KVASIR_CHECK(value.dtype == Dtype::f32);
  if (up) KVASIR_CHECK(builder.at(*up).width == value.width && builder.at(*up).dtype == Dtype::f32);
  const ValueId y = builder.value("activated", Dtype::f32, value.axis, value.inner, value.fixed_count);
  builder.append(std::make_unique<Activation>(function, xielu, gate, up, y, builder.at(y).width, isa));
  return y;
}

}  // namespace kvasir::ops
