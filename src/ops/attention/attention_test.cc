// Attention over pages against a naive float64 reference, and its invariances, which are compared bit by bit.
#include "ops/attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "kv/codecs/codec_layout.h"
#include "kv/codecs/test_decode.h"
#include "ops/append_kv/append_kv.h"
#include "program/executor.h"

namespace kvasir::ops {
namespace {

using kv::CodecPair;
using kv::GroupGeometry;
using kv::PlaneCodec;
using program::Axis;
using program::Counts;
using program::KeyRange;
using program::ValueId;

PlaneCodec plain(Dtype type) {
  return {PlaneCodec::Kind::plain, type};
}
PlaneCodec affine(int bits, int group = 32, Dtype scale = Dtype::f16) {
  return {PlaneCodec::Kind::affine, Dtype::bf16, bits, group, scale};
}
PlaneCodec turbo_key(int bits) {
  return {PlaneCodec::Kind::turbo_key, Dtype::bf16, bits, 32};
}
PlaneCodec rotated(int bits) {
  return {PlaneCodec::Kind::rotated, Dtype::bf16, bits, 32};
}

PlaneCodec q8_0(bool rotated = false, int bits = 8) {
  return {rotated ? PlaneCodec::Kind::rotated_q_0 : PlaneCodec::Kind::q_0, Dtype::bf16, bits, 32};
}

struct Case {
  int heads = 4, kv_heads = 2, dim_k = 64, dim_v = 64, page_tokens = 64;
  CodecPair codec{plain(Dtype::bf16), plain(Dtype::bf16)};
  AttentionPrecision precision = AttentionPrecision::bf16;
  int window = 0;  // 0: all
  int sinks = 0;
  int bidirectional = 0;  // blocks of this many tokens see each other
  float softcap = 0.0f;
  bool sink_logits = false;
  int threads = 1;
  IsaLevel isa = best_isa_level();
  bool byte_permutes = true;
};

// The inputs of one sequence: token t's vectors depend on (seed, t) alone.
struct Inputs {
  std::vector<float> q, k, v;  // [tokens][heads * dim]
};
Inputs make_inputs(const Case& c, int tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Inputs out;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < c.heads * c.dim_k; ++i) out.q.push_back(normal(random));
    for (int i = 0; i < c.kv_heads * c.dim_k; ++i) out.k.push_back(normal(random));
    for (int i = 0; i < c.kv_heads * c.dim_v; ++i) out.v.push_back(normal(random));
  }
  return out;
}

KeyRange range_of(const Case& c, int position, int total) {
  int end = position + 1;
  if (c.bidirectional > 0) end = std::min(total, (position / c.bidirectional + 1) * c.bidirectional);
  return {c.window > 0 ? std::max(0, position + 1 - c.window) : 0, end};
}

// One sequence's pages, poisoned: every float plane is NaN until written.
struct Pages {
  explicit Pages(const kv::PageLayout& page_layout, int tokens) : layout(&page_layout) {
    const int count = (tokens + layout->geometry().page_tokens - 1) / layout->geometry().page_tokens;
    for (int i = 0; i < count; ++i) {
      storage.emplace_back(layout->page_bytes() + 64, std::byte{0xFF});
      const auto address = reinterpret_cast<uintptr_t>(storage.back().data());
      table.push_back(storage.back().data() + (align_up(address, 64) - address));
    }
  }
  const kv::PageLayout* layout;
  std::vector<std::vector<std::byte>> storage;
  std::vector<std::byte*> table;
  kv::RowPages row() const { return {table.data(), static_cast<int32_t>(table.size()), layout}; }
};

std::vector<float> sink_table(const Case& c) {
  std::vector<float> out;
  for (int h = 0; h < c.heads; ++h) out.push_back(0.3f * static_cast<float>(h) - 0.5f);
  return out;
}

