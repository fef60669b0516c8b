#include "cli/logits_stream.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::cli {

void LogitsStream::begin(std::span<const int32_t> ids) {
  engine_.model().check_tokens(ids);
  context_ = {};  // its pages may be needed
  context_ = engine_.new_context();
  rest_ = ids;
  wanted_ = {};
  block_ = taken_ = 0;
}

void LogitsStream::run_chunk() {
  KVASIR_CHECK(!rest_.empty());
  models::Model& model = engine_.model();
  const auto count = static_cast<size_t>(std::min<int64_t>(
      {static_cast<int64_t>(rest_.size()), model.maxima().tokens, context_.sequence.max_append()}));
  builder_.clear();
  builder_.add(context_.sequence, rest_.first(count), engine::WantLogits::all);
  engine_.cache().reserve(builder_.sequences(), builder_.counts(), step_);
  state_ = &builder_.state(step_);
  wanted_ = state_->logit_tokens;
  state_->logits = 0;
  state_->logit_tokens = {};
  model.run_trunk(*state_, engine_.executor());
  // The head reads the residual stream only: the keys and values are final.
  rest_ = rest_.subspan(count);
}

void LogitsStream::run_head() {
  const std::span<const int32_t> block =
      wanted_.first(std::min<size_t>(wanted_.size(), static_cast<size_t>(engine_.model().maxima().logits)));
  state_->logit_tokens = block;
  state_->logits = static_cast<int32_t>(block.size());
  engine_.model().run_head(*state_, engine_.executor());
  wanted_ = wanted_.subspan(block.size());
  block_ = static_cast<int64_t>(block.size());
  taken_ = 0;
  if (wanted_.empty()) step_.commit();
}

std::span<const float> LogitsStream::next() {
  if (taken_ == block_) {
    if (wanted_.empty()) run_chunk();
    run_head();
  }
  return {engine_.model().logits(taken_++), static_cast<size_t>(engine_.model().info().vocab)};
}

}  // namespace kvasir::cli
