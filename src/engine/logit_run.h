// The logits of every token of one row, alone or beside rows that must not matter.
//
// The neighbours are real rows of the same batch. A schedule, drawn from a seed, decides at every step how
// many tokens the row takes, who is in the batch and in which order, and what happens to the neighbours: they
// join, leave for a while, leave for good and begin again, are forked, cut back, checkpointed, and take part
// in speculative rounds that are kept or rolled back; some begin as forks of the row itself, sharing its
// pages; some steps are run and then abandoned. By design law 1
// nothing of that may change one bit of the row's logits: `kvasir eval logits --with --schedule` shows it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace kvasir::engine {

struct LogitRun {
  // Not owned; what it stores already is not run again. Alone, it may belong to another cache with the groups
  // of the engine's own.
  Context* row = nullptr;
  std::span<const int32_t> ids;            // appended to it
  std::vector<std::vector<int32_t>> with;  // neighbours, each cut to the context in force
  // Drawn from at every step. Without a value and without neighbours: whole chunks, nothing else happens.
  std::optional<uint64_t> schedule;
  // When the row stores exactly so many tokens, between two steps, `on_pause` is called. -1: never.
  int64_t pause_at = -1;
  std::function<void()> on_pause;
  std::function<void(int64_t position, const float* logits)> visit;  // in order of position, [vocab] each
  std::function<bool()> cancelled;                                   // polled between steps
};

// Rows of a batch with so many neighbours: each may be forked once at a time. For LoadOptions::rows.
int rows_with_neighbours(size_t with);

// Throws Error{cancelled}, and whatever a step throws. The engine must have been opened for
// rows_with_neighbours() rows, with checkpoints when there are neighbours.
void run_logits(Engine& engine, const LogitRun& run);

}  // namespace kvasir::engine