// A program of append_kv and attention, and what replaying it takes.
class Harness {
 public:
  Harness(const Case& c, int max_tokens, int max_rows, int max_context)
      : case_(c),
        team_(c.threads),
        executor_(team_),
        arena_(size_t{1} << 30, nullptr, MemoryCategory::workspace) {
    GroupGeometry geometry;
    geometry.layers = 2;
    geometry.kv_heads = c.kv_heads;
    geometry.head_dim_k = c.dim_k;
    geometry.head_dim_v = c.dim_v;
    geometry.codec = c.codec;
    geometry.page_tokens = c.page_tokens;
    layout_ = kv::PageLayout::make(geometry, c.isa);
    sinks_ = sink_table(c);
    program::ProgramBuilder builder;
    q_ = builder.input("q", Dtype::f32, Axis::tokens, {c.heads, c.dim_k});
    k_ = builder.input("k", Dtype::f32, Axis::tokens, {c.kv_heads, c.dim_k});
    v_ = builder.input("v", Dtype::f32, Axis::tokens, {c.kv_heads, c.dim_v});
    append_kv(builder, k_, v_,
              {.group = 0, .layer = 1, .kv_heads = c.kv_heads, .head_dim_k = c.dim_k, .head_dim_v = c.dim_v});
    AttentionOptions options;
    options.layer = 1;
    options.heads = c.heads;
    options.kv_heads = c.kv_heads;
    options.head_dim_k = c.dim_k;
    options.head_dim_v = c.dim_v;
    options.scale = 1.0f / std::sqrt(static_cast<float>(c.dim_k));
    options.softcap = c.softcap;
    options.sinks = c.sinks;
    options.sink_logits = c.sink_logits ? sinks_.data() : nullptr;
    options.precision = c.precision;
    options.max_context = max_context;
    options.byte_permutes = c.byte_permutes;
    out_ = attention(builder, q_, options, c.isa);
    builder.output("out", out_);
    program_ =
        std::make_unique<program::Program>(std::move(builder).plan({max_tokens, max_rows, 0}, c.threads));
    program_->allocate(arena_);
  }
  const kv::PageLayout& layout() const { return *layout_; }

  struct Row {
    const Inputs* inputs;
    const Pages* pages;
    int first;
    int count;
    int total;  // tokens of the whole sequence, for bidirectional ranges
  };
  // One step; result [tokens][heads * dim_v].
  std::vector<float> step(const std::vector<Row>& rows, const std::vector<uint64_t>& draft = {}) {
    program::StepState state;
    std::vector<int32_t> row_of_token, position, first_token{0};
    std::vector<KeyRange> ranges;
    std::vector<kv::RowPages> pages;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int t = rows[r].first; t < rows[r].first + rows[r].count; ++t) {
        row_of_token.push_back(static_cast<int32_t>(r));
        position.push_back(t);
        ranges.push_back(range_of(case_, t, std::min(rows[r].total, rows[r].first + rows[r].count)));
      }
      first_token.push_back(static_cast<int32_t>(position.size()));
      pages.push_back(rows[r].pages->row());
    }
    state.tokens = static_cast<int32_t>(position.size());
    state.rows = static_cast<int32_t>(rows.size());
    state.row_of_token = row_of_token;
    state.kv_position = position;
    state.first_token = first_token;
    state.key_ranges = {ranges};
    state.kv = {{pages}};
    state.draft_mask = draft;
    bind(q_, rows, &Inputs::q, case_.heads * case_.dim_k);
    bind(k_, rows, &Inputs::k, case_.kv_heads * case_.dim_k);
    bind(v_, rows, &Inputs::v, case_.kv_heads * case_.dim_v);
    executor_.run(*program_, state);
    append_cost_ = program_->cost(0, state);
    cost_ = program_->cost(1, state);
    std::vector<float> out;
    const size_t width = static_cast<size_t>(case_.heads * case_.dim_v);
    for (int32_t t = 0; t < state.tokens; ++t) {
      const float* row = reinterpret_cast<const float*>(
          program_->data(out_) +
          static_cast<size_t>(t) * program_->values()[static_cast<size_t>(out_.index)].stride);
      out.insert(out.end(), row, row + width);
    }
    return out;
  }
  // Of the last step.
  const program::OpCost& cost() const { return cost_; }
  const program::OpCost& append_cost() const { return append_cost_; }

 private:
  void bind(ValueId id, const std::vector<Row>& rows, std::vector<float> Inputs::*member, int width) {
    const size_t stride = program_->values()[static_cast<size_t>(id.index)].stride;
    size_t tokens = 0;
    for (const Row& row : rows) tokens += static_cast<size_t>(row.count);
    std::vector<std::byte>& buffer = buffers_[static_cast<size_t>(id.index)];
    buffer.assign(tokens * stride + 128, std::byte{0xFF});
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    std::byte* base = buffer.data() + (align_up(address, 64) - address);
    size_t at = 0;
    for (const Row& row : rows)
      for (int t = row.first; t < row.first + row.count; ++t, ++at)
        std::memcpy(base + at * stride, (row.inputs->*member).data() + static_cast<size_t>(t * width),
                    static_cast<size_t>(width) * 4);
    program_->bind(id, base);
  }

  Case case_;
  ThreadTeam team_;
  program::CpuExecutor executor_;
  Arena arena_;
  std::unique_ptr<kv::PageLayout> layout_;
  std::vector<float> sinks_;
  ValueId q_, k_, v_, out_;
  program::OpCost cost_, append_cost_;
  std::unique_ptr<program::Program> program_;
  std::vector<std::byte> buffers_[8];
};

