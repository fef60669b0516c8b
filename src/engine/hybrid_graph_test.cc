// What later families need of the cache, on a graph recorded from the modules: a layer that reads another
// layer's keys and values, recurrent state in slots with checkpoints, windows and codecs beside them, and a
// drafter that attends a donor view. Random programs of rows against the row alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "engine/tiny_models.h"
#include "kv/codecs/test_decode.h"
#include "kv/scheme.h"
#include "ops/append_kv/append_kv.h"
#include "ops/attention/attention.h"
#include "program/executor.h"

namespace kvasir::engine {
namespace {

using program::OpContext;
using program::ProgramBuilder;
using program::ValueId;

constexpr int kDim = 64;  // of heads, and of everything else
constexpr int kWindow = 19;
constexpr int32_t kTokens = 40;  // most of a step
constexpr int64_t kContext = 120;
constexpr int kHeads = 2;  // that share one head of keys and values
constexpr float kScale = 0.125f;

float hashed(uint64_t a, uint64_t b) {
  return static_cast<float>(
             static_cast<int32_t>((models::synth_key("hybrid", a) + b) * 0x9E3779B97F4A7C15u >> 40) -
             (1 << 23)) /
         static_cast<float>(1 << 23);
}

// out[c] = embedding(token)[c], by hash.
class Embed final : public program::Op {
 public:
  explicit Embed(ValueId out) : Op({}, {out}) {}
  std::string_view kind() const override { return "test_embed"; }
  void run(const OpContext& context) const override {
    if (context.member != 0) return;
    for (int32_t t = 0; t < context.step.tokens; ++t)
      for (int c = 0; c < kDim; ++c)
        context.row<float>(outputs()[0], t)[c] = hashed(
            static_cast<uint64_t>(context.step.token_ids[static_cast<size_t>(t)]), static_cast<uint64_t>(c));
  }
};

// A fixed mixture of channels and the token's position: stands for a projection with RoPE.
class Project final : public program::Op {
 public:
  Project(ValueId in, ValueId out, int salt) : Op({in}, {out}), salt_(salt) {}
  std::string_view kind() const override { return "test_project"; }
  void run(const OpContext& context) const override {
    if (context.member != 0) return;
    for (int32_t t = 0; t < context.step.tokens; ++t) {
      const float* x = context.row<const float>(inputs()[0], t);
      float* y = context.row<float>(outputs()[0], t);
      const auto position = static_cast<float>(context.step.rope_position[0][static_cast<size_t>(t)] % 17);
      for (int64_t c = 0; c < context.width(outputs()[0]); ++c) {
        const auto i = static_cast<int>(c % kDim);
        y[c] = x[i] * 1.5f - x[(i * 7 + salt_) % kDim] + 0.03f * position * x[(i + salt_) % kDim] +
               0.1f * static_cast<float>(salt_ % 3);
      }
    }
  }

 private:
  int salt_;
};

// state = 0.75 state + x; out = state, token after token; every token's state that a slot is named for is
// kept.
class Recur final : public program::Op {
 public:
  Recur(ValueId in, ValueId out, kv::KvCache** cache, const kv::Step* step)
      : Op({in}, {out}), cache_(cache), step_(step) {}
  std::string_view kind() const override { return "test_recur"; }
  void run(const OpContext& context) const override {
    if (context.member != 0) return;
    kv::StateSlotPool& states = (*cache_)->states();
    for (int32_t r = 0; r < context.step.rows; ++r) {
      float state[kDim];
      std::memcpy(state,
                  states.slot(static_cast<kv::SlotId>(context.step.state_slot_in[static_cast<size_t>(r)])),
                  sizeof state);
      for (int32_t t = context.step.first_token[static_cast<size_t>(r)];
           t < context.step.first_token[static_cast<size_t>(r) + 1]; ++t) {
        const float* x = context.row<const float>(inputs()[0], t);
        float* y = context.row<float>(outputs()[0], t);
        for (int c = 0; c < kDim; ++c) y[c] = state[c] = 0.75f * state[c] + x[c];
        if (const int32_t slot = step_->token_state_out()[static_cast<size_t>(t)]; slot >= 0)
          std::memcpy(states.slot(static_cast<kv::SlotId>(slot)), state, sizeof state);
      }
    }
  }

