// `kvasir generate --jsonl`: many prompts in one batched run.
#pragma once

#include <string>

#include "cli/batch_input.h"
#include "cli/flags.h"

namespace kvasir::cli {

struct BatchRun {
  std::string input;   // a file, or "-"
  std::string output;  // empty: standard output
  bool resume = false;
  bool overwrite = false;
  bool quiet = false;
};

// The exit status: 0, 1 when a line could not run (its own object says why), 130 when interrupted.
int run_batch(const BatchRun& run, const LoadFlags& load, const BatchDefaults& defaults);

}  // namespace kvasir::cli
