#include "cli/limits_report.h"

namespace kvasir::cli {

namespace {

ops::Arithmetic arithmetic_of(models::Activations mode) {
  return mode == models::Activations::int8 || mode == models::Activations::int16 ? ops::Arithmetic::int8
         : mode == models::Activations::bf16                                     ? ops::Arithmetic::bf16
                                                                                 : ops::Arithmetic::f32;
}

// Of passes that do the same work: all of it over all of the time.
double mean_of(auto& limit, int passes) {
  double seconds = 0;
  for (int i = 0; i < passes; ++i) seconds += 1 / limit.pass();
  return passes / seconds / 1e9;
}

}  // namespace

LimitProbe::LimitProbe(ThreadTeam& team, IsaLevel isa, models::Activations mode)
    : read_(team, isa), arithmetic_(team, isa, arithmetic_of(mode)) {
  measure();  // warms up
}

MachineLimits LimitProbe::measure() {
  return {mean_of(read_, 8), mean_of(arithmetic_, 5)};
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
