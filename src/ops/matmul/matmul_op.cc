#include "ops/matmul/matmul_op.h"

#include <cstring>

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

class PrepareActivations final : public program::Op {
 public:
  PrepareActivations(ValueId x, ValueId y, ActivationMode mode, int64_t cols, IsaLevel isa)
      : Op({x}, {y}), mode_(mode), cols_(cols), isa_(isa) {}

  std::string_view kind() const override { return "prepare_activations"; }
  std::string describe() const override { return std::string(name(mode_)); }
  RecordedPrepare recorded() const { return {mode_, cols_, isa_}; }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * cols_);
    return {elements * 4 + static_cast<double>(rows) * static_cast<double>(prepared_row_bytes(cols_, mode_)),
            elements * 4};
  }
  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const int64_t count = context.count(x);
    if (count < context.members) {  // columns are shared out instead
      const WorkRange columns = split_work(cols_, context.members, context.member, 256);
      if (columns.begin < columns.end)
        prepare_columns(mode_, context.row<const float>(x, 0) + columns.begin,
                        static_cast<int64_t>(context.stride(x) / sizeof(float)), cols_, columns.begin,
                        columns.end, count, context.row<std::byte>(y, 0), context.stride(y), isa_);
      return;
    }
    const WorkRange rows = split_work(count, context.members, context.member);
    prepare_activations(mode_, context.row<const float>(x, 0),
                        static_cast<int64_t>(context.stride(x) / sizeof(float)), cols_, rows.begin, rows.end,
                        context.row<std::byte>(y, 0), context.stride(y), isa_);
  }

 private:
  ActivationMode mode_;
  int64_t cols_;
  IsaLevel isa_;
};

std::vector<ValueId> operands(ValueId x, const MatmulOptions& options) {
  std::vector<ValueId> list = {x};
  if (options.residual) list.push_back(*options.residual);
  return list;
}

class MatmulOp final : public program::Op {
 public:
  MatmulOp(ValueId x, ValueId y, ActivationMode mode, const Matmul& product, const MatmulOptions& options)
      : Op(operands(x, options), {y}), mode_(mode), product_(product) {}

  std::string_view kind() const override { return "matmul"; }
  std::string describe() const override {
    const PackedMatrix& weight = *product_.weight;
    std::string text =
        fmt::format("{} [{}, {}] {} ({}), {} activations", weight.name(), weight.rows(), weight.cols(),
                    formats::name(weight.format()), ops::describe(weight.layout()), name(mode_));
    if (product_.weight_end > 0)
      text += fmt::format(", rows {} to {}", product_.weight_begin, product_.weight_end);
    if (product_.bias != nullptr) text += ", + bias";
    if (product_.epilogue == Epilogue::swiglu) text += ", silu(gate) * up";
    if (product_.epilogue == Epilogue::geglu) text += ", gelu(gate) * up";
    if (inputs().size() == 2) text += ", + residual";
    return text;
  }
  // The member that writes an element has read the residual's before.
  int in_place_input() const override { return inputs().size() == 2 ? 1 : -1; }
  program::OpCost cost(int64_t rows) const override {
    const PackedMatrix& weight = *product_.weight;
    const int64_t out = product_.weight_end > 0 ? product_.weight_end - product_.weight_begin : weight.rows();
    const double share = static_cast<double>(out) / static_cast<double>(weight.rows());
    const auto tokens = static_cast<double>(rows);
    const double weight_bytes = static_cast<double>(weight.stored_bytes()) * share;
    return {weight_bytes + tokens * (static_cast<double>(prepared_row_bytes(weight.cols(), mode_)) +
                                     4.0 * static_cast<double>(out)),
            2.0 * tokens * static_cast<double>(out) * static_cast<double>(weight.cols()), weight_bytes};
  }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    Matmul product = product_;
    product.input.data = context.row<const std::byte>(x, 0);
    product.input.stride = context.stride(x);
    product.input.rows = context.count(x);
    product.out = context.row<float>(y, 0);
    product.out_stride = static_cast<int64_t>(context.stride(y) / sizeof(float));
    if (inputs().size() == 2) {
      product.residual = context.row<const float>(inputs()[1], 0);
      product.residual_stride = static_cast<int64_t>(context.stride(inputs()[1]) / sizeof(float));
    }
    matmul(product, context.member, context.members);
  }

 private:
  ActivationMode mode_;
  Matmul product_;
};

class GatherRows final : public program::Op {
 public:
  GatherRows(ValueId y, const PackedMatrix& table, float scale, IsaLevel isa)
      : Op({}, {y}), table_(table), scale_(scale), isa_(isa) {}

