#include "engine/step_builder.h"

#include <algorithm>

namespace kvasir::engine {

StepBuilder::StepBuilder(const models::Model& model) {
  for (const models::MaskClass& mask : model.mask_classes()) windows_.push_back(mask.window);
  key_ranges_.resize(windows_.size());
  clear();
}

void StepBuilder::clear() {
  sequences_.clear();
  counts_.clear();
  logits_index_.clear();
  token_ids_.clear();
  row_of_token_.clear();
  positions_.clear();
  first_token_.assign(1, 0);
  logit_tokens_.clear();
  for (auto& ranges : key_ranges_) ranges.clear();
}

void StepBuilder::add(kv::Sequence& sequence, std::span<const int32_t> ids, WantLogits want) {
  const auto row = static_cast<int32_t>(sequences_.size());
  sequences_.push_back(&sequence);
  counts_.push_back(static_cast<int32_t>(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t position = sequence.offset() + static_cast<int32_t>(i);
    if (want == WantLogits::all || (want == WantLogits::last && i + 1 == ids.size()))
      logit_tokens_.push_back(static_cast<int32_t>(token_ids_.size()));
    token_ids_.push_back(ids[i]);
    row_of_token_.push_back(row);
    positions_.push_back(position);
    for (size_t c = 0; c < windows_.size(); ++c)
      key_ranges_[c].push_back({windows_[c] ? std::max(0, position - *windows_[c] + 1) : 0, position + 1});
  }
  first_token_.push_back(static_cast<int32_t>(token_ids_.size()));
  logits_index_.push_back(
      want == WantLogits::none || ids.empty() ? -1 : static_cast<int32_t>(logit_tokens_.size()) - 1);
}

program::StepState& StepBuilder::state(const kv::Step& step) {
  state_.tokens = static_cast<int32_t>(token_ids_.size());
  state_.rows = static_cast<int32_t>(sequences_.size());
  state_.logits = static_cast<int32_t>(logit_tokens_.size());
  state_.token_ids = token_ids_;
  state_.row_of_token = row_of_token_;
  state_.kv_position = positions_;
  state_.rope_position = {positions_, positions_, positions_};
  state_.key_ranges.assign(key_ranges_.begin(), key_ranges_.end());
  state_.first_token = first_token_;
  state_.kv = step.views();
  state_.state_slot_in = step.state_in();
  state_.state_slot_out = step.state_out();
  state_.logit_tokens = logit_tokens_;
  state_.candidates = 0;
  return state_;
}

}  // namespace kvasir::engine
