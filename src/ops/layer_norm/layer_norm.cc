#include "ops/layer_norm/layer_norm.h"

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

class LayerNorm final : public program::Op {
 public:
  LayerNorm(ValueId x, ValueId y, const LayerNormOptions& options, int64_t width, IsaLevel isa)
      : Op({x}, {y}), options_(options), width_(width), kernels_(layer_norm_kernels(isa)) {
    if (options_.weights.empty()) options_.weights.push_back({options_.vectors, nullptr, nullptr, false});
    for (const LayerNormWeights& w : options_.weights)
      for (int64_t v = 0; v < w.vectors; ++v) {
        const int64_t at = w.per_vector ? v * width : 0;
        of_vector_.push_back(
            {w.gain == nullptr ? nullptr : w.gain + at, w.bias == nullptr ? nullptr : w.bias + at});
      }
    KVASIR_CHECK(static_cast<int64_t>(of_vector_.size()) == options_.vectors);
  }

  std::string_view kind() const override { return "layer_norm"; }
  std::string describe() const override {
    return fmt::format("vectors {} of {}, epsilon {:g}", options_.vectors, width_, options_.epsilon);
  }
  int in_place_input() const override { return 0; }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * options_.vectors * width_);
    return {8 * elements, 8 * elements};
  }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const WorkRange work = split_work(context.count(x) * options_.vectors, context.members, context.member);
    for (int64_t i = work.begin; i < work.end; ++i) {
      const int64_t row = i / options_.vectors, v = i % options_.vectors;
      const OfVector& w = of_vector_[static_cast<size_t>(v)];
      kernels_.vector(context.row<const float>(x, row) + v * width_, w.gain, options_.gain_offset, w.bias,
                      context.row<float>(y, row) + v * width_, width_, options_.epsilon);
    }
  }

 private:
  struct OfVector {
    const float* gain;
    const float* bias;
  };
  LayerNormOptions options_;
  int64_t width_;
  const LayerNormKernels& kernels_;
  std::vector<OfVector> of_vector_;
};

}  // namespace

ValueId layer_norm(program::ProgramBuilder& builder, ValueId x, const LayerNormOptions& options,
                   IsaLevel isa) {
  const program::Value& value = builder.at(x);
  KVASIR_CHECK(value.dtype == Dtype::f32 && options.vectors > 0 && value.width % options.vectors == 0);
  const int64_t width = value.width / options.vectors;
  const ValueId y =
      builder.value(value.name + ".norm", Dtype::f32, value.axis, value.inner, value.fixed_count);
  builder.append(std::make_unique<LayerNorm>(x, y, options, width, isa));
  return y;
}

}  // namespace kvasir::ops
