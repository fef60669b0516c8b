// Replays a planned program on a thread team: each member walks the op list, one barrier after each op.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "base/thread_team.h"
#include "program/program.h"

namespace kvasir::program {

struct OpProfile {
  std::chrono::nanoseconds time{0};
  int64_t runs = 0;
  OpCost cost;  // summed over the runs
};

class CpuExecutor {
 public:
  explicit CpuExecutor(ThreadTeam& team) : team_(team) {}

  // Counts in `step` must not exceed the program's maxima (KVASIR_CHECK). Outputs stay valid until the next
  // run.
  void run(const Program& program, const StepState& step);

  // Per-op times of all runs between enable and take, as measured by member 0 (barrier included).
  void enable_profile(const Program& program) { profile_.assign(program.ops().size(), {}); }
  std::vector<OpProfile> take_profile() { return std::exchange(profile_, {}); }

  ThreadTeam& team() const { return team_; }

 private:
  ThreadTeam& team_;
  std::vector<OpProfile> profile_;
};

}  // namespace kvasir::program
