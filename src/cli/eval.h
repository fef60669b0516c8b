// The subcommands of `kvasir eval`, one file each.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace kvasir::cli {

// Rows of logits that the head computes at once: V floats each, in the workspace.
inline constexpr int kLogitRows = 16;

void add_eval_kv_sensitivity(CLI::App& eval, Invocation& invocation);
void add_eval_kl(CLI::App& eval, Invocation& invocation);
void add_eval_logits(CLI::App& eval, Invocation& invocation);

}  // namespace kvasir::cli