 private:
  kv::KvCache** cache_;
  const kv::Step* step_;
};

struct Result {
  std::vector<std::vector<float>> rows;  // [tokens of the step]
};

// Layer 0 of the group.
ValueId attention(ProgramBuilder& builder, ValueId q, int group, int mask) {
  return ops::attention(builder, q,
                        {.group = group,
                         .layer = 0,
                         .mask_class = mask,
                         .heads = kHeads,
                         .kv_heads = 1,
                         .head_dim_k = kDim,
                         .head_dim_v = kDim,
                         .scale = kScale,
                         .precision = ops::AttentionPrecision::f32,
                         .max_context = kContext},
                        best_isa_level());
}

// Two owners (full, windowed), one sharer of the full one, one recurrent layer between them.
class Hybrid {
 public:
  Hybrid(const std::string& full, const std::string& windowed, int page, int rows, int64_t start, int threads)
      : team_(threads), executor_(team_) {
    const kv::LayerGeometry owners[] = {
        {.layer = 0, .kv_heads = 1, .head_dim_k = kDim, .head_dim_v = kDim},
        {.layer = 3, .kv_heads = 1, .head_dim_k = kDim, .head_dim_v = kDim, .window = kWindow}};
    const kv::CodecPair codecs[] = {kv::parse_codec(full, Dtype::f32), kv::parse_codec(windowed, Dtype::f32)};
    const kv::CacheShape shape =
        kv::group_layers(owners, codecs, page, static_cast<int32_t>(start), kDim * sizeof(float), true);
    const auto layouts = kv::layouts_for(best_isa_level());
    const kv::Workload workload{.context = kContext,
                                .batch = rows,
                                .chunk = kTokens,
                                .round_tokens = 12,
                                .checkpoints = 3,
                                .prefix_states = 0};
    cache_ =
        std::make_unique<kv::KvCache>(shape, layouts, kv::plan_capacity(shape, layouts, workload), nullptr);
    slot_cache_ = cache_.get();

    ProgramBuilder builder;
    const auto value = [&](const char* name, int width) {
      return builder.value(name, Dtype::f32, program::Axis::tokens, {width});
    };
    const auto project = [&](ValueId in, const char* name, int width, int salt) {
      const ValueId out = value(name, width);
      builder.append(std::make_unique<Project>(in, out, salt));
      return out;
    };
    const auto attend = [&](ValueId q, int group, int mask) { return attention(builder, q, group, mask); };
    const ops::AppendKvOptions first{
        .group = 0, .layer = 0, .kv_heads = 1, .head_dim_k = kDim, .head_dim_v = kDim};
    ops::AppendKvOptions second = first;
    second.group = 1;
    const ValueId x = value("x", kDim);
    builder.append(std::make_unique<Embed>(x));
    ops::append_kv(builder, project(x, "k0", kDim, 1), project(x, "v0", kDim, 2), first);
    const ValueId a0 = attend(project(x, "q0", 2 * kDim, 3), 0, 0);
    const ValueId recurred = value("recurred", kDim);
    builder.append(std::make_unique<Recur>(project(a0, "u", kDim, 4), recurred, &slot_cache_, &step_));
    const ValueId a1 = attend(project(recurred, "q1", 2 * kDim, 5), 0, 0);  // reads layer 0's keys and values
    const ValueId h = project(a1, "h", kDim, 6);
    ops::append_kv(builder, project(h, "k3", kDim, 7), project(h, "v3", kDim, 8), second);
    const ValueId a3 = attend(project(h, "q3", 2 * kDim, 9), 1, 1);
    output_ = project(a3, "out", kDim, 10);
    builder.output("out", output_);
    program_ = std::move(builder).plan({kTokens, rows, kTokens}, threads);
    arena_ = Arena(program_.workspace_bytes() + 4096, nullptr, MemoryCategory::workspace);
    program_.allocate(arena_);

    ProgramBuilder draft;
    const ValueId drafted = draft.value("x", Dtype::f32, program::Axis::tokens, {kDim});
    draft.append(std::make_unique<Embed>(drafted));
    draft_q_ = draft.value("q", Dtype::f32, program::Axis::tokens, {kHeads * kDim});
    draft.append(std::make_unique<Project>(drafted, draft_q_, 11));
    drafted_ = attention(draft, draft_q_, 0, 0);
    draft.output("q", draft_q_);
    draft.output("out", drafted_);
    drafter_ = std::move(draft).plan({4, 1, 4}, threads);
    draft_arena_ = Arena(drafter_.workspace_bytes() + 4096, nullptr, MemoryCategory::workspace);
    drafter_.allocate(draft_arena_);
  }
  ~Hybrid() { step_.rollback(); }

  kv::KvCache& cache() { return *cache_; }

