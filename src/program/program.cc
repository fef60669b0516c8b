#include "program/program.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kvasir::program {
namespace {

int64_t product(const std::vector<int64_t>& inner) {
  int64_t width = 1;
  for (int64_t n : inner) {
    KVASIR_CHECK(n > 0);
    width *= n;
  }
  return width;
}

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::fixed:
      return "fixed";
    case Axis::tokens:
      return "tokens";
    case Axis::rows:
      return "rows";
    case Axis::logits:
      return "logits";
  }
  return "?";
}

std::string shape_text(const Value& value) {
  std::string text = "[" + (value.axis == Axis::fixed ? std::to_string(value.fixed_count)
                                                      : std::string(axis_name(value.axis)));
  for (int64_t n : value.inner) text += ", " + std::to_string(n);
  return text + "] " + std::string(name(value.dtype));
}

}  // namespace

ValueId ProgramBuilder::value(std::string value_name, Dtype dtype, Axis axis, std::vector<int64_t> inner,
                              int64_t fixed_count) {
  Value value;
  value.name = std::move(value_name);
  value.dtype = dtype;
  value.axis = axis;
  value.fixed_count = fixed_count;
  value.width = product(inner);
  value.inner = std::move(inner);
  value.stride = align_up(static_cast<size_t>(value.width) * size_of(dtype), kCacheLine);
  values_.push_back(std::move(value));
  return {static_cast<int32_t>(values_.size() - 1)};
}

ValueId ProgramBuilder::input(std::string value_name, Dtype dtype, Axis axis, std::vector<int64_t> inner) {
  const std::string key = value_name;
  const ValueId id = value(std::move(value_name), dtype, axis, std::move(inner));
  KVASIR_CHECK(inputs_.emplace(key, id).second);
  return id;
}

ValueId ProgramBuilder::columns(ValueId base, std::string value_name, int64_t first,
                                std::vector<int64_t> inner) {
  const Value& whole = at(base);
  const int64_t width = product(inner);
  KVASIR_CHECK(first >= 0 && first + width <= whole.width);
  Value value;
  value.name = std::move(value_name);
  value.dtype = whole.dtype;
  value.axis = whole.axis;
  value.fixed_count = whole.fixed_count;
  value.width = width;
  value.inner = std::move(inner);
  value.stride = whole.stride;
  // A view of a view refers to the buffer itself.
  value.base = whole.base.valid() ? whole.base : base;
  value.offset = whole.offset + static_cast<size_t>(first) * size_of(whole.dtype);
  values_.push_back(std::move(value));
  return {static_cast<int32_t>(values_.size() - 1)};
}

void ProgramBuilder::append(std::unique_ptr<Op> op) {
  ops_.push_back(std::move(op));
}

void ProgramBuilder::output(const std::string& output_name, ValueId id) {
  KVASIR_CHECK(outputs_.emplace(output_name, id).second);
}

const Value& ProgramBuilder::at(ValueId id) const {
  KVASIR_CHECK(id.valid() && static_cast<size_t>(id.index) < values_.size());
  return values_[static_cast<size_t>(id.index)];
}

bool ProgramBuilder::is_output(ValueId id) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const auto& output) { return output.second == id || at(output.second).base == id; });
}

std::optional<size_t> ProgramBuilder::only_reader(ValueId id) const {
  std::optional<size_t> reader;
  for (size_t i = 0; i < ops_.size(); ++i)
    for (const ValueId in : ops_[i]->inputs()) {
      if (in != id && at(in).base != id) continue;
      if (reader && *reader != i) return std::nullopt;
      reader = i;
    }
  return reader;
}

