#include "ops/linear/linear.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ProgramBuilder;
using program::ValueId;

int64_t columns_of(const LinearPart& part) {
  return part.epilogue == Epilogue::none ? part.weight->rows() : part.weight->rows() / 2;
}

class Linear final : public program::Op {
 public:
  Linear(std::vector<ValueId> in, ValueId y, RecordedLinear what)
      : Op(std::move(in), {y}), what_(std::move(what)) {}

  std::string_view kind() const override { return "linear"; }
  std::string describe() const override { return what_.describe(); }
  int in_place_input() const override {
    return what_.has_residual ? static_cast<int>(inputs().size()) - 1 : -1;
  }
  program::OpCost cost(int64_t rows) const override { return what_.cost(rows); }
  const RecordedLinear& recorded() const { return what_; }

  void run(const OpContext& context) const override {
    if (context.count(outputs()[0]) == 0) return;
    // Pieces of 16 columns of all parts in a row; where there are few, rows are shared out instead.
    int64_t units = 0;
    for (const RecordedLinear::Part& p : what_.parts) units += matmul_units(product_of(context, p));
    if (units < 4 * context.members) {
      for (const RecordedLinear::Part& p : what_.parts)
        matmul(product_of(context, p), context.member, context.members);
      return;
    }
    const int64_t grain = what_.piece_units(units, context.members);
    WorkRange piece{};
    while (context.work.take(context.member, units, grain, piece)) {
      int64_t first = 0;
      for (const RecordedLinear::Part& p : what_.parts) {
        const int64_t count = matmul_units(product_of(context, p));
        const int64_t begin = std::max<int64_t>(piece.begin - first, 0),
                      end = std::min(piece.end - first, count);
        if (begin < end) matmul_piece(product_of(context, p), begin, end);
        first += count;
      }
    }
  }

 private:
  Matmul product_of(const OpContext& context, const RecordedLinear::Part& p) const {
    const ValueId y = outputs()[0];
    Matmul product = what_.product(context, inputs(), p, context.count(y));
    product.out = context.row<float>(y, 0) + p.first;
    product.out_stride = static_cast<int64_t>(context.stride(y) / sizeof(float));
    return product;
  }

  RecordedLinear what_;
};

}  // namespace

int64_t RecordedLinear::piece_units(int64_t units, int members) const {
  size_t bytes = 0;
  for (const Part& p : parts) bytes += p.part.weight->bytes();
  const int64_t least = static_cast<int64_t>((size_t{16} << 10) * static_cast<size_t>(units) / bytes);
  return std::max<int64_t>(2, (std::max(units / (int64_t{16} * members), least) + 1) / 2 * 2);
}

std::string RecordedLinear::describe() const {
  std::string text;
  for (const Part& p : parts)
    text += fmt::format("{}{} [{}, {}] {}{}{}{}", text.empty() ? "" : "; ", p.part.weight->name(),
                        columns_of(p.part), cols, name(p.part.mode),
                        p.part.epilogue == Epilogue::swiglu  ? " swiglu"
                        : p.part.epilogue == Epilogue::geglu ? " geglu"
                                                             : "",
                        p.part.coarse_rows > 0 ? fmt::format(" (rows to {} int8)", p.part.coarse_rows) : "",
                        p.part.bias != nullptr ? " bias" : "");
  return text + (has_residual ? "; plus residual" : "");
}

program::OpCost RecordedLinear::cost(int64_t rows) const {
  program::OpCost cost;
  for (const Part& p : parts) {
    cost.bytes += static_cast<double>(p.part.weight->bytes());
    cost.weight_bytes = cost.bytes;
    cost.operations += 2.0 * static_cast<double>(rows) * static_cast<double>(p.part.weight->rows()) *
                       static_cast<double>(cols);
  }
  return cost;
}

Matmul RecordedLinear::product(const OpContext& context, const std::vector<ValueId>& inputs, const Part& p,
                               int64_t rows) const {
  const ValueId in = inputs[p.input];
  Matmul product;
  product.input = {p.part.mode, context.row<const std::byte>(in, 0), context.stride(in), rows, cols};
  product.weight = p.part.weight;
  product.bias = p.part.bias;
  if (has_residual) {
    product.residual = context.row<const float>(inputs.back(), 0) + p.first;
    product.residual_stride = static_cast<int64_t>(context.stride(inputs.back()) / sizeof(float));
  }
  product.epilogue = p.part.epilogue;
  product.coarse_rows = p.part.coarse_rows;
  product.isa = isa;
  return product;
}

std::optional<RecordedLinear> recorded_linear(const program::Op& op) {
  const auto* linear = dynamic_cast<const Linear*>(&op);
  if (linear == nullptr) return std::nullopt;
  return linear->recorded();
}

ValueId linear(ProgramBuilder& builder, const std::string& value_name, const LinearInput& input,
               const std::vector<LinearPart>& parts, std::optional<ValueId> residual, IsaLevel isa) {
  const program::Value& x = builder.at(input.x);
  std::vector<ValueId> in;
  RecordedLinear what;
  int64_t columns = 0;
  for (const LinearPart& part : parts) {
    const bool rounded = part.mode != ActivationMode::f32;
    KVASIR_CHECK(part.weight != nullptr && (!rounded || input.prepared.contains(part.mode)));
    const ValueId form = rounded ? input.prepared.at(part.mode) : input.x;
    size_t index = 0;
    while (index < in.size() && in[index] != form) ++index;
    if (index == in.size()) in.push_back(form);
    what.parts.push_back({part, index, columns});
    columns += columns_of(part);
    Matmul product;
    product.input = {part.mode, nullptr, 0, 0, x.width};
    product.weight = part.weight;
    product.epilogue = part.epilogue;
    product.coarse_rows = part.coarse_rows;
    check_matmul(product);
  }
  if (residual) {
    KVASIR_CHECK(builder.at(*residual).width == columns && builder.at(*residual).axis == x.axis);
    in.push_back(*residual);
  }
  what.has_residual = residual.has_value();
  what.cols = x.width;
  what.isa = isa;
  const program::Axis axis = x.axis;
  const int64_t fixed_count = x.fixed_count;
  const ValueId y = builder.value(value_name, Dtype::f32, axis, {columns}, fixed_count);
  builder.append(std::make_unique<Linear>(std::move(in), y, std::move(what)));
  return y;
}

}  // namespace kvasir::ops