  // One step; commits unless told otherwise.
  Result run(std::span<kv::Sequence* const> rows, const std::vector<std::vector<int32_t>>& ids,
             bool commit = true) {
    std::vector<int32_t> counts, tokens, positions, row_of, first = {0};
    std::vector<program::KeyRange> full, windowed;
    for (size_t r = 0; r < rows.size(); ++r) {
      counts.push_back(static_cast<int32_t>(ids[r].size()));
      for (size_t i = 0; i < ids[r].size(); ++i) {
        const int32_t p = rows[r]->offset() + static_cast<int32_t>(i);
        tokens.push_back(ids[r][i]);
        positions.push_back(p);
        row_of.push_back(static_cast<int32_t>(r));
        full.push_back({0, p + 1});
        windowed.push_back({std::max(0, p - kWindow + 1), p + 1});
      }
      first.push_back(static_cast<int32_t>(tokens.size()));
    }
    cache_->reserve(rows, counts, step_);
    program::StepState state;
    state.tokens = static_cast<int32_t>(tokens.size());
    state.rows = static_cast<int32_t>(rows.size());
    state.token_ids = tokens;
    state.row_of_token = row_of;
    state.kv_position = positions;
    state.rope_position = {positions, positions, positions};
    state.key_ranges = {full, windowed};
    state.first_token = first;
    state.kv = step_.views();
    state.state_slot_in = step_.state_in();
    state.state_slot_out = step_.state_out();
    executor_.run(program_, state);
    Result result;
    if (!commit) {
      step_.rollback();
      return result;
    }
    for (int32_t t = 0; t < state.tokens; ++t) {
      const auto* out = reinterpret_cast<const float*>(
          program_.data(output_) +
          static_cast<size_t>(t) * program_.values()[static_cast<size_t>(output_.index)].stride);
      result.rows.emplace_back(out, out + kDim);
    }
    step_.commit();
    return result;
  }

  // Queries of a drafter over a donor view: constant positions, nothing is appended.
  std::vector<float> draft(const kv::DonorView& view, const std::vector<int32_t>& ids) {
    const std::vector<int32_t> positions(ids.size(), view.offset()), row_of(ids.size(), 0),
        first = {0, static_cast<int32_t>(ids.size())};
    const std::vector<program::KeyRange> keys(ids.size(), program::KeyRange{view.start(), view.end()});
    const kv::RowPages pages = view.pages();
    program::StepState state;
    state.tokens = static_cast<int32_t>(ids.size());
    state.rows = 1;
    state.token_ids = ids;
    state.row_of_token = row_of;
    state.kv_position = positions;
    state.rope_position = {positions, positions, positions};
    state.key_ranges = {keys};
    state.first_token = first;
    state.kv = {kv::GroupView{.rows = std::span(&pages, 1)}};
    executor_.run(drafter_, state);
    return drafted(drafted_, ids.size());
  }
  // What the last draft asked with: [queries][heads][kDim].
  std::vector<float> draft_queries(size_t count) const { return drafted(draft_q_, count); }

 private:
  std::vector<float> drafted(ValueId value, size_t count) const {
    std::vector<float> all;
    for (size_t t = 0; t < count; ++t) {
      const auto* out = reinterpret_cast<const float*>(
          drafter_.data(value) + t * drafter_.values()[static_cast<size_t>(value.index)].stride);
      all.insert(all.end(), out, out + kHeads * kDim);
    }
    return all;
  }