// ---- the reference: float64, from the canonical bytes of the stored tokens

struct Stored {
  std::vector<std::vector<double>> k, v;  // [token * kv_heads + head]
};
Stored stored_tokens(const Case& c, const kv::CodecLayout& layout, const Pages& pages, int tokens) {
  Stored out;
  std::vector<std::byte> bytes(layout.token_bytes());
  for (int t = 0; t < tokens; ++t) {
    layout.export_tokens(pages.table[static_cast<size_t>(t / c.page_tokens)], t % c.page_tokens, 1, bytes);
    kv::testing::DecodedToken token = kv::testing::decode_token(layout, 1, bytes);
    std::ranges::move(token.k, std::back_inserter(out.k));
    std::ranges::move(token.v, std::back_inserter(out.v));
  }
  return out;
}

std::vector<double> reference(const Case& c, const Inputs& inputs, const Stored& stored, int position,
                              int total) {
  const KeyRange range = range_of(c, position, total);
  const std::vector<float> sinks = sink_table(c);
  const int group = c.heads / c.kv_heads;
  std::vector<double> out;
  for (int h = 0; h < c.heads; ++h) {
    std::vector<double> scores, o(static_cast<size_t>(c.dim_v));
    std::vector<int> keys;
    double top = c.sink_logits ? sinks[static_cast<size_t>(h)] : -INFINITY;
    for (int j = 0; j < range.end; ++j) {
      if (j < range.begin && j >= c.sinks) continue;
      const auto& k = stored.k[static_cast<size_t>(j * c.kv_heads + h / group)];
      double s = 0;
      for (int i = 0; i < c.dim_k; ++i)
        s += static_cast<double>(inputs.q[static_cast<size_t>((position * c.heads + h) * c.dim_k + i)]) *
             k[static_cast<size_t>(i)];
      s /= std::sqrt(static_cast<double>(c.dim_k));
      if (c.softcap != 0.0f) s = c.softcap * std::tanh(s / c.softcap);
      keys.push_back(j);
      scores.push_back(s);
      top = std::max(top, s);
    }
    double sum = c.sink_logits ? std::exp(sinks[static_cast<size_t>(h)] - top) : 0.0;
    for (size_t n = 0; n < keys.size(); ++n) {
      const double p = std::exp(scores[n] - top);
      sum += p;
      const auto& v = stored.v[static_cast<size_t>(keys[n] * c.kv_heads + h / group)];
      for (int i = 0; i < c.dim_v; ++i) o[static_cast<size_t>(i)] += p * v[static_cast<size_t>(i)];
    }
    for (double x : o) out.push_back(x / sum);
  }
  return out;
}

// Appends and attends `tokens` tokens in chunks; all outputs, token by token.
std::vector<float> run_alone(const Case& c, const Inputs& inputs, int tokens, int chunk,
                             Pages* keep = nullptr) {
  Harness harness(c, chunk, 1, tokens);
  Pages pages(harness.layout(), tokens);
  std::vector<float> out;
  for (int first = 0; first < tokens; first += chunk) {
    const int count = std::min(chunk, tokens - first);
    const std::vector<float> step = harness.step({{&inputs, &pages, first, count, tokens}});
    out.insert(out.end(), step.begin(), step.end());
  }
  if (keep != nullptr) *keep = std::move(pages);
  return out;
}

