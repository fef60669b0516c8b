// The contract between the executor and an op.
//
// An op is immutable once recorded. run() is called on every member of the thread team with the same context
// but its own member index; each member does its share (base/thread_team.h: split_work, or SharedWork where
// pieces are long), and the executor puts one barrier after the op. How the work is shared must not show in
// the results: every output element is computed by one member, in a fixed order. Nothing throws and nothing
// allocates inside run().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/isa.h"
#include "base/thread_team.h"
#include "program/step_state.h"

namespace kvasir::program {

// The leading axis of a value: a symbolic count, or a fixed one.
enum class Axis : uint8_t { fixed, tokens, rows, logits };

struct Counts {
  int64_t tokens = 0;
  int64_t rows = 0;
  int64_t logits = 0;

  int64_t along(Axis axis) const {  // not of a fixed axis
    return axis == Axis::logits ? logits : axis == Axis::rows ? rows : tokens;
  }
};

struct ValueId {
  int32_t index = -1;
  bool valid() const { return index >= 0; }
  bool operator==(const ValueId&) const = default;
};

// A value is a matrix [axis, width]: `width` elements of `dtype` per leading index. Rows are stride bytes
// apart; a row starts on a 64-byte boundary unless the value is a column view, and may be read up to the next
// 64-byte boundary past its width (what lies there is unspecified and must be blended away).
struct Value {
  std::string name;
  Dtype dtype = Dtype::f32;
  Axis axis = Axis::tokens;
  int64_t fixed_count = 0;  // when axis == fixed
  int64_t width = 0;
  std::vector<int64_t> inner;  // width as its axes, for messages and dumps: {heads, head_dim}
  size_t stride = 0;           // bytes from one row to the next
  ValueId base;                // a column view of another value (then stride is the base's), else invalid
  size_t offset = 0;           // bytes into the base's row
  int64_t count(const Counts& counts) const { return axis == Axis::fixed ? fixed_count : counts.along(axis); }
};

struct OpContext;

// What one run of an op costs, for `bench --profile` and benchmarks: the bytes that must be read or written
// at least once, and multiply-adds counted as two operations.
struct OpCost {
  double bytes = 0;
  double operations = 0;
  double weight_bytes = 0;  // of bytes: of the model's matrices
  double kv_bytes = 0;      // of bytes: of the cache's keys and values that are read, as they are stored
};

class Op {
 public:
  enum class Class : uint8_t { kernel, host, collective, copy };

  Op(std::vector<ValueId> inputs, std::vector<ValueId> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  virtual ~Op() = default;

  virtual std::string_view kind() const = 0;  // "rms_norm"
  virtual std::string describe() const {
    return {};
  }  // attributes: weights, sizes, options, as shown by `inspect --program`
  virtual Class op_class() const { return Class::kernel; }
  // Scratch shared by the team during this op alone, at the given maxima and team size.
  virtual size_t workspace_bytes(const Counts& /*maxima*/, int /*threads*/) const { return 0; }
  // Index of an input whose buffer the (only) output may take over when this op is its last reader; -1: none.
  virtual int in_place_input() const { return -1; }
  // `rows`: the leading count of its first output, or of its first input where it has no output.
  virtual OpCost cost(int64_t /*rows*/) const { return {}; }
  // Of one run in this step: of ops whose cost depends on what the rows hold, more than cost() can know.
  virtual OpCost cost_in_step(int64_t rows, const StepState& /*step*/) const { return cost(rows); }
  virtual void run(const OpContext& context) const = 0;

  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }

 private:
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
};

struct OpContext {
  const StepState& step;
  Counts counts;
  ThreadTeam& team;
  int member = 0;
  int members = 1;
  SharedWork& work;                // at its beginning when the op starts: for one division of its work
  std::byte* workspace = nullptr;  // 64-byte aligned, as large as workspace_bytes said; undefined content
  const std::vector<Value>& values;
  std::byte* const* data;  // [values]: first byte of each value's row 0

  template <typename T>
  T* row(ValueId id, int64_t index) const {
    return reinterpret_cast<T*>(data[id.index] +
                                static_cast<size_t>(index) * values[static_cast<size_t>(id.index)].stride);
  }
  size_t stride(ValueId id) const { return values[static_cast<size_t>(id.index)].stride; }
  int64_t width(ValueId id) const { return values[static_cast<size_t>(id.index)].width; }
  int64_t count(ValueId id) const { return values[static_cast<size_t>(id.index)].count(counts); }
};

}  // namespace kvasir::program