Program ProgramBuilder::plan(const Counts& maxima, int threads) && {
  const int op_count = static_cast<int>(ops_.size());
  const size_t value_count = values_.size();
  // Lifetimes of buffers; a view's uses count for its base.
  std::vector<int> first(value_count, -1), last(value_count, -1);
  auto buffer = [&](ValueId id) {
    return static_cast<size_t>((at(id).base.valid() ? at(id).base : id).index);
  };
  std::vector<bool> is_input(value_count, false);
  for (const auto& [key, id] : inputs_) is_input[static_cast<size_t>(id.index)] = true;
  for (int i = 0; i < op_count; ++i) {
    const Op& op = *ops_[static_cast<size_t>(i)];
    for (ValueId id : op.inputs()) {
      const size_t b = buffer(id);
      KVASIR_CHECK_MSG(first[b] >= 0 || is_input[b], "op {} ({}) reads {} before it is written", i, op.kind(),
                       at(id).name);
      last[b] = i;
    }
    for (ValueId id : op.outputs()) {
      const size_t b = buffer(id);
      KVASIR_CHECK_MSG(!is_input[b], "op {} ({}) writes the input {}", i, op.kind(), at(id).name);
      // A buffer is written once, by one op: either whole, or through column views in one op's outputs.
      KVASIR_CHECK_MSG(first[b] < 0 || first[b] == i, "op {} ({}) writes {} a second time", i, op.kind(),
                       at(id).name);
      first[b] = i;
      last[b] = std::max(last[b], i);
    }
  }
  for (const auto& [key, id] : outputs_) {
    const size_t b = buffer(id);
    KVASIR_CHECK_MSG(first[b] >= 0, "output {} is never written", key);
    last[b] = op_count;
  }

  // An op that may work in place hands its input's buffer to its output when it is the last reader of the
  // whole buffer.
  std::vector<int> shares(value_count, -1);
  auto root = [&](size_t v) {
    while (shares[v] >= 0) v = static_cast<size_t>(shares[v]);
    return v;
  };
  for (int i = 0; i < op_count; ++i) {
    const Op& op = *ops_[static_cast<size_t>(i)];
    const int which = op.in_place_input();
    if (which < 0) continue;
    KVASIR_CHECK(op.outputs().size() == 1);
    const ValueId in = op.inputs()[static_cast<size_t>(which)], out = op.outputs()[0];
    const Value& in_value = at(in);
    const Value& out_value = at(out);
    if (in_value.base.valid() || out_value.base.valid() || is_input[static_cast<size_t>(in.index)]) continue;
    if (last[static_cast<size_t>(in.index)] != i || in_value.stride != out_value.stride ||
        in_value.axis != out_value.axis || in_value.fixed_count != out_value.fixed_count)
      continue;
    const size_t keeper = root(static_cast<size_t>(in.index));
    shares[static_cast<size_t>(out.index)] = static_cast<int>(keeper);
    last[keeper] = std::max(last[keeper], last[static_cast<size_t>(out.index)]);
  }

  // Place the largest buffers first, each at the lowest offset that no buffer alive at the same time
  // occupies.
  Program program;
  program.placements_.resize(value_count);
  std::vector<size_t> order;
  for (size_t v = 0; v < value_count; ++v) {
    Placement& placement = program.placements_[v];
    placement.first_op = first[v];
    placement.last_op = last[v];
    if (values_[v].base.valid() || is_input[v] || first[v] < 0) continue;
    placement.bytes = align_up(static_cast<size_t>(values_[v].count(maxima)) * values_[v].stride, kCacheLine);
    if (shares[v] < 0) order.push_back(v);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return program.placements_[a].bytes > program.placements_[b].bytes;
  });
  std::vector<size_t> placed;
  size_t peak = 0;
  for (size_t v : order) {
    Placement& placement = program.placements_[v];
    std::vector<const Placement*> conflicts;
    for (size_t other : placed) {
      const Placement& p = program.placements_[other];
      if (p.first_op <= placement.last_op && placement.first_op <= p.last_op) conflicts.push_back(&p);
    }
    std::sort(conflicts.begin(), conflicts.end(),
              [](const Placement* a, const Placement* b) { return a->offset < b->offset; });
    size_t offset = 0;
    for (const Placement* p : conflicts) {
      if (offset + placement.bytes <= p->offset) break;
      offset = std::max(offset, p->offset + p->bytes);
    }
    placement.offset = offset;
    peak = std::max(peak, offset + placement.bytes);
    placed.push_back(v);
  }
  for (size_t v = 0; v < value_count; ++v)
    if (shares[v] >= 0) program.placements_[v].offset = program.placements_[root(v)].offset;

  size_t scratch = 0;
  for (const auto& op : ops_) scratch = std::max(scratch, op->workspace_bytes(maxima, threads));
  program.op_workspace_offset_ = peak;
  program.block_bytes_ = peak + align_up(scratch, kCacheLine);
  program.ops_ = std::move(ops_);
  program.values_.assign(std::make_move_iterator(values_.begin()), std::make_move_iterator(values_.end()));
  values_.clear();
  program.outputs_ = std::move(outputs_);
  program.inputs_ = std::move(inputs_);
  program.maxima_ = maxima;
  program.threads_ = threads;
  program.data_.assign(value_count, nullptr);
  return program;
}

void Program::allocate(Arena& arena) {
  KVASIR_CHECK(block_ == nullptr);
  block_ = arena.allocate(block_bytes_);
  for (size_t v = 0; v < values_.size(); ++v)
    if (placements_[v].bytes > 0) data_[v] = block_ + placements_[v].offset;
  for (size_t v = 0; v < values_.size(); ++v)
    if (values_[v].base.valid()) {
      std::byte* base = data_[static_cast<size_t>(values_[v].base.index)];
      if (base != nullptr) data_[v] = base + values_[v].offset;
    }
}

void Program::bind(ValueId id, std::byte* data) {
  data_[static_cast<size_t>(id.index)] = data;
  for (size_t v = 0; v < values_.size(); ++v)
    if (values_[v].base == id) data_[v] = data + values_[v].offset;
}

