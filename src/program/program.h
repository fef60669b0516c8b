// Record, plan, replay: a model's forward pass is a list of typed ops over values that are written once.
//
//   ProgramBuilder builder;
//   ValueId x = builder.value("embedding", Dtype::f32, Axis::tokens, {hidden});
//   builder.append(std::make_unique<EmbedOp>(..., x));
//   ...
//   builder.output("hidden", h);
//   Program program = std::move(builder).plan(maxima, threads);     // peak bytes known before anything is
//   allocated program.allocate(arena);                                         // one block, to the byte
//   executor.run(program, step);                                     // replay: only `step` differs between
//   calls
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "program/op.h"

namespace kvasir::program {

// Where a value's buffer lies in the program's block, and the ops between which it is alive (inclusive
// indices).
struct Placement {
  size_t offset = 0;
  size_t bytes = 0;
  int first_op = 0;
  int last_op = 0;
};

class Program {
 public:
  const std::vector<std::unique_ptr<Op>>& ops() const { return ops_; }
  const std::vector<Value>& values() const { return values_; }
  const std::vector<Placement>& placements() const {
    return placements_;
  }                                                     // [values]; views and inputs: bytes = 0
  OpCost cost(size_t op, const Counts& counts) const;   // of one run at these counts
  OpCost cost(size_t op, const StepState& step) const;  // of one run in this step
  const Counts& maxima() const { return maxima_; }
  int threads() const { return threads_; }

  // Bytes of the block that allocate() takes: buffers at the maxima, then the largest op workspace.
  size_t workspace_bytes() const { return block_bytes_; }
  void allocate(Arena& arena);

  ValueId output(const std::string& name) const;  // throws Error{internal} for a name that was not recorded
  ValueId input(const std::string& name) const;
  const std::map<std::string, ValueId>& inputs() const { return inputs_; }
  // Gives an input (a value produced elsewhere) its memory; its stride must be the one recorded.
  void bind(ValueId input, std::byte* data);
  std::byte* data(ValueId id) const { return data_[static_cast<size_t>(id.index)]; }
  std::byte* const* data_table() const { return data_.data(); }
  std::byte* op_workspace() const { return block_ == nullptr ? nullptr : block_ + op_workspace_offset_; }

  // Ops, shapes, buffers, lifetimes and the peak, one line an op; the JSON form has the same facts.
  std::string dump() const;
  std::string dump_json() const;

 private:
  friend class ProgramBuilder;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<Value> values_;
  std::vector<Placement> placements_;
  std::map<std::string, ValueId> outputs_;
  std::map<std::string, ValueId> inputs_;
  Counts maxima_;
  int threads_ = 1;
  size_t block_bytes_ = 0;
  size_t op_workspace_offset_ = 0;
  std::byte* block_ = nullptr;
  std::vector<std::byte*> data_;
};

class ProgramBuilder {
 public:
  // A new value [axis, inner...]; exactly one op must produce it.
  ValueId value(std::string name, Dtype dtype, Axis axis, std::vector<int64_t> inner,
                int64_t fixed_count = 0);
  // A value produced outside (by another program), bound before each run.
  ValueId input(std::string name, Dtype dtype, Axis axis, std::vector<int64_t> inner);
  // Columns [first, first + inner...) of a value, sharing its memory: q, k and v of one fused projection.
  ValueId columns(ValueId base, std::string name, int64_t first, std::vector<int64_t> inner);
  void append(std::unique_ptr<Op> op);
  // Marks a value as wanted after the run: its buffer is never reused.
  void output(const std::string& name, ValueId id);

  const Value& at(ValueId id) const;  // stays where it is while values are added
  bool is_output(ValueId id) const;   // itself, or a view of it
  // For rewrites: the op that alone reads `id`, itself or through views of its columns; empty where none or
  // several do. Whether it is wanted after the run as well, is_output() tells.
  std::optional<size_t> only_reader(ValueId id) const;
  const std::vector<std::unique_ptr<Op>>& ops() const { return ops_; }
  std::vector<std::unique_ptr<Op>>& mutable_ops() { return ops_; }  // for rewrites

  // Checks the list (each value produced once, before its readers) and places every buffer by its lifetime.
  Program plan(const Counts& maxima, int threads) &&;

 private:
  std::vector<std::unique_ptr<Op>> ops_;
  std::deque<Value> values_;
  std::map<std::string, ValueId> outputs_;
  std::map<std::string, ValueId> inputs_;
};

}  // namespace kvasir::program
