#include "ops/append_kv/append_kv.h"

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

class AppendKv final : public program::Op {
 public:
  AppendKv(ValueId k, ValueId v, const AppendKvOptions& options) : Op({k, v}, {}), options_(options) {}

  std::string_view kind() const override { return "append_kv"; }
  std::string describe() const override {
    return fmt::format("group {}, layer {}, {} heads, {} + {}", options_.group, options_.layer,
                       options_.kv_heads, options_.head_dim_k, options_.head_dim_v);
  }
  program::OpCost cost(int64_t rows) const override {
    const double elements =
        static_cast<double>(rows) * options_.kv_heads * (options_.head_dim_k + options_.head_dim_v);
    return {elements * 6, 0};  // as if stored in 16 bits
  }
  program::OpCost cost_in_step(int64_t rows, const program::StepState& step) const override {
    const double elements =
        static_cast<double>(rows) * options_.kv_heads * (options_.head_dim_k + options_.head_dim_v);
    return {elements * 4 + appended_bytes(step, options_), 0};
  }

  const AppendKvOptions& recorded() const { return options_; }

  void run(const OpContext& context) const override {
    share_appended_heads(context, options_.kv_heads, [&](int32_t token, int head_begin, int head_end) {
      const AppendedToken to(context, options_, token);
      const float* k = context.row<const float>(inputs()[0], token);
      const float* v = context.row<const float>(inputs()[1], token);
      for (int head = head_begin; head < head_end; ++head)
        to.append(head, k + static_cast<int64_t>(head) * options_.head_dim_k,
                  v + static_cast<int64_t>(head) * options_.head_dim_v);
    });
  }

 private:
  AppendKvOptions options_;
};

}  // namespace

double appended_bytes(const program::StepState& step, const AppendKvOptions& options) {
  const std::span<const kv::RowPages> rows = step.kv[static_cast<size_t>(options.group)].rows;
  double bytes = 0;
  for (int32_t row : step.row_of_token) bytes += rows[static_cast<size_t>(row)].layout->layer_token_bytes();
  return bytes;
}

void share_appended_heads(const OpContext& context, int kv_heads,
                          const std::function<void(int32_t, int, int)>& take) {
  const auto& step = context.step;
  const auto same_block = [&](int32_t a, int32_t b) {
    return step.row_of_token[static_cast<size_t>(a)] == step.row_of_token[static_cast<size_t>(b)] &&
           step.kv_position[static_cast<size_t>(a)] / kv::kBlockTokens ==
               step.kv_position[static_cast<size_t>(b)] / kv::kBlockTokens;
  };
  int64_t runs = 0;
  for (int32_t t = 0; t < step.tokens; ++t) runs += t == 0 || !same_block(t - 1, t);
  const WorkRange work = split_work(runs * kv_heads, context.members, context.member);
  if (work.begin >= work.end) return;
  int64_t run = -1;
  for (int32_t t = 0; t < step.tokens; ++t) {
    if (t == 0 || !same_block(t - 1, t)) ++run;
    const int64_t first = run * kv_heads;
    if (first + kv_heads <= work.begin) continue;
    if (first >= work.end) break;
    take(t, static_cast<int>(work.begin > first ? work.begin - first : 0),
         static_cast<int>(work.end - first < kv_heads ? work.end - first : kv_heads));
  }
}

AppendedToken::AppendedToken(const OpContext& context, const AppendKvOptions& options, int32_t token)
    : layout_(static_cast<const kv::CodecLayout&>(
          *context.step.kv[static_cast<size_t>(options.group)]
               .rows[static_cast<size_t>(context.step.row_of_token[static_cast<size_t>(token)])]
               .layout)),
      layer_(options.layer) {
  const auto& step = context.step;
  const kv::RowPages& row = step.kv[static_cast<size_t>(options.group)]
                                .rows[static_cast<size_t>(step.row_of_token[static_cast<size_t>(token)])];
  const int32_t position = step.kv_position[static_cast<size_t>(token)];
  const int32_t page_tokens = layout_.geometry().page_tokens;
  page_ = row.pages[position / page_tokens];
  slot_ = position % page_tokens;
}

void AppendedToken::append(int head, const float* k, const float* v) const {
  layout_.append(page_, layer_, head, slot_, k, v);
}

std::optional<AppendKvOptions> recorded_append_kv(const program::Op& op) {
  const auto* append = dynamic_cast<const AppendKv*>(&op);
  if (append == nullptr) return std::nullopt;
  return append->recorded();
}

void append_kv(program::ProgramBuilder& builder, program::ValueId k, program::ValueId v,
               const AppendKvOptions& options) {
  const program::Value &keys = builder.at(k), &values = builder.at(v);
  KVASIR_CHECK(keys.dtype == Dtype::f32 && values.dtype == Dtype::f32);
  KVASIR_CHECK(keys.width == static_cast<int64_t>(options.kv_heads) * options.head_dim_k);
  KVASIR_CHECK(values.width == static_cast<int64_t>(options.kv_heads) * options.head_dim_v);
  builder.append(std::make_unique<AppendKv>(k, v, options));
}

}  // namespace kvasir::ops
