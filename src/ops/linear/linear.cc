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

struct PlacedPart {
  LinearPart part;
  size_t input = 0;   // index of the op's input that it reads
  int64_t first = 0;  // first output column
};

class Linear final : public program::Op {
 public:
  Linear(std::vector<ValueId> in, ValueId y, std::vector<PlacedPart> parts, bool has_residual, int64_t cols,
         IsaLevel isa)
      : Op(std::move(in), {y}),
        parts_(std::move(parts)),
        has_residual_(has_residual),
        cols_(cols),
        isa_(isa) {}

  std::string_view kind() const override { return "linear"; }
  std::string describe() const override {
    std::string text;
    for (const PlacedPart& p : parts_)
      text += fmt::format("{}{} [{}, {}] {}{}{}{}", text.empty() ? "" : "; ", p.part.weight->name(),
                          columns_of(p.part), cols_, name(p.part.mode),
                          p.part.epilogue == Epilogue::swiglu  ? " swiglu"
                          : p.part.epilogue == Epilogue::geglu ? " geglu"
                                                               : "",
                          p.part.coarse_rows > 0 ? fmt::format(" (rows to {} int8)", p.part.coarse_rows) : "",
                          p.part.bias != nullptr ? " bias" : "");
    return text + (has_residual_ ? "; plus residual" : "");
  }
  int in_place_input() const override { return has_residual_ ? static_cast<int>(inputs().size()) - 1 : -1; }
  program::OpCost cost(int64_t rows) const override {
    program::OpCost cost;
    for (const PlacedPart& p : parts_) {
      cost.bytes += static_cast<double>(p.part.weight->bytes());
      cost.operations += 2.0 * static_cast<double>(rows) * static_cast<double>(p.part.weight->rows()) *
                         static_cast<double>(cols_);
    }
    return cost;
  }

  void run(const OpContext& context) const override {
    const ValueId y = outputs()[0];
    if (context.count(y) == 0) return;
    // Pieces of 16 columns of all parts in a row; where there are few, rows are shared out instead.
    int64_t units = 0;
    for (const PlacedPart& p : parts_) units += matmul_units(product_of(context, p));
    if (units < 4 * context.members) {
      for (const PlacedPart& p : parts_) matmul(product_of(context, p), context.member, context.members);
      return;
    }
    // Sixteen pieces a member, of pairs of panels.
    const int64_t grain = std::max<int64_t>(2, units / (int64_t{16} * context.members) / 2 * 2);
    WorkRange piece{};
    while (context.work.take(context.member, units, grain, piece)) {
      int64_t first = 0;
      for (const PlacedPart& p : parts_) {
        const int64_t count = matmul_units(product_of(context, p));
        const int64_t begin = std::max<int64_t>(piece.begin - first, 0),
                      end = std::min(piece.end - first, count);
        if (begin < end) matmul_piece(product_of(context, p), begin, end);
        first += count;
      }
    }
  }

 private:
  Matmul product_of(const OpContext& context, const PlacedPart& p) const {
    const ValueId in = inputs()[p.input], y = outputs()[0];
    Matmul product;
    product.input = {p.part.mode, context.row<const std::byte>(in, 0), context.stride(in), context.count(y),
                     cols_};
    product.weight = p.part.weight;
    product.out = context.row<float>(y, 0) + p.first;
    product.out_stride = static_cast<int64_t>(context.stride(y) / sizeof(float));
    product.bias = p.part.bias;
    if (has_residual_) {
      product.residual = context.row<const float>(inputs().back(), 0) + p.first;
      product.residual_stride = static_cast<int64_t>(context.stride(inputs().back()) / sizeof(float));
    }
    product.epilogue = p.part.epilogue;
    product.coarse_rows = p.part.coarse_rows;
    product.isa = isa_;
    return product;
  }

  std::vector<PlacedPart> parts_;
  bool has_residual_;
  int64_t cols_;
  IsaLevel isa_;
};

}  // namespace

ValueId linear(ProgramBuilder& builder, const std::string& value_name, const LinearInput& input,
               const std::vector<LinearPart>& parts, std::optional<ValueId> residual, IsaLevel isa) {
  const program::Value& x = builder.at(input.x);
  std::vector<ValueId> in;
  std::vector<PlacedPart> placed;
  int64_t columns = 0;
  for (const LinearPart& part : parts) {
    const bool rounded = part.mode != ActivationMode::f32;
    KVASIR_CHECK(part.weight != nullptr && (!rounded || input.prepared.contains(part.mode)));
    const ValueId form = rounded ? input.prepared.at(part.mode) : input.x;
    size_t index = 0;
    while (index < in.size() && in[index] != form) ++index;
    if (index == in.size()) in.push_back(form);
    placed.push_back({part, index, columns});
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
  const program::Axis axis = x.axis;
  const int64_t fixed_count = x.fixed_count, cols = x.width;
  const ValueId y = builder.value(value_name, Dtype::f32, axis, {columns}, fixed_count);
  builder.append(
      std::make_unique<Linear>(std::move(in), y, std::move(placed), residual.has_value(), cols, isa));
  return y;
}

}  // namespace kvasir::ops
