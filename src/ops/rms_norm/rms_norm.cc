#include "ops/rms_norm/rms_norm.h"

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

class RmsNorm final : public program::Op {
 public:
  RmsNorm(ValueId x, ValueId y, const RmsNormOptions& options, int64_t width, IsaLevel isa)
      : Op({x}, {y}),
        options_(options),
        width_(width),
        isa_(isa),
        kernels_(rms_norm_kernels(isa)),
        gain_of_(gain_of_vectors(options)) {}

  std::string_view kind() const override { return "rms_norm"; }
  std::string describe() const override {
    return fmt::format("vectors {} of {}, epsilon {:g}, gain {}", options_.vectors, width_, options_.epsilon,
                       options_.gain_offset != 0.0f ? "plus one" : "plain");
  }
  RecordedRmsNorm recorded() const { return {options_, width_, isa_}; }
  int in_place_input() const override { return 0; }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * options_.vectors * width_);
    return {8 * elements, 4 * elements};
  }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const WorkRange work = split_work(context.count(x) * options_.vectors, context.members, context.member);
    for (int64_t i = work.begin; i < work.end; ++i) {
      const int64_t row = i / options_.vectors, v = i % options_.vectors;
      kernels_.vector(context.row<const float>(x, row) + v * width_, gain_of_[static_cast<size_t>(v)],
                      options_.gain_offset, context.row<float>(y, row) + v * width_, width_,
                      options_.epsilon);
    }
  }

 private:
  RmsNormOptions options_;
  int64_t width_;
  IsaLevel isa_;
  const RmsNormKernels& kernels_;
  std::vector<const float*> gain_of_;
};

}  // namespace

std::vector<const float*> gain_of_vectors(const RmsNormOptions& options) {
  std::vector<const float*> gains;
  if (options.gains.empty()) gains.assign(static_cast<size_t>(options.vectors), nullptr);
  for (const RmsNormGain& gain : options.gains)
    gains.insert(gains.end(), static_cast<size_t>(gain.vectors), gain.data);
  KVASIR_CHECK(static_cast<int64_t>(gains.size()) == options.vectors);
  return gains;
}

ValueId rms_norm(program::ProgramBuilder& builder, ValueId x, const RmsNormOptions& options, IsaLevel isa) {
  const program::Value& value = builder.at(x);
  KVASIR_CHECK(value.dtype == Dtype::f32 && options.vectors > 0 && value.width % options.vectors == 0);
  const int64_t width = value.width / options.vectors;
  const ValueId y =
      builder.value(value.name + ".norm", Dtype::f32, value.axis, value.inner, value.fixed_count);
  builder.append(std::make_unique<RmsNorm>(x, y, options, width, isa));
  return y;
}

std::optional<RecordedRmsNorm> recorded_rms_norm(const program::Op& op) {
  const auto* norm = dynamic_cast<const RmsNorm*>(&op);
  if (norm == nullptr) return std::nullopt;
  return norm->recorded();
}

}  // namespace kvasir::ops
