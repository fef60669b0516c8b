#include "program/executor.h"

#include "base/error.h"

namespace kvasir::program {

void CpuExecutor::run(const Program& program, const StepState& step) {
  const Counts counts{step.tokens, step.rows, step.logits};
  const Counts& maxima = program.maxima();
  KVASIR_CHECK(counts.tokens <= maxima.tokens && counts.rows <= maxima.rows &&
               counts.logits <= maxima.logits);
  KVASIR_CHECK(team_.size() <= program.threads());
  const auto found = profiles_.find(&program);
  std::vector<OpProfile>* profile = found == profiles_.end() ? nullptr : &found->second;
  if (interrupted_)
    for (SharedWork& work : work_)
      for (int member = 0; member < team_.size(); ++member) work.restart(member);
  interrupted_ = true;
  team_.run([&](int member) {
    const auto context_of = [&](SharedWork& work) {
      return OpContext{step,
                       counts,
                       team_,
                       member,
                       team_.size(),
                       work,
                       program.op_workspace(),
                       program.values(),
                       program.data_table()};
    };
    const OpContext contexts[2] = {context_of(work_[0]), context_of(work_[1])};
    using Clock = std::chrono::steady_clock;
    auto start = Clock::now();
    for (size_t i = 0; i < program.ops().size(); ++i) {
      work_[(first_work_ + i + 1) % 2].restart(member);  // last used before the barrier behind us
      program.ops()[i]->run(contexts[(first_work_ + i) % 2]);
      team_.barrier();
      if (profile != nullptr && member == 0) {
        const auto now = Clock::now();
        OpProfile& entry = (*profile)[i];
        entry.time += now - start;
        ++entry.runs;
        const OpCost cost = program.cost(i, step);
        entry.cost.bytes += cost.bytes;
        entry.cost.operations += cost.operations;
        entry.cost.weight_bytes += cost.weight_bytes;
        entry.cost.kv_bytes += cost.kv_bytes;
        start = now;
      }
    }
  });
  first_work_ += program.ops().size();
  interrupted_ = false;
}

}  // namespace kvasir::program