void expect_near_reference(const Case& c, int tokens, int chunk, double tolerance) {
  const Inputs inputs = make_inputs(c, tokens, 7);
  GroupGeometry geometry{2, c.kv_heads, c.dim_k, c.dim_v, {}, 0, c.codec, c.page_tokens};
  const kv::CodecLayout layout(geometry, c.isa);
  Pages pages(layout, 0);
  const std::vector<float> out = run_alone(c, inputs, tokens, chunk, &pages);
  const Stored stored = stored_tokens(c, layout, pages, tokens);
  const size_t width = static_cast<size_t>(c.heads * c.dim_v);
  double worst = 0, largest = 0;
  for (int t = 0; t<tokens; t += tokens> 64 ? 7 : 1) {
    const std::vector<double> expected = reference(c, inputs, stored, t, tokens);
    for (size_t i = 0; i < width; ++i) {
      const double got = out[static_cast<size_t>(t) * width + i];
      ASSERT_TRUE(std::isfinite(got)) << "token " << t << " element " << i;
      worst = std::max(worst, std::abs(got - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
  }
  EXPECT_LE(worst, tolerance * largest);
}

std::vector<IsaLevel> levels() {
  std::vector<IsaLevel> out;
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) out.push_back(level);
  return out;
}

testing::Matcher<const std::vector<float>&> BitsEqual(const std::vector<float>& expected) {
  return testing::Truly([&expected](const std::vector<float>& got) {
    return got.size() == expected.size() && std::memcmp(got.data(), expected.data(), got.size() * 4) == 0;
  });
}

TEST(Attention, MatchesFloat64OnEveryLevel) {
  for (IsaLevel isa : levels()) {
    SCOPED_TRACE(std::string(name(isa)));
    Case c;
    c.isa = isa;
    c.codec = {plain(Dtype::f32), plain(Dtype::f32)};
    c.precision = AttentionPrecision::f32;
    expect_near_reference(c, 300, 300, 1e-6);
    c.codec = {plain(Dtype::bf16), plain(Dtype::f16)};
    expect_near_reference(c, 300, 300, 1e-6);
    c.precision = AttentionPrecision::bf16;
    c.codec = {plain(Dtype::bf16), plain(Dtype::bf16)};
    expect_near_reference(c, 300, 300, 1e-2);
  }
}

// What a profile counts: keys and values that the step's queries see, once a row, as they are stored, and two
// products a query and key; of appending, what is read and what is stored.
TEST(Attention, CostsAreOfTheKeysThatAreSeen) {
  // Bytes of a token in one layer: 2 heads of 64 + 64, in 16 bits or as 8-bit codes with two f16 pairs each.
  const double bf16 = 2 * 128 * 2, affine8 = 2 * 2 * (64 + 2 * 4);
  struct Expected {
    int first, count, window, sinks;
    double keys, pairs;  // of one row
  };
  for (const bool quantized : {false, true})
    for (const Expected& e :
         {Expected{999, 1, 0, 0, 1000, 1000}, Expected{0, 1, 0, 0, 1, 1}, Expected{20, 10, 0, 0, 30, 255},
          Expected{99, 1, 16, 0, 16, 16}, Expected{99, 1, 16, 4, 20, 20}, Expected{2, 1, 16, 4, 3, 3},
          Expected{99, 3, 16, 4, 22, 60}}) {
      Case c;
      c.window = e.window;
      c.sinks = e.sinks;
      if (quantized) c.codec = {affine(8), affine(8)};
      const int total = e.first + e.count;
      Harness harness(c, 16, 3, total);
      const Inputs inputs = make_inputs(c, total, 1);
      const double token = harness.layout().layer_token_bytes();
      EXPECT_NEAR(token, quantized ? affine8 : bf16, 2);  // pages have a little room at their ends
      for (const int rows : {1, 3}) {
        if (rows * e.count > 16) continue;
        std::vector<Pages> pages;
        for (int r = 0; r < rows; ++r) pages.emplace_back(harness.layout(), total);
        std::vector<Harness::Row> step;
        for (int r = 0; r < rows; ++r)
          step.push_back({&inputs, &pages[static_cast<size_t>(r)], e.first, e.count, total});
        harness.step(step);
        const double tokens = rows * e.count;
        EXPECT_DOUBLE_EQ(harness.cost().kv_bytes, rows * e.keys * token) << e.first << " " << e.window;
        EXPECT_DOUBLE_EQ(harness.cost().bytes, rows * e.keys * token + tokens * 4 * 128 * 4);
        EXPECT_DOUBLE_EQ(harness.cost().operations, rows * e.pairs * 4 * 128 * 2);
        EXPECT_EQ(harness.cost().weight_bytes, 0);
        EXPECT_DOUBLE_EQ(harness.append_cost().bytes, tokens * (2 * 128 * 4 + token));
        EXPECT_EQ(harness.append_cost().kv_bytes, 0);
      }
    }
}

TEST(Attention, TakesOddShapes) {
  struct Shape {
    int heads, kv_heads, dim_k, dim_v;
  };
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{3, 1, 5, 7}, Shape{9, 3, 64, 64}, Shape{7, 7, 20, 12},
                         Shape{10, 2, 33, 65}, Shape{71, 1, 64, 64}, Shape{4, 1, 256, 256},
                         Shape{2, 1, 192, 128}, Shape{6, 2, 80, 80}, Shape{2, 2, 576, 512}}) {
    for (Dtype type : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      SCOPED_TRACE(fmt::format("{} {} {} {} {}", s.heads, s.kv_heads, s.dim_k, s.dim_v, name(type)));
      Case c;
      c.heads = s.heads;
      c.kv_heads = s.kv_heads;
      c.dim_k = s.dim_k;
      c.dim_v = s.dim_v;
      c.page_tokens = 16;
      c.codec = {plain(type), plain(type)};
      c.precision = AttentionPrecision::f32;
      expect_near_reference(c, 41, 41, 2e-6);
      c.precision = AttentionPrecision::bf16;
      expect_near_reference(c, 41, 9, 1.5e-2);
    }
  }
}