OpCost Program::cost(size_t op, const Counts& counts) const {
  const Op& of = *ops_[op];
  const ValueId value = of.outputs().empty() ? of.inputs()[0] : of.outputs()[0];
  return of.cost(values_[static_cast<size_t>(value.index)].count(counts));
}

OpCost Program::cost(size_t op, const StepState& step) const {
  const Op& of = *ops_[op];
  const ValueId value = of.outputs().empty() ? of.inputs()[0] : of.outputs()[0];
  const Counts counts{step.tokens, step.rows, step.logits};
  return of.cost_in_step(values_[static_cast<size_t>(value.index)].count(counts), step);
}

ValueId Program::output(const std::string& output_name) const {
  const auto found = outputs_.find(output_name);
  KVASIR_CHECK_MSG(found != outputs_.end(), "program has no output {}", output_name);
  return found->second;
}

ValueId Program::input(const std::string& input_name) const {
  const auto found = inputs_.find(input_name);
  KVASIR_CHECK_MSG(found != inputs_.end(), "program has no input {}", input_name);
  return found->second;
}

std::string Program::dump() const {
  auto describe = [&](ValueId id) {
    const Value& value = values_[static_cast<size_t>(id.index)];
    return fmt::format("%{}:{} {}", id.index, value.name, shape_text(value));
  };
  std::string text = fmt::format(
      "program: {} ops, maxima tokens={} rows={} logits={}, threads={}, block {} bytes (buffers {}, scratch "
      "{})\n",
      ops_.size(), maxima_.tokens, maxima_.rows, maxima_.logits, threads_, block_bytes_, op_workspace_offset_,
      block_bytes_ - op_workspace_offset_);
  // Views of a value's columns, which ops read by names of their own.
  const auto views_of = [&](ValueId base) {
    std::string lines;
    for (size_t v = 0; v < values_.size(); ++v)
      if (values_[v].base == base)
        lines += fmt::format("\n           {} = columns from {} of %{}", describe({static_cast<int32_t>(v)}),
                             values_[v].offset / size_of(values_[v].dtype), base.index);
    return lines;
  };
  for (const auto& [key, id] : inputs_)
    text += fmt::format("  input {} = {}{}\n", key, describe(id), views_of(id));
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = *ops_[i];
    text += fmt::format("{:5} {}(", i, op.kind());
    for (size_t j = 0; j < op.inputs().size(); ++j)
      text += fmt::format("{}%{}", j == 0 ? "" : ", ", op.inputs()[j].index);
    text += ")";
    if (const std::string attributes = op.describe(); !attributes.empty()) text += " {" + attributes + "}";
    for (ValueId id : op.outputs()) {
      const Value& value = values_[static_cast<size_t>(id.index)];
      const size_t b = static_cast<size_t>((value.base.valid() ? value.base : id).index);
      text += fmt::format("\n        -> {}  @{}+{} alive {}..{}", describe(id),
                          placements_[b].offset + value.offset, placements_[b].bytes, placements_[b].first_op,
                          placements_[b].last_op);
      text += views_of(id);
    }
    text += "\n";
  }
  for (const auto& [key, id] : outputs_) text += fmt::format("  output {} = {}\n", key, describe(id));
  return text;
}

std::string Program::dump_json() const {
  nlohmann::ordered_json json;
  json["maxima"] = {{"tokens", maxima_.tokens}, {"rows", maxima_.rows}, {"logits", maxima_.logits}};
  json["threads"] = threads_;
  json["block_bytes"] = block_bytes_;
  json["scratch_bytes"] = block_bytes_ - op_workspace_offset_;
  json["values"] = nlohmann::ordered_json::array();
  for (size_t v = 0; v < values_.size(); ++v) {
    const Value& value = values_[v];
    nlohmann::ordered_json entry = {{"id", v},
                                    {"name", value.name},
                                    {"dtype", name(value.dtype)},
                                    {"axis", axis_name(value.axis)},
                                    {"inner", value.inner},
                                    {"stride", value.stride}};
    if (value.base.valid()) {
      entry["base"] = value.base.index;
      entry["offset"] = value.offset;
    } else {
      entry["offset"] = placements_[v].offset;
      entry["bytes"] = placements_[v].bytes;
      entry["first_op"] = placements_[v].first_op;
      entry["last_op"] = placements_[v].last_op;
    }
    json["values"].push_back(std::move(entry));
  }
  json["ops"] = nlohmann::ordered_json::array();
  for (const auto& op : ops_) {
    nlohmann::ordered_json entry = {{"kind", op->kind()}, {"attributes", op->describe()}};
    for (ValueId id : op->inputs()) entry["inputs"].push_back(id.index);
    for (ValueId id : op->outputs()) entry["outputs"].push_back(id.index);
    json["ops"].push_back(std::move(entry));
  }
  for (const auto& [key, id] : inputs_) json["inputs"][key] = id.index;
  for (const auto& [key, id] : outputs_) json["outputs"][key] = id.index;
  return json.dump(1);
}

}  // namespace kvasir::program
