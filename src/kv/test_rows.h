// For the tests of kv/: a page layout of one's own (slots reversed and interleaved inside a page, so that
// nothing but the layout can know where a byte lies), and rows whose stored bytes are a function of their own
// tokens alone.
#pragma once

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "kv/cache.h"

namespace kvasir::kv::testing {

inline std::vector<int32_t> counting(int32_t from, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(from + i);
  return tokens;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Canonical bytes of a plain token: 4 a head dimension and plane; of an encoded one: every other byte,
// plus 1. A page stores byte b of slot t at b * P + (P - 1 - t).
class TestLayout final : public PageLayout {
 public:
  explicit TestLayout(const GroupGeometry& geometry) {
    geometry_ = geometry;
    const size_t plain = static_cast<size_t>(geometry.layers) * static_cast<size_t>(geometry.kv_heads) *
                         static_cast<size_t>(geometry.head_dim_k + geometry.head_dim_v +
                                             (geometry.mla ? geometry.mla->dsa_dim : 0)) *
                         4;
    token_bytes_ = geometry.codec.is_plain() ? plain : plain / 2;
    page_bytes_ = align_up(token_bytes_ * static_cast<size_t>(geometry.page_tokens), 256);
  }
  static LayoutFactory factory() {
    return [](const GroupGeometry& geometry) { return std::make_unique<TestLayout>(geometry); };
  }
  static std::vector<std::byte> encode(std::span<const std::byte> plain) {
    std::vector<std::byte> encoded(plain.size() / 2);
    for (size_t i = 0; i < encoded.size(); ++i)
      encoded[i] = static_cast<std::byte>(static_cast<int>(plain[2 * i]) + 1);
    return encoded;
  }

  void export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const override {
    KVASIR_CHECK(out.size() == static_cast<size_t>(count) * token_bytes_ && first >= 0 &&
                 first + count <= geometry_.page_tokens);
    for (int t = 0; t < count; ++t)
      for (size_t b = 0; b < token_bytes_; ++b)
        out[static_cast<size_t>(t) * token_bytes_ + b] = page[at(b, first + t)];
  }
  void import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const override {
    KVASIR_CHECK(in.size() == static_cast<size_t>(count) * token_bytes_ && first >= 0 &&
                 first + count <= geometry_.page_tokens);
    for (int t = 0; t < count; ++t)
      for (size_t b = 0; b < token_bytes_; ++b)
        page[at(b, first + t)] = in[static_cast<size_t>(t) * token_bytes_ + b];
  }
  void copy_tokens(const std::byte* from, std::byte* to, int first, int count) const override {
    for (int t = first; t < first + count; ++t)
      for (size_t b = 0; b < token_bytes_; ++b) to[at(b, t)] = from[at(b, t)];
  }
  void convert_tokens(const PageLayout& plain, const std::byte* from, std::byte* to, int first,
                      int count) const override {
    std::vector<std::byte> token(plain.token_bytes());
    for (int t = first; t < first + count; ++t) {
      plain.export_tokens(from, t, 1, token);
      import_tokens(to, t, 1, encode(token));
    }
  }

 private:
  size_t at(size_t byte, int slot) const {
    const size_t page = static_cast<size_t>(geometry_.page_tokens);
    return byte * page + (page - 1 - static_cast<size_t>(slot));
  }
};

// A sequence and the tokens in it.
struct TestRow {
  Sequence sequence;
  std::vector<int32_t> tokens;
};

inline uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Depends on every token up to and including `position`, as a real KV row does.
inline uint64_t prefix_hash(std::span<const int32_t> tokens, size_t position) {
  uint64_t hash = 1;
  for (size_t i = 0; i <= position; ++i) hash = mix(hash ^ static_cast<uint64_t>(tokens[i]));
  return hash;
}

// Canonical bytes that a token must have in a group.
inline std::vector<std::byte> token_bytes(uint64_t hash, size_t group, const PageLayout& layout) {
  const GroupGeometry& geometry = layout.geometry();
  std::vector<std::byte> plain(geometry.codec.is_plain() ? layout.token_bytes() : layout.token_bytes() * 2);
  for (size_t i = 0; i < plain.size(); ++i)
    plain[i] = static_cast<std::byte>(mix(hash + group * 1000003 + i / 8) >> (8 * (i % 8)));
  return geometry.codec.is_plain() ? plain : TestLayout::encode(plain);
}

inline void write_state(KvCache& cache, int32_t in, int32_t out, int32_t token) {
  auto* from = reinterpret_cast<const uint64_t*>(cache.states().slot(static_cast<SlotId>(in)));
  auto* to = reinterpret_cast<uint64_t*>(cache.states().slot(static_cast<SlotId>(out)));
  for (size_t i = 0; i < cache.states().bytes_per_slot() / 8; ++i)
    to[i] = mix(from[i] + static_cast<uint64_t>(token) + i);
}

// What a model does in one step: writes every new token of every row through the step's views.
inline void run_step(KvCache& cache, Step& step, std::span<TestRow* const> rows,
                     std::span<const std::vector<int32_t>> tokens) {
  size_t token_index = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<int32_t> all = rows[r]->tokens;
    all.insert(all.end(), tokens[r].begin(), tokens[r].end());
    const int32_t before = static_cast<int32_t>(rows[r]->tokens.size());
    KVASIR_CHECK(rows[r]->sequence.offset() == before);
    for (size_t i = 0; i < tokens[r].size(); ++i) {
      const int32_t position = before + static_cast<int32_t>(i);
      for (size_t g = 0; g < cache.groups(); ++g) {
        const RowPages& pages = step.views()[g].rows[r];
        const int32_t page = pages.layout->geometry().page_tokens;
        KVASIR_CHECK(position / page < pages.page_count);
        pages.layout->import_tokens(
            pages.pages[position / page], position % page, 1,
            token_bytes(prefix_hash(all, static_cast<size_t>(position)), g, *pages.layout));
      }
    }
    if (!cache.states().empty()) {
      int32_t in = step.state_in()[r];
      int32_t scratch = in;
      std::vector<uint64_t> value(cache.states().bytes_per_slot() / 8);
      std::memcpy(value.data(), cache.states().slot(static_cast<SlotId>(in)), value.size() * 8);
      for (int32_t token : tokens[r]) {
        for (size_t i = 0; i < value.size(); ++i) value[i] = mix(value[i] + static_cast<uint64_t>(token) + i);
        const int32_t out = step.token_state_out()[token_index++];
        if (out >= 0) {
          KVASIR_CHECK(out != in && cache.states().pages().references(static_cast<SlotId>(out)) == 1);
          std::memcpy(cache.states().slot(static_cast<SlotId>(out)), value.data(), value.size() * 8);
          scratch = out;
        }
      }
      KVASIR_CHECK(step.state_out()[r] == scratch);
    }
  }
}

// Reserve, run, commit.
inline void append(KvCache& cache, std::span<TestRow* const> rows,
                   std::span<const std::vector<int32_t>> tokens, Step& step) {
  std::vector<Sequence*> sequences;
  std::vector<int32_t> counts;
  for (size_t r = 0; r < rows.size(); ++r) {
    sequences.push_back(&rows[r]->sequence);
    counts.push_back(static_cast<int32_t>(tokens[r].size()));
  }
  cache.reserve(sequences, counts, step);
  run_step(cache, step, rows, tokens);
  step.commit();
  for (size_t r = 0; r < rows.size(); ++r)
    rows[r]->tokens.insert(rows[r]->tokens.end(), tokens[r].begin(), tokens[r].end());
}

// Appends in chunks that respect max_append and `chunk`.
inline void append(KvCache& cache, TestRow& row, std::span<const int32_t> tokens, int32_t chunk = INT32_MAX) {
  Step step;
  while (!tokens.empty()) {
    const size_t count = static_cast<size_t>(
        std::min<int64_t>({chunk, row.sequence.max_append(), static_cast<int64_t>(tokens.size())}));
    TestRow* rows[] = {&row};
    const std::vector<int32_t> part[] = {
        {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)}};
    append(cache, rows, part, step);
    tokens = tokens.subspan(count);
  }
}