// P9.
TEST(Attention, WindowsSinksAndCaps) {
  Case c;
  c.codec = {plain(Dtype::f32), plain(Dtype::f32)};
  c.precision = AttentionPrecision::f32;
  c.window = 70;
  expect_near_reference(c, 600, 600, 1e-6);
  c.sinks = 3;
  expect_near_reference(c, 600, 50, 1e-6);
  c.sink_logits = true;
  c.softcap = 2.0f;
  expect_near_reference(c, 600, 600, 1e-6);
  c.window = 0;
  c.sinks = 0;
  c.bidirectional = 40;
  expect_near_reference(c, 200, 200, 1e-6);
}

std::vector<Case> invariance_cases() {
  std::vector<Case> out;
  for (AttentionPrecision precision : {AttentionPrecision::f32, AttentionPrecision::bf16}) {
    for (CodecPair codec :
         {CodecPair{plain(Dtype::bf16), plain(Dtype::bf16)}, CodecPair{plain(Dtype::f32), plain(Dtype::f16)},
          CodecPair{affine(4), affine(8, 64)}, CodecPair{turbo_key(8), rotated(3)},
          CodecPair{rotated(5), affine(6)}, CodecPair{q8_0(), q8_0(true)},
          CodecPair{q8_0(true, 5), q8_0(false, 4)}, CodecPair{rotated(8), rotated(8)}}) {
      for (int window : {0, 50}) {
        Case c;
        c.heads = 6;
        c.codec = codec;
        c.precision = precision;
        c.window = window;
        c.sinks = window == 0 ? 0 : 2;
        out.push_back(c);
      }
    }
  }
  return out;
}

// P20.
TEST(Attention, BitsDoNotDependOnTheChunk) {
  for (IsaLevel isa : levels()) {
    for (Case c : invariance_cases()) {
      c.isa = isa;
      const int tokens = 333;
      const Inputs inputs = make_inputs(c, tokens, 3);
      const std::vector<float> whole = run_alone(c, inputs, tokens, tokens);
      for (int chunk : {1, 7, 16})
        EXPECT_THAT(run_alone(c, inputs, tokens, chunk), BitsEqual(whole)) << name(isa) << " " << chunk;
    }
  }
}

TEST(Attention, BitsDoNotDependOnPageSizeOrThreads) {
  for (IsaLevel isa : levels()) {
    for (Case c : invariance_cases()) {
      c.isa = isa;
      SCOPED_TRACE(std::string(name(isa)));
      const int tokens = isa == best_isa_level() ? 700 : 350;
      const Inputs inputs = make_inputs(c, tokens, 4);
      const std::vector<float> whole = run_alone(c, inputs, tokens, tokens);
      for (int page_tokens : {16, 32, 256}) {
        c.page_tokens = page_tokens;
        EXPECT_THAT(run_alone(c, inputs, tokens, 300), BitsEqual(whole)) << page_tokens;
      }
      for (int threads : {2, 3, 5}) {
        c.threads = threads;
        EXPECT_THAT(run_alone(c, inputs, tokens, tokens), BitsEqual(whole)) << threads;
        EXPECT_THAT(run_alone(c, inputs, tokens, 19), BitsEqual(whole)) << threads;
      }
    }
  }
}

