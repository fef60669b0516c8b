// For tests and benchmarks: a program of one op, fed from matrices, run on any number of threads.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "program/executor.h"
#include "program/program.h"

namespace kvasir::ops {

struct TestMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;
  TestMatrix(int64_t r, int64_t c) : rows(r), cols(c), values(static_cast<size_t>(r * c)) {}
  float& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  float at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
  static TestMatrix random(int64_t r, int64_t c, uint32_t seed, float scale = 1.0f) {
    TestMatrix m(r, c);
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    for (float& v : m.values) v = normal(engine);
    return m;
  }
  TestMatrix row_range(int64_t first, int64_t count) const {
    TestMatrix m(count, cols);
    std::copy_n(values.begin() + first * cols, count * cols, m.values.begin());
    return m;
  }
};

// Records `record(builder, inputs) -> output` over inputs of the tokens axis, runs it, returns the output's
// rows.
class TestProgram {
 public:
  using Record =
      std::function<program::ValueId(program::ProgramBuilder&, const std::vector<program::ValueId>&)>;

  TestProgram(const std::vector<const TestMatrix*>& inputs, const Record& record, int threads = 1,
              int64_t tokens = -1)
      : team_(threads), executor_(team_) {
    program::ProgramBuilder builder;
    std::vector<program::ValueId> ids;
    int64_t rows = tokens;
    for (const TestMatrix* m : inputs) {
      ids.push_back(
          builder.input("in" + std::to_string(ids.size()), Dtype::f32, program::Axis::tokens, {m->cols}));
      rows = m->rows;
    }
    output_ = record(builder, ids);
    builder.output("y", output_);
    program_ = std::move(builder).plan({rows, rows, rows}, threads);
    arena_ = Arena(program_.workspace_bytes() + 4096, nullptr, MemoryCategory::workspace);
    program_.allocate(arena_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const size_t stride = program_.values()[static_cast<size_t>(ids[i].index)].stride;
      // Unused bytes of a row hold NaN, which must not leak into any result.
      buffers_.emplace_back((static_cast<size_t>(rows) * stride + 2 * 64) / sizeof(float),
                            std::numeric_limits<float>::quiet_NaN());
      auto* base =
          reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(buffers_.back().data()) + 63) / 64 * 64);
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(base + static_cast<size_t>(r) * stride, inputs[i]->values.data() + r * inputs[i]->cols,
                    static_cast<size_t>(inputs[i]->cols) * sizeof(float));
      program_.bind(ids[i], base);
    }
    step_.tokens = step_.rows = static_cast<int32_t>(rows);
  }

  program::StepState& step() { return step_; }
  void run() { executor_.run(program_, step_); }
  TestMatrix result() const {
    const program::Value& value = program_.values()[static_cast<size_t>(output_.index)];
    const int64_t rows = value.count({step_.tokens, step_.rows, step_.logits});
    TestMatrix m(rows, value.width);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(m.values.data() + r * m.cols,
                  program_.data(output_) + static_cast<size_t>(r) * value.stride,
                  static_cast<size_t>(m.cols) * sizeof(float));
    return m;
  }
  // A row of the output as it lies there, of any dtype.
  const std::byte* row_data(int64_t row) const {
    return program_.data(output_) +
           static_cast<size_t>(row) * program_.values()[static_cast<size_t>(output_.index)].stride;
  }
  const program::Program& program() const { return program_; }
  TestMatrix run_and_take() {
    run();
    return result();
  }

 private:
  ThreadTeam team_;
  program::CpuExecutor executor_;
  program::Program program_;
  Arena arena_;
  program::StepState step_;
  program::ValueId output_;
  std::vector<std::vector<float>> buffers_;
};

// Every level that this machine can run.
inline std::vector<IsaLevel> testable_levels() {
  std::vector<IsaLevel> levels;
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) levels.push_back(level);
  return levels;
}

}  // namespace kvasir::ops