// The recurrent state after these tokens.
inline std::vector<uint64_t> expected_state(const KvCache& cache, std::span<const int32_t> tokens) {
  std::vector<uint64_t> value(cache.states().bytes_per_slot() / 8);
  for (int32_t token : tokens)
    for (size_t i = 0; i < value.size(); ++i) value[i] = mix(value[i] + static_cast<uint64_t>(token) + i);
  return value;
}

// Empty if every stored byte of the row is what its tokens alone say, and everything that the next query may
// see is stored.
inline std::string difference(const Sequence& sequence, std::span<const int32_t> tokens) {
  const KvCache& cache = sequence.cache();
  const int32_t offset = sequence.offset();
  if (offset != static_cast<int32_t>(tokens.size()))
    return fmt::format("offset {} of {} tokens", offset, tokens.size());
  std::vector<uint64_t> hashes;
  uint64_t hash = 1;
  for (int32_t token : tokens) hashes.push_back(hash = mix(hash ^ static_cast<uint64_t>(token)));
  for (size_t g = 0; g < cache.groups(); ++g) {
    const GroupGeometry& geometry = cache.shape().groups[g].geometry;
    const PageLayout& layout = cache.layout(g, sequence.encoded());
    const int32_t first = sequence.first_stored(g);
    if (!geometry.window && first != 0) return fmt::format("group {} is full, but begins at {}", g, first);
    if (geometry.window && first > std::max(0, offset - (*geometry.window - 1)))
      return fmt::format("group {} lost its window at {}", g, first);
    for (int32_t p = 0; p < offset; ++p) {
      if (p < first && p >= geometry.sinks) continue;
      if (sequence.bytes(g, p, 1) != token_bytes(hashes[static_cast<size_t>(p)], g, layout))
        return fmt::format("group {}: token at {} of {} differs", g, p, offset);
    }
  }
  if (!cache.states().empty()) {
    const auto expected = expected_state(cache, tokens);
    if (std::memcmp(expected.data(), sequence.state().data(), expected.size() * 8) != 0)
      return "recurrent state differs";
  }
  return {};
}
inline std::string difference(const TestRow& row) {
  return difference(row.sequence, row.tokens);
}

