// This machine's measured limits: what every speed is a fraction of.
#pragma once

#include <nlohmann/json.hpp>

#include "base/thread_team.h"
#include "models/model.h"

namespace kvasir::cli {

struct MachineLimits {
  double read_bandwidth_gb_s = 0;    // streaming reads of memory that no cache holds
  double peak_arithmetic_gop_s = 0;  // multiply-adds as two operations, of the mode's dot-product instruction
};

// Measured on the team, in about a third of a second. The arithmetic is that of `mode`: dpbusd (int8),
// dpbf16ps (bf16) or FMA (f32), as far as the level has them.
MachineLimits measure_limits(ThreadTeam& team, IsaLevel isa, models::Activations mode);

// All of them, for `doctor`: with one thread and with `threads`.
nlohmann::ordered_json measured_limits(int threads);

}  // namespace kvasir::cli