// P19.
TEST(Attention, BitsDoNotDependOnTheBatch) {
  for (IsaLevel isa : levels()) {
    for (Case c : invariance_cases()) {
      c.isa = isa;
      SCOPED_TRACE(std::string(name(isa)));
      c.threads = 2;
      const int tokens = 290;
      std::vector<Inputs> inputs;
      std::vector<std::vector<float>> alone;
      for (unsigned r = 0; r < 5; ++r) {
        inputs.push_back(make_inputs(c, tokens, 40 + r));
        alone.push_back(run_alone(c, inputs.back(), tokens, tokens));
      }
      Harness harness(c, 5 * tokens, 5, tokens);
      std::vector<Pages> pages;
      for (int r = 0; r < 5; ++r) pages.emplace_back(harness.layout(), tokens);
      std::vector<std::vector<float>> got(5);
      std::vector<int> at(5, 0);
      std::mt19937 random(1);
      const size_t width = static_cast<size_t>(c.heads * c.dim_v);
      while (true) {
        std::vector<Harness::Row> rows;
        std::vector<size_t> which;
        for (size_t r = 0; r < 5; ++r) {
          const int count = std::min(tokens - at[r], std::vector<int>{0, 1, 1, 33, 100}[random() % 5]);
          if (count == 0) continue;
          rows.push_back({&inputs[r], &pages[r], at[r], count, tokens});
          which.push_back(r);
          at[r] += count;
        }
        if (rows.empty()) {
          if (*std::min_element(at.begin(), at.end()) == tokens) break;
          continue;
        }
        const std::vector<float> out = harness.step(rows);
        size_t token = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto begin = out.begin() + static_cast<ptrdiff_t>(token * width);
          got[which[i]].insert(got[which[i]].end(), begin,
                               begin + static_cast<ptrdiff_t>(static_cast<size_t>(rows[i].count) * width));
          token += static_cast<size_t>(rows[i].count);
        }
      }
      for (size_t r = 0; r < 5; ++r) EXPECT_THAT(got[r], BitsEqual(alone[r]));
    }
  }
}

// One KV head and few of them: the split of segments over threads, against one thread, at decode.
TEST(Attention, DecodeSplitsSegmentsOverThreads) {
  for (IsaLevel isa : levels()) {
    for (int kv_heads : {1, 3}) {
      Case c;
      c.isa = isa;
      c.kv_heads = kv_heads;
      c.heads = 4 * kv_heads;
      const int tokens = 1500;
      const Inputs inputs = make_inputs(c, tokens, 8);
      const auto last = [&](int threads, int window) {
        Case k = c;
        k.threads = threads;
        k.window = window;
        Harness harness(k, tokens, 1, tokens);
        Pages pages(harness.layout(), tokens);
        harness.step({{&inputs, &pages, 0, tokens - 1, tokens}});
        return harness.step({{&inputs, &pages, tokens - 1, 1, tokens}});
      };
      for (int window : {0, 600}) {
        const std::vector<float> one = last(1, window);
        for (int threads : {2, 3, 7})
          EXPECT_THAT(last(threads, window), BitsEqual(one))
              << name(isa) << " " << kv_heads << " " << threads;
      }
    }
  }
}