inline PlaneCodec plain(Dtype dtype = Dtype::f32) {
  return {.kind = PlaneCodec::Kind::plain, .plain = dtype};
}
inline PlaneCodec affine(int bits = 8) {
  return {.kind = PlaneCodec::Kind::affine, .plain = Dtype::f32, .bits = bits, .group = 32};
}

struct ShapeOptions {
  int page = 4;
  int32_t start = 0;
  bool full = true;
  std::optional<int> window = {};
  int sinks = 0;
  bool encoded_full = false;
  bool encoded_window = false;
  size_t state_bytes = 0;
  std::vector<MlaGeometry> mla = {};  // a layer of latents for each, behind the others
};
inline CacheShape make_shape(const ShapeOptions& options) {
  std::vector<LayerGeometry> owners;
  std::vector<CodecPair> codecs;
  int layer = 0;
  if (options.full) {
    owners.push_back({.layer = layer++, .kv_heads = 2, .head_dim_k = 2, .head_dim_v = 3});
    codecs.push_back(options.encoded_full ? CodecPair{affine(), affine()} : CodecPair{plain(), plain()});
  }
  if (options.window) {
    owners.push_back({.layer = layer++,
                      .kv_heads = 1,
                      .head_dim_k = 2,
                      .head_dim_v = 2,
                      .window = options.window,
                      .sinks = options.sinks});
    codecs.push_back(options.encoded_window ? CodecPair{affine(), affine()} : CodecPair{plain(), plain()});
  }
  for (const MlaGeometry& mla : options.mla) {
    owners.push_back({.layer = layer++, .kv_heads = 1, .head_dim_k = 5, .head_dim_v = 3, .mla = mla});
    codecs.push_back(mla_codec());
  }
  return group_layers(owners, codecs, options.page, options.start, options.state_bytes);
}

inline CacheCapacity pages_each(const CacheShape& shape, uint32_t pages, uint32_t slots = 64) {
  CacheCapacity capacity;
  for (size_t g = 0; g < shape.groups.size(); ++g)
    capacity.groups.push_back({.pages = pages, .plain_pages = shape.converts(g) ? pages : 0});
  capacity.state_slots = slots;
  return capacity;
}

inline std::vector<int32_t> random_tokens(std::mt19937& random, size_t count, int32_t vocabulary = 1000) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
  return tokens;
}

}  // namespace kvasir::kv::testing
