// The logits of every position of one row, pulled one at a time: two models can be read side by side, and
// nothing larger than a block of rows is held.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace kvasir::cli {

class LogitsStream {
 public:
  // The engine must outlive the stream; options.load.logits bounds the rows of logits held at once.
  explicit LogitsStream(engine::Engine& engine) : engine_(engine), builder_(engine.model()) {}

  // A new row. `ids` must outlive it, and fit the context.
  void begin(std::span<const int32_t> ids);
  // Logits [vocab] of the next position; valid until the next call. Not past the last one.
  std::span<const float> next();

 private:
  void run_chunk();
  void run_head();

  engine::Engine& engine_;
  engine::StepBuilder builder_;
  engine::Context context_;
  kv::Step step_;
  std::span<const int32_t> rest_;        // not run yet
  program::StepState* state_ = nullptr;  // of the chunk that is open
  std::span<const int32_t> wanted_;      // its positions whose logits are still to come
  int64_t block_ = 0, taken_ = 0;        // rows of logits at hand, and how many were given out
};

}  // namespace kvasir::cli
