#include "ops/norm_prepare/norm_prepare.h"

#include <memory>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "ops/matmul/matmul_op.h"
#include "ops/rms_norm/rms_norm.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

class NormPrepare final : public program::Op {
 public:
  NormPrepare(ValueId x, ValueId y, const RecordedRmsNorm& norm, const RecordedPrepare& prepare)
      : Op({x}, {y}),
        norm_(norm),
        prepare_(prepare),
        kernels_(rms_norm_kernels(norm.isa)),
        gain_(norm.options.gains.empty() ? nullptr : norm.options.gains[0].data) {}

  std::string_view kind() const override { return "rms_norm_prepare"; }
  std::string describe() const override {
    return fmt::format("width {}, epsilon {:g}, gain {}, {}", norm_.width, norm_.options.epsilon,
                       norm_.options.gain_offset != 0.0f ? "plus one" : "plain", name(prepare_.mode));
  }
  size_t workspace_bytes(const program::Counts& /*maxima*/, int threads) const override {
    return scratch_bytes() * static_cast<size_t>(threads);
  }
  program::OpCost cost(int64_t rows) const override {
    const auto width = static_cast<double>(norm_.width);
    return {static_cast<double>(rows) *
                (4 * width + static_cast<double>(prepared_row_bytes(norm_.width, prepare_.mode))),
            static_cast<double>(rows) * width * 8};
  }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    auto* scratch =
        reinterpret_cast<float*>(context.workspace + scratch_bytes() * static_cast<size_t>(context.member));
    const WorkRange rows = split_work(context.count(x), context.members, context.member);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      kernels_.vector(context.row<const float>(x, row), gain_, norm_.options.gain_offset, scratch,
                      norm_.width, norm_.options.epsilon);
      prepare_activations(prepare_.mode, scratch, 0, norm_.width, 0, 1, context.row<std::byte>(y, row),
                          context.stride(y), prepare_.isa);
    }
  }

 private:
  size_t scratch_bytes() const {
    return align_up(static_cast<size_t>(norm_.width) * sizeof(float), kCacheLine);
  }

  RecordedRmsNorm norm_;
  RecordedPrepare prepare_;
  const RmsNormKernels& kernels_;
  const float* gain_;
};

}  // namespace

int fuse_norm_prepare(program::ProgramBuilder& builder) {
  std::vector<std::unique_ptr<program::Op>>& ops = builder.mutable_ops();
  int fused = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::optional<RecordedRmsNorm> norm = recorded_rms_norm(*ops[i]);
    if (!norm || norm->options.vectors != 1) continue;
    const ValueId normed = ops[i]->outputs()[0];
    const std::optional<size_t> reader = builder.only_reader(normed);
    if (!reader || builder.is_output(normed)) continue;
    const std::optional<RecordedPrepare> prepare = recorded_prepare(*ops[*reader]);
    if (!prepare || ops[*reader]->inputs()[0] != normed) continue;
    KVASIR_CHECK(prepare->isa == norm->isa && prepare->cols == norm->width);
    // At the norm's place: its input is alive there, and every reader of the prepared rows comes later.
    const ValueId x = ops[i]->inputs()[0];
    ops[i] = std::make_unique<NormPrepare>(x, ops[*reader]->outputs()[0], *norm, *prepare);
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(*reader));
    ++fused;
  }
  return fused;
}

}  // namespace kvasir::ops
