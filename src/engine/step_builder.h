// Turns "these rows append these tokens" into the StepState that the programs read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/cache.h"
#include "models/model.h"
#include "program/step_state.h"

namespace kvasir::engine {

enum class WantLogits : uint8_t { none, last, all };

class StepBuilder {
 public:
  explicit StepBuilder(const models::Model& model);

  void clear();
  // One row: `ids` follow the sequence's committed tokens. Rows come in the order in which they are given to
  // KvCache::reserve.
  void add(kv::Sequence& sequence, std::span<const int32_t> ids, WantLogits want);
  bool empty() const { return sequences_.empty(); }
  int64_t tokens() const { return static_cast<int64_t>(token_ids_.size()); }

  std::span<kv::Sequence* const> sequences() const { return sequences_; }
  std::span<const int32_t> counts() const { return counts_; }
  // Index of the row's last token among the tokens whose logits were asked for, -1 when it asked for none.
  int32_t logits_index(size_t row) const { return logits_index_[row]; }

  // The state, with the pages that `step` holds for sequences() and counts(). Valid until the next clear().
  program::StepState& state(const kv::Step& step);

 private:
  std::vector<std::optional<int>> windows_;  // [mask classes]
  std::vector<kv::Sequence*> sequences_;
  std::vector<int32_t> counts_;
  std::vector<int32_t> logits_index_;
  std::vector<int32_t> token_ids_, row_of_token_, positions_, first_token_, logit_tokens_;
  std::vector<std::vector<program::KeyRange>> key_ranges_;
  program::StepState state_;
};

}  // namespace kvasir::engine
