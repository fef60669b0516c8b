#include "cli/limits_report.h"

#include "ops/machine_limits/machine_limits.h"

namespace kvasir::cli {

MachineLimits measure_limits(ThreadTeam& team, IsaLevel isa, models::Activations mode) {
  const ops::Arithmetic arithmetic = mode == models::Activations::int8 || mode == models::Activations::int16
                                         ? ops::Arithmetic::int8
                                     : mode == models::Activations::bf16 ? ops::Arithmetic::bf16
                                                                         : ops::Arithmetic::f32;
  MachineLimits limits;
  limits.read_bandwidth_gb_s = ops::measure_read_bandwidth(team, isa) / 1e9;
  limits.peak_arithmetic_gop_s = ops::measure_arithmetic(team, isa, arithmetic) / 1e9;
  return limits;
}

nlohmann::ordered_json measured_limits(int threads) {
  nlohmann::ordered_json out;
  const IsaLevel isa = best_isa_level();
  for (const int count : {1, threads}) {
    if (count == threads && threads == 1 && !out.empty()) break;
    ThreadTeam team(count);
    const std::string suffix = "_" + std::to_string(count) + "t";
    out["read_gb_s" + suffix] = ops::measure_read_bandwidth(team, isa) / 1e9;
    out["f32_gop_s" + suffix] = ops::measure_arithmetic(team, isa, ops::Arithmetic::f32) / 1e9;
    out["bf16_gop_s" + suffix] = ops::measure_arithmetic(team, isa, ops::Arithmetic::bf16) / 1e9;
    out["int8_gop_s" + suffix] = ops::measure_arithmetic(team, isa, ops::Arithmetic::int8) / 1e9;
  }
  return out;
}

}  // namespace kvasir::cli
