// For tests: one or more sequences of a model, driven step by step with a cache of their own.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/cache.h"
#include "models/model.h"

namespace kvasir::models {

// The larger of two differences; not a number if one of them is none (std::max forgets it, and a bound then
// passes).
inline double larger(double a, double b) {
  return std::isnan(a) || b <= a ? a : b;
}

// A small run: 64 tokens of context, chunks of 32 with their logits, pages of 16.
inline LoadOptions small_options(Activations mode = Activations::f32, int threads = 1) {
  LoadOptions options;
  options.activations = mode;
  options.threads = threads;
  options.context = 64;
  options.chunk = options.logits = 32;
  options.page_tokens = 16;
  return options;
}

class TestRunner {
 public:
  explicit TestRunner(Model& model, int threads, int64_t context, int rows = 1, int chunk = 64)
      : model_(model), team_(threads), executor_(team_) {
    kv::CacheShape shape;
    shape.page_tokens = model.groups().front().geometry.page_tokens;
    size_t owners = 0;
    for (const KvGroup& group : model.groups()) owners += group.layers.size();
    shape.group_of.resize(owners);
    shape.index_in_group.resize(owners);
    for (size_t g = 0; g < model.groups().size(); ++g) {
      const KvGroup& group = model.groups()[g];
      shape.groups.push_back({group.geometry, group.layers});
      for (size_t i = 0; i < group.layers.size(); ++i) {
        shape.group_of[static_cast<size_t>(group.layers[i])] = static_cast<int>(g);
        shape.index_in_group[static_cast<size_t>(group.layers[i])] = static_cast<int>(i);
      }
    }
    const auto layouts = kv::layouts_for(model.info().isa);
    const kv::Workload workload{.context = context, .batch = rows, .chunk = chunk};
    cache_ =
        std::make_unique<kv::KvCache>(shape, layouts, kv::plan_capacity(shape, layouts, workload), nullptr);
    for (int r = 0; r < rows; ++r) sequences_.push_back(cache_->create());
  }

  // Appends ids[r] to sequence r in one step; returns the logits of every token, row after row.
  std::vector<std::vector<float>> step(const std::vector<std::vector<int32_t>>& ids) {
    std::vector<kv::Sequence*> rows;
    std::vector<int32_t> counts, token_ids, row_of_token, positions, first_token = {0}, wanted;
    const size_t masks = model_.mask_classes().size();
    std::vector<std::vector<program::KeyRange>> ranges(masks);
    for (size_t r = 0; r < ids.size(); ++r) {
      rows.push_back(&sequences_[r]);
      counts.push_back(static_cast<int32_t>(ids[r].size()));
      for (size_t i = 0; i < ids[r].size(); ++i) {
        const int32_t p = sequences_[r].offset() + static_cast<int32_t>(i);
        wanted.push_back(static_cast<int32_t>(token_ids.size()));
        token_ids.push_back(ids[r][i]);
        row_of_token.push_back(static_cast<int32_t>(r));
        positions.push_back(p);
        for (size_t m = 0; m < masks; ++m) {
          const auto window = model_.mask_classes()[m].window;
          ranges[m].push_back({window ? std::max(0, p - *window + 1) : 0, p + 1});
        }
      }
      first_token.push_back(static_cast<int32_t>(token_ids.size()));
    }
    kv::Step step;
    cache_->reserve(rows, counts, step);
    program::StepState state;
    state.tokens = static_cast<int32_t>(token_ids.size());
    state.rows = static_cast<int32_t>(rows.size());
    state.logits = static_cast<int32_t>(wanted.size());
    state.token_ids = token_ids;
    state.row_of_token = row_of_token;
    state.kv_position = positions;
    state.rope_position = {positions, positions, positions};
    state.key_ranges.assign(ranges.begin(), ranges.end());
    state.first_token = first_token;
    state.kv = step.views();
    state.logit_tokens = wanted;
    model_.run(state, executor_);
    std::vector<std::vector<float>> out;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const float* logits = model_.logits(static_cast<int64_t>(i));
      out.emplace_back(logits, logits + model_.info().vocab);
    }
    step.commit();
    return out;
  }

  // The whole sequence 0 from its beginning, `chunk` tokens a step.
  std::vector<std::vector<float>> run(std::span<const int32_t> ids, int64_t chunk) {
    sequences_[0].truncate(0);
    std::vector<std::vector<float>> out;
    for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(chunk)) {
      const size_t count = std::min<size_t>(static_cast<size_t>(chunk), ids.size() - at);
      for (auto& row :
           step({{ids.begin() + static_cast<int64_t>(at), ids.begin() + static_cast<int64_t>(at + count)}}))
        out.push_back(std::move(row));
    }
    return out;
  }

 private:
  Model& model_;
  ThreadTeam team_;
  program::CpuExecutor executor_;
  std::unique_ptr<kv::KvCache> cache_;
  std::vector<kv::Sequence> sequences_;
};

}  // namespace kvasir::models
