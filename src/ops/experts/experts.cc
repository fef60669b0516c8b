#include "ops/experts/experts.h"

#include <cstring>

#include "base/error.h"
#include "ops/element_blocks.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

std::vector<ValueId> operands(ValueId prepared, ValueId logits, std::optional<ValueId> residual) {
  std::vector<ValueId> list = {prepared, logits};
  if (residual) list.push_back(*residual);
  return list;
}

// Pieces of the op's workspace, one after the other, each on a cache line.
class Layout {
 public:
  size_t add(size_t bytes) {
    const size_t at = align_up(end_, kCacheLine);
    end_ = at + bytes;
    return at;
  }
  size_t bytes() const { return align_up(end_, kCacheLine); }

 private:
  size_t end_ = 0;
};

class Experts final : public program::Op {
 public:
  Experts(ValueId prepared, ValueId logits, ValueId y, const ExpertsOptions& options,
          std::optional<ValueId> residual, int64_t hidden, program::Axis axis, IsaLevel isa)
      : Op(operands(prepared, logits, residual), {y}),
        options_(options),
        residual_(residual.has_value()),
        hidden_(hidden),
        axis_(axis),
        inner_(options.experts.front().down->cols()),
        kernels_(experts_kernels(isa)),
        isa_(isa) {}

  std::string_view kind() const override { return "experts"; }
  std::string describe() const override {
    return fmt::format("{} of {} experts [{}, {}], {} and {} activations{}", options_.used,
                       options_.experts.size(), inner_, hidden_, name(options_.gate_up_mode),
                       name(options_.down_mode), residual_ ? ", + residual" : "");
  }
  int in_place_input() const override { return residual_ ? 2 : -1; }
  size_t workspace_bytes(const program::Counts& maxima, int threads) const override {
    return place(maxima.along(axis_), threads).bytes;
  }
  program::OpCost cost(int64_t rows) const override {
    const auto assigned = static_cast<double>(rows * options_.used);
    const double touched = std::min(assigned, static_cast<double>(options_.experts.size()));
    const ExpertWeights& e = options_.experts.front();
    const double bytes = touched * static_cast<double>(e.gate_up->bytes() + e.down->bytes());
    return {bytes, assigned * 6.0 * static_cast<double>(inner_) * static_cast<double>(hidden_), bytes};
  }

  void run(const OpContext& context) const override {
    const int64_t tokens = context.count(outputs()[0]);
    if (tokens == 0) return;
    const Places at = place(tokens, context.members);
    const int64_t rows = tokens * options_.used;
    auto* chosen = reinterpret_cast<int32_t*>(context.workspace + at.chosen);
    auto* weights = reinterpret_cast<float*>(context.workspace + at.weights);
    std::byte* gathered = context.workspace + at.gathered;
    auto* inner = reinterpret_cast<float*>(context.workspace + at.inner);
    std::byte* rounded = context.workspace + at.rounded;
    auto* outer = reinterpret_cast<float*>(context.workspace + at.outer);

    // 1. Every token chooses.
    {
      auto* scratch =
          reinterpret_cast<float*>(context.workspace + at.scratch) + context.member * scratch_floats();
      const WorkRange work = split_work(tokens, context.members, context.member);
      for (int64_t t = work.begin; t < work.end; ++t)
        kernels_.route(context.row<const float>(inputs()[1], t), expert_count(), options_.used,
                       options_.normalize, scratch, chosen + t * options_.used, weights + t * options_.used);
    }
    context.team.barrier();

    // 2. Assignments sorted by expert, tokens ascending; every member makes its own copy of the same order.
    auto* first =
        reinterpret_cast<int32_t*>(context.workspace + at.order) + context.member * order_ints(tokens);
    int32_t* slot_of = first + expert_count() + 1;
    sort(chosen, rows, first, slot_of);
    {
      const WorkRange work = split_work(rows, context.members, context.member);
      const size_t bytes = row_bytes(hidden_, options_.gate_up_mode);
      for (int64_t i = work.begin; i < work.end; ++i)
        std::memcpy(gathered + static_cast<size_t>(slot_of[i]) * bytes,
                    context.row<const std::byte>(inputs()[0], i / options_.used),
                    options_.gate_up_mode == ActivationMode::f32
                        ? static_cast<size_t>(hidden_) * sizeof(float)
                        : bytes);
    }
    context.team.barrier();

    // 3. and 5. An expert's rows lie together; products of different experts write different rows.
    auto products = [&](bool up, const std::byte* in, size_t in_stride, ActivationMode mode, float* out,
                        int64_t out_stride, int64_t cols) {
      for (int64_t e = 0; e < expert_count(); ++e) {
        const int64_t count = first[e + 1] - first[e];
        if (count == 0) continue;
        Matmul product;
        product.input = {mode, in + static_cast<size_t>(first[e]) * in_stride, in_stride, count, cols};
        product.weight = up ? options_.experts[static_cast<size_t>(e)].gate_up
                            : options_.experts[static_cast<size_t>(e)].down;
        product.out = out + first[e] * out_stride;
        product.out_stride = out_stride;
        product.epilogue = up ? options_.epilogue : Epilogue::none;
        product.isa = isa_;
        matmul(product, context.member, context.members);
      }
    };
    products(true, gathered, row_bytes(hidden_, options_.gate_up_mode), options_.gate_up_mode, inner,
             inner_stride(), hidden_);
    context.team.barrier();

    // 4. The inner activations rounded for the second product.
    const std::byte* down_input = reinterpret_cast<const std::byte*>(inner);
    size_t down_stride = static_cast<size_t>(inner_stride()) * sizeof(float);
    if (options_.down_mode != ActivationMode::f32) {
      const WorkRange work = split_work(rows, context.members, context.member);
      const size_t bytes = row_bytes(inner_, options_.down_mode);
      if (work.begin < work.end)
        prepare_activations(options_.down_mode, inner, inner_stride(), inner_, work.begin, work.end, rounded,
                            bytes, isa_);
      context.team.barrier();
      down_input = rounded;
      down_stride = bytes;
    }
    products(false, down_input, down_stride, options_.down_mode, outer, outer_stride(), inner_);
    context.team.barrier();

    // 6. Each token's sum, in router order.
    for_each_block(context, tokens, hidden_, [&](int64_t token, int64_t column, int64_t count) {
      const float* list[kMostUsed];
      for (int64_t k = 0; k < options_.used; ++k)
        list[k] = outer + static_cast<int64_t>(slot_of[token * options_.used + k]) * outer_stride() + column;
      kernels_.combine(list, weights + token * options_.used, options_.used,
                       residual_ ? context.row<const float>(inputs()[2], token) + column : nullptr,
                       context.row<float>(outputs()[0], token) + column, count);
    });
  }