// A tree of drafts: bit j of a token's mask shows the j-th newest key of its range. A mask of ones changes no
// bit; a token whose two siblings are hidden matches a reference that never had them.
TEST(Attention, DraftMasksHideNewestKeys) {
  for (const CodecPair& codec :
       {CodecPair{plain(Dtype::bf16), plain(Dtype::bf16)}, CodecPair{affine(8), rotated(4)}}) {
    Case c;
    c.codec = codec;
    const int tokens = 300;
    const Inputs inputs = make_inputs(c, tokens, 6);
    const auto last_step = [&](const std::vector<uint64_t>& mask) {
      Harness harness(c, tokens, 1, tokens);
      Pages pages(harness.layout(), tokens);
      harness.step({{&inputs, &pages, 0, tokens - 3, tokens}});
      return harness.step({{&inputs, &pages, tokens - 3, 3, tokens}}, mask);
    };
    const size_t width = static_cast<size_t>(c.heads * c.dim_v);
    const std::vector<float> causal = last_step({});
    EXPECT_THAT(last_step({~0ull, ~0ull, ~0ull}), BitsEqual(causal));
    const std::vector<float> masked = last_step({~0ull, ~0ull, ~0ull & ~6ull});
    EXPECT_TRUE(
        std::equal(causal.begin(), causal.begin() + static_cast<ptrdiff_t>(2 * width), masked.begin()));
    GroupGeometry geometry{2, c.kv_heads, c.dim_k, c.dim_v, {}, 0, c.codec, c.page_tokens};
    const kv::CodecLayout layout(geometry, c.isa);
    Pages pages(layout, 0);
    run_alone(c, inputs, tokens, tokens, &pages);
    Stored stored = stored_tokens(c, layout, pages, tokens);
    for (auto* plane : {&stored.k, &stored.v})
      plane->erase(plane->begin() + (tokens - 3) * c.kv_heads, plane->begin() + (tokens - 1) * c.kv_heads);
    Inputs moved = inputs;  // the query at the place it has among the keys that are left
    std::copy(inputs.q.end() - c.heads * c.dim_k, inputs.q.end(),
              moved.q.begin() + (tokens - 3) * c.heads * c.dim_k);
    const std::vector<double> expected = reference(c, moved, stored, tokens - 3, tokens - 2);
    for (size_t i = 0; i < width; ++i) EXPECT_NEAR(masked[2 * width + i], expected[i], 2e-2) << i;
  }
}

// A later token that is infinite or NaN must not reach an earlier one through a weight of zero.
TEST(Attention, LaterInfinitiesStayInvisible) {
  for (Dtype type : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    Case c;
    c.codec = {plain(type), plain(type)};
    const int tokens = 40;
    Inputs inputs = make_inputs(c, tokens, 5);
    const std::vector<float> clean = run_alone(c, inputs, tokens, tokens);
    const size_t kv_width = static_cast<size_t>(c.kv_heads * c.dim_v);
    inputs.v[21 * kv_width + 3] = INFINITY;
    inputs.v[21 * kv_width + 9] = NAN;
    inputs.k[22 * kv_width + 5] = NAN;
    std::vector<float> dirty = run_alone(c, inputs, tokens, tokens);
    std::vector<float> expected = clean;
    dirty.resize(21 * static_cast<size_t>(c.heads * c.dim_v));
    expected.resize(dirty.size());
    EXPECT_THAT(dirty, BitsEqual(expected)) << name(type);
  }
}

TEST(Attention, QuantizedPlanesMatchFloat64) {
  std::vector<CodecPair> codecs;
  for (int bits : {2, 3, 4, 5, 6, 8})
    codecs.push_back({affine(bits, 64), affine(bits, 32, bits == 5 ? Dtype::bf16 : Dtype::f16)});
  codecs.push_back({affine(8, 128, Dtype::f32), affine(3, 128)});
  for (int bits : {2, 4, 5, 8}) codecs.push_back({turbo_key(bits), rotated(bits)});
  for (int bits : {2, 3, 4, 5, 8}) codecs.push_back({rotated(bits), plain(Dtype::bf16)});
  codecs.push_back({plain(Dtype::f16), rotated(3)});
  codecs.push_back({q8_0(), q8_0()});
  codecs.push_back({q8_0(true), q8_0(true)});
  codecs.push_back({q8_0(true), affine(8)});
  for (int bits : {3, 4, 5, 6}) codecs.push_back({q8_0(bits > 4, bits), q8_0(bits % 2 == 0, bits)});
  for (IsaLevel isa : levels()) {
    for (const CodecPair& codec : codecs) {
      Case c;
      c.isa = isa;
      c.dim_k = c.dim_v = 128;
      c.codec = codec;
      c.precision = AttentionPrecision::f32;
      SCOPED_TRACE(fmt::format("{} {} {}", name(isa), codec.k.bits, codec.v.bits));
      expect_near_reference(c, 70, 70, 2e-6);
      c.precision = AttentionPrecision::bf16;
      expect_near_reference(c, 70, 70, 2e-2);
    }
  }
}