  ThreadTeam team_;
  program::CpuExecutor executor_;
  std::unique_ptr<kv::KvCache> cache_;
  kv::KvCache* slot_cache_ = nullptr;
  kv::Step step_;
  program::Program program_, drafter_;
  Arena arena_, draft_arena_;
  ValueId output_, draft_q_, drafted_;
};

struct TestRow {
  kv::Sequence sequence;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> outputs;
  void shorten(size_t length) {
    tokens.resize(length);
    outputs.resize(length);
  }
};

void run_program(uint64_t seed) {
  std::mt19937_64 random(seed * 131 + 7);
  const auto below = [&](size_t count) { return static_cast<size_t>(random() % count); };
  const auto& specs = testing::kv_specs();
  const std::string full = specs[below(specs.size())], windowed = specs[below(specs.size())];
  const auto plain = [](const std::string& spec) { return spec == "f32" || spec == "f16" || spec == "bf16"; };
  const int64_t start =
      seed % 3 == 0 && !(plain(full) && plain(windowed)) ? 1 + static_cast<int64_t>(below(50)) : 0;
  const int pages[] = {16, 64, 256};
  constexpr size_t kRows = 4;
  Hybrid hybrid(full, windowed, pages[below(3)], kRows, start, 1 + static_cast<int>(seed % 2));
  const std::string what = fmt::format("seed {}: {} and {}, start {}", seed, full, windowed, start);
  {
    std::vector<TestRow> rows;
    rows.push_back({hybrid.cache().create(), {}, {}});
    for (int operation = 0; operation < 50; ++operation) {
      TestRow& any = rows[below(rows.size())];
      const size_t kind = below(12);
      if (kind < 6) {
        std::vector<kv::Sequence*> batch;
        std::vector<TestRow*> members;
        std::vector<std::vector<int32_t>> ids;
        size_t budget = kTokens;
        for (TestRow& row : rows) {
          size_t most = std::min({budget, static_cast<size_t>(row.sequence.max_append()),
                                  static_cast<size_t>(kContext) - row.tokens.size(), size_t{20}});
          if (row.sequence.in_round())
            most = std::min(most, static_cast<size_t>(12 - std::min(12, row.sequence.round_tokens())));
          if (most == 0 || below(3) == 0) continue;
          std::vector<int32_t> added(1 + below(most));
          for (int32_t& id : added) id = static_cast<int32_t>(below(50));
          budget -= added.size();
          batch.push_back(&row.sequence);
          members.push_back(&row);
          ids.push_back(std::move(added));
        }
        if (batch.empty()) continue;
        const bool commit = below(6) != 0;
        const Result result = hybrid.run(batch, ids, commit);
        size_t at = 0;
        for (size_t i = 0; commit && i < members.size(); ++i)
          for (const int32_t id : ids[i]) {
            members[i]->tokens.push_back(id);
            members[i]->outputs.push_back(result.rows[at++]);
          }
      } else if (any.sequence.in_round()) {
        const int32_t appended = any.sequence.round_tokens();
        const auto keep = static_cast<int32_t>(below(static_cast<size_t>(appended) + 1));
        any.sequence.commit_round(keep);
        any.shorten(any.tokens.size() - static_cast<size_t>(appended - keep));
      } else if (kind == 6 && rows.size() < kRows) {
        const int32_t at = any.sequence.nearest_resumable(static_cast<int32_t>(below(any.tokens.size() + 1)));
        TestRow copy{any.sequence.fork(at), any.tokens, any.outputs};
        copy.shorten(static_cast<size_t>(at));
        rows.push_back(std::move(copy));
      } else if (kind == 7) {
        const int32_t at = any.sequence.nearest_resumable(static_cast<int32_t>(below(any.tokens.size() + 1)));
        any.sequence.truncate(at);
        any.shorten(static_cast<size_t>(at));
      } else if (kind == 8) {
        any.sequence.checkpoint();
      } else if (kind == 9) {
        any.sequence.begin_round();
      } else if (kind == 10 && rows.size() > 1) {
        rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(below(rows.size())));
      } else if (kind == 11 && rows.size() < kRows) {
        rows.push_back({hybrid.cache().create(), {}, {}});
      }
    }
    Hybrid alone(full, windowed, 64, 1, start, 1);
    for (TestRow& row : rows) {
      if (row.sequence.in_round()) row.sequence.commit_round(row.sequence.round_tokens());
      kv::Sequence solo = alone.cache().create();
      for (size_t done = 0; done < row.tokens.size();) {
        const size_t count = std::min(
            {row.tokens.size() - done, static_cast<size_t>(kTokens), static_cast<size_t>(solo.max_append())});
        kv::Sequence* const only[] = {&solo};
        const Result result =
            alone.run(only, {{row.tokens.begin() + static_cast<std::ptrdiff_t>(done),
                              row.tokens.begin() + static_cast<std::ptrdiff_t>(done + count)}});
        for (size_t i = 0; i < count; ++i)
          ASSERT_EQ(row.outputs[done + i], result.rows[i]) << what << ", token " << done + i;
        done += count;
      }
      ASSERT_TRUE(std::ranges::equal(row.sequence.state(), solo.state())) << what;
    }
  }
  EXPECT_EQ(hybrid.cache().used_bytes(), Hybrid(full, windowed, 16, kRows, start, 1).cache().used_bytes())
      << what;
}

// P19, P22, P23.
TEST(HybridGraph, RowsOfSharersAndRecurrentLayersAreThemselvesAlone) {
  const int seeds = testing::property_seeds(120);
  for (int seed = 0; seed < seeds && !HasFailure(); ++seed) run_program(static_cast<uint64_t>(seed));
}

// P8, P17: a drafter's attention over the target's keys: unchanged by whatever the target does afterwards.
TEST(HybridGraph, ADonorViewStaysWhatItWas) {
  for (const std::string& spec : testing::kv_specs()) {
    Hybrid hybrid(spec, "f32", 16, 3, 0, 2);
    kv::Sequence row = hybrid.cache().create();
    kv::Sequence* const batch[] = {&row};
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 37; ++i) ids.push_back(i * i % 50);
    hybrid.run(batch, {ids});
    const std::vector<int32_t> queries = {3, 9, 3};
    const kv::DonorView view = row.donate(0);
    EXPECT_EQ(view.offset(), 37);
    const std::vector<float> want = hybrid.draft(view, queries);
    EXPECT_NE(want, hybrid.draft(view, {4, 9, 3}));
    hybrid.run(batch, {{1, 2, 3, 4, 5}});
    EXPECT_EQ(hybrid.draft(view, queries), want) << spec << ": the target went on";
    row.begin_round();
    hybrid.run(batch, {{6, 7}});
    row.rollback_round();
    EXPECT_EQ(hybrid.draft(view, queries), want) << spec << ": a round was rolled back";
    row = {};
    kv::Sequence other = hybrid.cache().create();
    kv::Sequence* const others[] = {&other};
    hybrid.run(others, {{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}});
    EXPECT_EQ(hybrid.draft(view, queries), want) << spec << ": the target is gone";
  }
}