  static constexpr int64_t kMostUsed = 64;

 private:
  struct Places {
    size_t chosen, weights, scratch, order, gathered, inner, rounded, outer, bytes;
  };

  int64_t expert_count() const { return static_cast<int64_t>(options_.experts.size()); }
  int64_t scratch_floats() const { return (expert_count() + 15) / 16 * 16; }
  int64_t order_ints(int64_t tokens) const {
    return (expert_count() + 1 + tokens * options_.used + 15) / 16 * 16;
  }
  int64_t inner_stride() const { return (inner_ + 15) / 16 * 16; }
  int64_t outer_stride() const { return (hidden_ + 15) / 16 * 16; }
  static size_t row_bytes(int64_t cols, ActivationMode mode) {
    return align_up(prepared_row_bytes(cols, mode), kCacheLine);
  }

  // Offsets in the workspace, for a step of `tokens` tokens.
  Places place(int64_t tokens, int members) const {
    const auto rows = static_cast<size_t>(tokens * options_.used);
    const auto team = static_cast<size_t>(members);
    Layout layout;
    Places at{};
    at.chosen = layout.add(rows * sizeof(int32_t));
    at.weights = layout.add(rows * sizeof(float));
    at.scratch = layout.add(team * static_cast<size_t>(scratch_floats()) * sizeof(float));
    at.order = layout.add(team * static_cast<size_t>(order_ints(tokens)) * sizeof(int32_t));
    at.gathered = layout.add(rows * row_bytes(hidden_, options_.gate_up_mode));
    at.inner = layout.add(rows * static_cast<size_t>(inner_stride()) * sizeof(float));
    at.rounded = layout.add(
        options_.down_mode == ActivationMode::f32 ? 0 : rows * row_bytes(inner_, options_.down_mode));
    at.outer = layout.add(rows * static_cast<size_t>(outer_stride()) * sizeof(float));
    at.bytes = layout.bytes();
    return at;
  }

  // Counting sort: first[e] .. first[e + 1] are the slots of expert e.
  void sort(const int32_t* chosen, int64_t rows, int32_t* first, int32_t* slot_of) const {
    const int64_t count = expert_count();
    for (int64_t e = 0; e <= count; ++e) first[e] = 0;
    for (int64_t i = 0; i < rows; ++i) ++first[chosen[i] + 1];
    for (int64_t e = 0; e < count; ++e) first[e + 1] += first[e];
    for (int64_t i = 0; i < rows; ++i) slot_of[i] = first[chosen[i]]++;
    for (int64_t e = count; e > 0; --e) first[e] = first[e - 1];
    first[0] = 0;
  }

  ExpertsOptions options_;
  bool residual_;
  int64_t hidden_;
  program::Axis axis_;
  int64_t inner_;
  const ExpertsKernels& kernels_;
  IsaLevel isa_;
};

}  // namespace

ValueId experts(program::ProgramBuilder& builder, ValueId prepared, ValueId router_logits,
                const ExpertsOptions& options, std::optional<ValueId> residual, IsaLevel isa) {
  const auto count = static_cast<int64_t>(options.experts.size());
  KVASIR_CHECK(count > 0 && options.used > 0 && options.used <= count && options.used <= Experts::kMostUsed);
  KVASIR_CHECK(builder.at(router_logits).width == count);
  const int64_t hidden = options.experts.front().gate_up->cols();
  for (const ExpertWeights& e : options.experts) {
    Matmul product;
    product.input = {options.gate_up_mode, nullptr, 0, 0, hidden};
    product.weight = e.gate_up;
    product.epilogue = options.epilogue;
    check_matmul(product);
    product.input = {options.down_mode, nullptr, 0, 0, e.gate_up->rows() / 2};
    product.weight = e.down;
    product.epilogue = Epilogue::none;
    check_matmul(product);
    KVASIR_CHECK(e.down->rows() == hidden);
  }
  if (residual) KVASIR_CHECK(builder.at(*residual).width == hidden);
  const program::Axis axis = builder.at(router_logits).axis;
  const ValueId y = builder.value("experts_out", Dtype::f32, axis, {hidden});
  builder.append(std::make_unique<Experts>(prepared, router_logits, y, options, residual, hidden, axis, isa));
  return y;
}

}  // namespace kvasir::ops
