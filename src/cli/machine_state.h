// What the machine did before, while and after `kvasir bench` measured: the refusal of a busy one, and what
// is stored beside the numbers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/machine_load.h"

namespace kvasir::cli {

class MachineState {
 public:
  // Looks for 0.3 s at what others do, this process being idle.
  MachineState();

  const std::vector<std::string>& busy_before() const { return busy_before_; }
  // Measuring begins now; then after each run: what others did since the last call.
  void begin();
  void after_run();
  const std::vector<std::string>& busy_during() const { return busy_during_; }  // of the worst of the runs

  // {"processor", "processors", "governor", "busy", "before", "during", "after", "busy_before",
  // "busy_during"}
  nlohmann::ordered_json json() const;
  // One line, or two where it was busy.
  std::string text() const;

 private:
  MachineSample before_;
  MachineReading last_, after_;
  MachineLoad during_;  // of the run that others disturbed most
  std::vector<std::string> busy_before_, busy_during_;
  int busy_runs_ = 0, runs_ = 0;
};

}  // namespace kvasir::cli
