// This machine's measured limits: what every speed is a fraction of.
#pragma once

#include <nlohmann/json.hpp>

#include "base/thread_team.h"
#include "models/model.h"
#include "ops/machine_limits/machine_limits.h"

namespace kvasir::cli {

// A speed and its limit are taken in turn, because a shared machine's limits move from second to second: a
// fraction is that of a run over the mean of the limits right before and after it.
struct MachineLimits {
  double read_bandwidth_gb_s = 0;    // streaming reads of memory that no cache holds
  double peak_arithmetic_gop_s = 0;  // multiply-adds as two operations, of the mode's dot-product instruction
};

// The arithmetic is that of `mode`: dpbusd (int8), dpbf16ps (bf16) or FMA (f32), as far as the level has
// them.
class LimitProbe {
 public:
  LimitProbe(ThreadTeam& team, IsaLevel isa, models::Activations mode);
  // Means over about a tenth of a second.
  MachineLimits measure();

 private:
  ops::ReadLimit read_;
  ops::ArithmeticLimit arithmetic_;
};

// All of them, for `doctor`: with one thread and with `threads`.
nlohmann::ordered_json measured_limits(int threads);

}  // namespace kvasir::cli