// Softmax attention in float64 over the tokens [start, end) of a view's pages, decoded from canonical bytes.
std::vector<double> attend_decoded(const kv::DonorView& view, int32_t start, int32_t end,
                                   const std::vector<float>& q) {
  const kv::RowPages pages = view.pages();
  const auto& layout = dynamic_cast<const kv::CodecLayout&>(*pages.layout);
  const int32_t page = layout.geometry().page_tokens;
  std::vector<kv::testing::DecodedToken> tokens;
  std::vector<std::byte> bytes(layout.token_bytes());
  for (int32_t p = start; p < end; ++p) {
    layout.export_tokens(pages.pages[p / page], p % page, 1, bytes);
    tokens.push_back(kv::testing::decode_token(layout, 0, bytes));
  }
  std::vector<double> out;
  for (size_t head = 0; head < q.size() / kDim; ++head) {
    std::vector<double> scores, mixed(kDim);
    for (const auto& token : tokens) {
      double dot = 0;
      for (size_t c = 0; c < kDim; ++c) dot += static_cast<double>(q[head * kDim + c]) * token.k[0][c];
      scores.push_back(dot * kScale);
    }
    const double top = *std::ranges::max_element(scores);
    double sum = 0;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const double weight = std::exp(scores[t] - top);
      sum += weight;
      for (size_t c = 0; c < kDim; ++c) mixed[c] += weight * tokens[t].v[0][c];
    }
    for (const double x : mixed) out.push_back(x / sum);
  }
  return out;
}

// Largest difference, as a part of the largest element expected.
double distance(const std::vector<float>& got, const std::vector<double>& expected) {
  KVASIR_CHECK(got.size() == expected.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    EXPECT_TRUE(std::isfinite(difference)) << "element " << i;
    worst = std::max(worst, difference);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

// P17: attention over a view is attention over the keys and values that it holds, decoded and un-rotated, of
// positions [start, end) and no others; of the full group, and of the windowed one past its window.
TEST(HybridGraph, ADonorViewIsAttendedAsItsDecodedKeysAndValues) {
  constexpr double kTolerance = 2e-6;
  for (const std::string& spec : testing::kv_specs()) {
    Hybrid hybrid(spec, spec, 16, 1, 0, 2);
    kv::Sequence row = hybrid.cache().create();
    kv::Sequence* const batch[] = {&row};
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 39; ++i) ids.push_back(i * i % 50);
    hybrid.run(batch, {ids});
    for (const size_t group : {size_t{0}, size_t{1}}) {
      SCOPED_TRACE(fmt::format("{}, group {}", spec, group));
      const kv::DonorView view = row.donate(group);
      const int32_t start = group == 0 ? 0 : 39 - kWindow;  // 20: inside the second page
      ASSERT_EQ(view.start(), start);
      ASSERT_EQ(view.end(), 39);
      ASSERT_EQ(view.offset(), 39);
      const std::vector<float> got = hybrid.draft(view, {3, 9, 41});
      const std::vector<float> q = hybrid.draft_queries(3);
      EXPECT_LE(distance(got, attend_decoded(view, start, 39, q)), kTolerance);
      // A key fewer at either end is told apart.
      EXPECT_GT(distance(got, attend_decoded(view, start + 1, 39, q)), 10 * kTolerance);
      EXPECT_GT(distance(got, attend_decoded(view, start, 38, q)), 10 * kTolerance);
    }
  }
}

}  // namespace
}  // namespace kvasir::engine