  std::string_view kind() const override { return "gather_rows"; }
  std::string describe() const override {
    std::string text = fmt::format("{} [{}, {}] {}", table_.name(), table_.rows(), table_.cols(),
                                   formats::name(table_.format()));
    if (scale_ != 1.0f) text += fmt::format(", times {:g}", scale_);
    return text;
  }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * table_.cols());
    return {4 * elements + static_cast<double>(table_.stored_bytes()) * static_cast<double>(rows) /
                               static_cast<double>(table_.rows()),
            elements};
  }

  void run(const OpContext& context) const override {
    const ValueId y = outputs()[0];
    const auto cols = static_cast<size_t>(table_.cols());
    const WorkRange tokens = split_work(context.counts.tokens, context.members, context.member);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      float* out = context.row<float>(y, t);
      const int32_t id = context.step.token_ids[static_cast<size_t>(t)];
      if (id < 0) {
        std::memcpy(
            out, context.step.external_embeddings + static_cast<int64_t>(~id) * context.step.external_stride,
            cols * sizeof(float));
        continue;
      }
      table_.unpack_row(id, 0, {out, cols}, isa_);
      for (float factor : {table_.tensor_scale(), scale_})
        if (factor != 1.0f)
          for (size_t c = 0; c < cols; ++c) out[c] *= factor;
    }
  }

 private:
  const PackedMatrix& table_;
  float scale_;
  IsaLevel isa_;
};

}  // namespace

ValueId prepare_activations(program::ProgramBuilder& builder, ValueId x, ActivationMode mode, IsaLevel isa) {
  const program::Value& value = builder.at(x);
  KVASIR_CHECK(value.dtype == Dtype::f32);
  if (mode == ActivationMode::f32) return x;
  const int64_t cols = value.width;
  const ValueId y = builder.value(value.name + "." + std::string(name(mode)), Dtype::u8, value.axis,
                                  {static_cast<int64_t>(prepared_row_bytes(cols, mode))}, value.fixed_count);
  builder.append(std::make_unique<PrepareActivations>(x, y, mode, cols, isa));
  return y;
}

ValueId matmul(program::ProgramBuilder& builder, ValueId x, ActivationMode mode, const PackedMatrix& weight,
               const MatmulOptions& options, IsaLevel isa) {
  const program::Value& value = builder.at(x);
  Matmul product;
  product.weight = &weight;
  product.input.mode = mode;
  product.input.cols = weight.cols();
  product.bias = options.bias;
  product.epilogue = options.epilogue;
  product.weight_begin = options.weight_begin;
  product.weight_end = options.weight_end;
  product.isa = isa;
  check_matmul(product);
  if (mode == ActivationMode::f32) {
    KVASIR_CHECK_MSG(value.dtype == Dtype::f32 && value.width == weight.cols(), "{}: {} columns, {} has {}",
                     weight.name(), weight.cols(), value.name, value.width);
  } else {
    KVASIR_CHECK_MSG(value.dtype == Dtype::u8 &&
                         value.width == static_cast<int64_t>(prepared_row_bytes(weight.cols(), mode)),
                     "{}: {} was not prepared for {} columns in mode {}", weight.name(), value.name,
                     weight.cols(), name(mode));
  }
  const int64_t cols = out_columns(product);
  const ValueId y =
      builder.value(options.name, Dtype::f32, value.axis,
                    options.inner.empty() ? std::vector<int64_t>{cols} : options.inner, value.fixed_count);
  KVASIR_CHECK(builder.at(y).width == cols);
  if (options.residual) {
    const program::Value& residual = builder.at(*options.residual);
    KVASIR_CHECK(residual.dtype == Dtype::f32 && residual.width == cols &&
                 residual.axis == builder.at(y).axis);
  }
  builder.append(std::make_unique<MatmulOp>(x, y, mode, product, options));
  return y;
}

ValueId gather_rows(program::ProgramBuilder& builder, const PackedMatrix& table, float scale, IsaLevel isa) {
  const ValueId y = builder.value("embedding", Dtype::f32, program::Axis::tokens, {table.cols()});
  builder.append(std::make_unique<GatherRows>(y, table, scale, isa));
  return y;
}

std::optional<RecordedPrepare> recorded_prepare(const program::Op& op) {
  const auto* prepare = dynamic_cast<const PrepareActivations*>(&op);
  if (prepare == nullptr) return std::nullopt;
  return prepare->recorded();
}

}  // namespace kvasir::ops
