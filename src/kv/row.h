// The inside of a Sequence: page tables, counted references, and what a step or a round needs to undo.
// Private to kv/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kv/cache.h"

namespace kvasir::kv {

struct RowGroup {
  std::vector<std::byte*> pages;  // [index] position p lies in pages[p / P]; null where evicted
  std::vector<PageId> ids;        // kNoPage where evicted
  int32_t evicted_below = 0;      // windowed groups: positions below it are gone, except sinks
};

// The window pages and the recurrent state of one token boundary: what makes it resumable after the row has
// moved on.
struct Checkpoint {
  int32_t position = 0;
  SlotId state = StateSlotPool::kInitial;
  struct Window {
    int32_t evicted_below = 0;
    uint32_t first = 0;  // index of ids[0]
    std::vector<PageId> ids;
  };
  std::vector<Window> windows;  // [groups], empty ids for full groups
};

struct Round {
  int32_t before = 0;
  std::vector<SlotId> states;  // after 1, 2, ... tokens of the round; empty without recurrent layers
};

struct Row {
  explicit Row(KvCache& owner) : cache(&owner) {}
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
  ~Row();

  KvCache* cache;
  int32_t offset = 0;
  int32_t min_reusable = 0;
  bool encoded = false;
  Origin origin;
  std::vector<RowGroup> groups;
  SlotId state = StateSlotPool::kInitial;
  std::vector<Checkpoint> checkpoints;  // ascending positions
  std::optional<Round> round;
  std::shared_ptr<const Attachments> attachments;  // of `offset` tokens; null: none
  bool poisoned = false;                           // a round failed half-way: to be dropped
  Step* step = nullptr;
  size_t step_index = 0;
};

inline void check_usable(const Row& row) {
  if (row.poisoned) throw InvalidState();
}
// What may happen between steps only; `what` begins the refusal.
inline void check_between_steps(const Row& row, std::string_view what) {
  check_usable(row);
  if (row.step != nullptr)
    throw_error(ErrorCode::invalid_input,
                "{} of a sequence with an open step: commit or roll back the step first", what);
}

// How the prefix tree and the store build sequences out of pages they hold.
class SequenceAccess {
 public:
  static Row& row(Sequence& sequence) { return *sequence.row_; }
  static const Row& row(const Sequence& sequence) { return *sequence.row_; }
};

}  // namespace kvasir::kv