// A codebook of 256 entries is looked up in different ways: with byte permutes, between the multiply-adds of
// few rows or into a tile for many; without. Every code, in every place of a block and every number of rows.
TEST(Attention, BitsDoNotDependOnBytePermutes) {
  const int tokens = 300;
  for (IsaLevel isa : levels()) {
    for (const CodecPair& codec : {CodecPair{rotated(8), rotated(8)}, CodecPair{turbo_key(8), rotated(8)},
                                   CodecPair{rotated(8), affine(6)}}) {
      for (const int group : {1, 2, 3, 4, 5, 6, 7, 13}) {
        for (AttentionPrecision precision : {AttentionPrecision::f32, AttentionPrecision::bf16}) {
          Case c;
          c.isa = isa;
          c.codec = codec;
          c.precision = precision;
          c.heads = 2 * group;
          c.window = group == 3 ? 70 : 0;
          const Inputs inputs = make_inputs(c, tokens, 12);
          SCOPED_TRACE(fmt::format("{} {} rows", name(isa), group));
          std::vector<float> results[2];
          for (const bool byte_permutes : {true, false}) {
            c.byte_permutes = byte_permutes;
            Harness harness(c, tokens, 1, tokens);
            const auto& layout = static_cast<const kv::CodecLayout&>(harness.layout());
            Pages pages(layout, tokens);
            harness.step({{&inputs, &pages, 0, tokens - 1, tokens}});
            // Codes of every value in place of what was appended.
            std::vector<std::byte> bytes(layout.token_bytes());
            for (int t = 0; t < tokens - 1; ++t) {
              std::byte* page = pages.table[static_cast<size_t>(t / c.page_tokens)];
              layout.export_tokens(page, t % c.page_tokens, 1, bytes);
              std::byte* at = bytes.data() + bytes.size() / 2;  // layer 1 of 2
              for (const kv::PlaneFormat* f : {&layout.key(), &layout.value()}) {
                const int size = c.kv_heads * static_cast<int>(f->row_code_bytes);
                for (int i = 0; i < size && f->codec.kind == PlaneCodec::Kind::rotated; ++i)
                  at[i] = static_cast<std::byte>(t * 37 + i * 101 + (t * i) / 7);
                at += static_cast<size_t>(c.kv_heads) * f->row_bytes();
              }
              layout.import_tokens(page, t % c.page_tokens, 1, bytes);
            }
            results[byte_permutes] = harness.step({{&inputs, &pages, tokens - 1, 1, tokens}});
            if (group != 4) continue;
            const std::vector<double> expected =
                reference(c, inputs, stored_tokens(c, layout, pages, tokens), tokens - 1, tokens);
            double largest = 0;
            for (double x : expected) largest = std::max(largest, std::abs(x));
            for (size_t i = 0; i < expected.size(); ++i)
              EXPECT_NEAR(results[byte_permutes][i], expected[i],
                          (precision == AttentionPrecision::f32 ? 4e-6 : 2e-2) * largest);
          }
          EXPECT_THAT(results[0], BitsEqual(results[1]));
        }
      }
    }
  }
}

// avx2 gathers a codebook's entries, avx512vnni shuffles narrow codebooks' bytes within 16, avx512bf16
// permutes all of them. All else that attention over codes does in one kind of arithmetic is the same on all
// levels with fused multiply-adds, so the bits are.
TEST(Attention, CodebooksGiveTheSameBitsHoweverTheyAreLookedUp) {
  for (int bits : {2, 3, 4, 5, 8}) {
    for (AttentionPrecision precision : {AttentionPrecision::f32, AttentionPrecision::bf16}) {
      Case c;
      c.codec = {rotated(bits), rotated(bits)};
      c.precision = precision;
      const Inputs inputs = make_inputs(c, 300, 13);
      std::vector<float> first;
      for (IsaLevel level : {IsaLevel::avx512vnni, IsaLevel::avx512bf16, IsaLevel::avx2}) {
        // avx2 gathers; as integers codes are attended with VNNI alone.
        if (level == IsaLevel::avx2 && bits != 8 && precision == AttentionPrecision::bf16) continue;
        if (!machine_has(level)) continue;
        c.isa = level;
        const std::vector<float> got = run_alone(c, inputs, 300, 100);
        if (first.empty()) first = got;
        EXPECT_THAT(got, BitsEqual(first)) << bits << " bits, " << name(level);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
