// Replays a planned program on a thread team: each member walks the op list, one barrier after each op.
#pragma once

#include <chrono>
#include <map>
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
  explicit CpuExecutor(ThreadTeam& team)
      : team_(team), work_{SharedWork(team.size()), SharedWork(team.size())} {}

  // Counts in `step` must not exceed the program's maxima (KVASIR_CHECK). Outputs stay valid until the next
  // run.
  void run(const Program& program, const StepState& step);

  // Per-op times of all runs of `program` between enable and take, as measured by member 0 (barrier
  // included).
  void enable_profile(const Program& program) { profiles_[&program].assign(program.ops().size(), {}); }
  std::vector<OpProfile> take_profile(const Program& program) {
    std::vector<OpProfile> taken = std::move(profiles_[&program]);
    profiles_.erase(&program);
    return taken;
  }

  ThreadTeam& team() const { return team_; }

 private:
  ThreadTeam& team_;
  SharedWork work_[2];        // of one op and the next: one is put back while the other is in use
  size_t first_work_ = 0;     // modulo 2: which one the first op of the next run takes
  bool interrupted_ = false;  // an op threw: work may be half taken
  std::map<const Program*, std::vector<OpProfile>> profiles_;
};

}  // namespace kvasir::program
