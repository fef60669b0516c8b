// Prompt cache files of mlx-lm: where positions lie in a ring, and what no such file may say. What mlx-lm
// itself wrote is read in engine/mlx_prompt_cache_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>

#include "formats/safetensors_writer.h"
#include "kv/mlx_exchange.h"
#include "kv/prefix_tree.h"
#include "kv/store_layout.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using formats::SafetensorsDtype;
using testing::counting;
using testing::StoreFixture;

// A file under construction: tensors by name, metadata by key.
struct Draft {
  struct Tensor {
    SafetensorsDtype dtype = SafetensorsDtype::f32;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;

  void number(const std::string& name, int32_t value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    tensors[name] = {SafetensorsDtype::i32, {}, {at, at + sizeof value}};
  }
  // [1, heads, columns, width]: value(head, column, channel).
  void floats(const std::string& name, int64_t heads, int64_t columns, int64_t width,
              const std::function<float(int64_t, int64_t, int64_t)>& value) {
    Tensor& tensor = tensors[name];
    tensor = {SafetensorsDtype::f32, {1, heads, columns, width}, {}};
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t d = 0; d < width; ++d) {
          const float f = value(h, c, d);
          const auto* at = reinterpret_cast<const std::byte*>(&f);
          tensor.bytes.insert(tensor.bytes.end(), at, at + sizeof f);
        }
  }
  void words(const std::string& name, int64_t columns, int64_t width) {
    tensors[name] = {SafetensorsDtype::u32,
                     {1, 1, columns, width},
                     std::vector<std::byte>(static_cast<size_t>(columns * width * 4), std::byte{0x5a})};
  }
  // The list of numbers of the form from 0.32 on, as the tensors have them.
  void list_numbers() {
    metadata["2.0"] = "";
    int n = 0;
    for (const auto& [name, tensor] : tensors)
      if (tensor.shape.empty()) {
        metadata[fmt::format("2.{}.0", ++n)] = name;
        metadata[fmt::format("2.{}.1", n)] = "scalar";
      }
  }
  fs::path write(const fs::path& path) const {
    std::vector<formats::SafetensorsToWrite> list;
    for (const auto& [name, tensor] : tensors)
      list.push_back({name, tensor.dtype, tensor.shape, formats::produce_bytes(tensor.bytes)});
    formats::write_safetensors(path, std::move(list), {metadata.begin(), metadata.end()});
    return path;
  }
};

// Element d of head h of position p of layer l: keys are whole numbers, values these and a half.
float element(int64_t layer, int64_t head, int64_t position, int64_t channel) {
  return static_cast<float>(layer * 10000 + head * 1000 + position * 10 + channel);
}

// The layers of testing::make_shape: two heads of 2 and 3 channels that see all, one of 2 and 2 with a
// window.
void add_plain(Draft& draft, int layer, int32_t offset, int32_t columns, int heads = 2, int width_v = 3) {
  draft.floats(fmt::format("{}.0", layer), heads, columns, 2,
               [=](auto h, auto c, auto d) { return element(layer, h, c, d); });
  draft.floats(fmt::format("{}.1", layer), heads, columns, width_v,
               [=](auto h, auto c, auto d) { return element(layer, h, c, d) + 0.5f; });
  draft.number(fmt::format("{}.2", layer), offset);
  draft.metadata[fmt::format("1.{}", layer)] = "KVCache";
}

// `at[c]`: the position in column c.
void add_ring(Draft& draft, int layer, int32_t offset, int32_t keep, int32_t window, int32_t next,
              const std::vector<int32_t>& at) {
  const auto columns = static_cast<int64_t>(at.size());
  for (int plane = 0; plane < 2; ++plane)
    draft.floats(fmt::format("{}.{}", layer, plane), 1, columns, 2, [&](auto h, auto c, auto d) {
      return element(layer, h, at[static_cast<size_t>(c)], d) + (plane == 1 ? 0.5f : 0.0f);
    });
  const int32_t numbers[] = {offset, keep, window, next};
  for (int i = 0; i < 4; ++i) draft.number(fmt::format("{}.{}", layer, i + 2), numbers[i]);
  draft.metadata[fmt::format("1.{}", layer)] = "RotatingKVCache";
}

Draft plain_and_ring() {
  Draft draft;
  add_plain(draft, 0, 9, 12);
  add_ring(draft, 1, 9, 0, 4, 1, {8, 5, 6, 7});
  draft.metadata["0.model"] = "somebody/something";
  draft.list_numbers();
  return draft;
}

Draft quantized() {
  Draft draft;
  for (int plane = 0; plane < 2; ++plane) {
    draft.words(fmt::format("0.{}.0", plane), 6, 64 * 4 / 32);
    for (int i = 1; i < 3; ++i)
      draft.floats(fmt::format("0.{}.{}", plane, i), 1, 6, 2, [](auto, auto, auto) { return 1.0f; });
  }
  draft.number("0.2", 5);
  draft.number("0.3", 32);
  draft.number("0.4", 4);
  draft.metadata["1.0"] = "QuantizedKVCache";
  draft.list_numbers();
  return draft;
}

struct Folder {
  TestFolder folder{"mlx"};
  fs::path operator()(const char* name) const { return folder.path() / name; }
};

// Why the file is refused; empty: it is read.
std::string refusal(const Draft& draft, ErrorCode code = ErrorCode::corrupt_file) {
  const Folder at;
  const fs::path path = draft.write(at("x.safetensors"));
  try {
    (void)MlxCacheFile::open(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with(path.string() + ": ")) << text;
    return text.substr(std::min(text.size(), path.string().size() + 2));
  }
  return {};
}

void expect_refused(const Draft& draft, std::string_view reason, ErrorCode code = ErrorCode::corrupt_file) {
  const std::string text = refusal(draft, code);
  EXPECT_NE(text.find(reason), std::string::npos) << "'" << text << "' does not say '" << reason << "'";
}

float value_at(std::span<const std::byte> row, size_t channel) {
  float value = 0;
  std::memcpy(&value, row.data() + channel * sizeof value, sizeof value);
  return value;
}

void expect_positions(const MlxCacheFile& file, size_t layer, const std::vector<int32_t>& positions) {
  for (const int32_t p : positions)
    for (size_t plane = 0; plane < 2; ++plane)
      for (size_t d = 0; d < 2; ++d)
        EXPECT_EQ(
            value_at(file.row(layer, plane, 0, p), d),
            element(static_cast<int64_t>(layer), 0, p, static_cast<int64_t>(d)) + (plane == 1 ? 0.5f : 0.0f))
            << "layer " << layer << " position " << p;
}

// Rings as mlx-lm 0.32.2 lays them out (RotatingKVCache of max_size 6), drawn by hand from its order
// [keep][oldest..end][keep..next).
TEST(MlxCacheFile, RingsAreReadInTheOrderOfTime) {
  struct Ring {
    int32_t offset, keep, next;
    std::vector<int32_t> at;  // position in each column; -1: not used yet
    int32_t sinks, first;
  };
  const Ring rings[] = {
      {4, 0, 4, {0, 1, 2, 3}, 0, 0},                  // not full
      {3, 0, 3, {0, 1, 2, -1, -1, -1}, 0, 0},         // columns that are not used yet
      {6, 0, 6, {0, 1, 2, 3, 4, 5}, 0, 0},            // full, and nothing replaced
      {7, 0, 1, {6, 1, 2, 3, 4, 5}, 0, 1},            // turned by one
      {11, 0, 5, {6, 7, 8, 9, 10, 5}, 0, 5},          // by all but one
      {12, 0, 6, {6, 7, 8, 9, 10, 11}, 0, 6},         // round
      {9, 0, 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}, 0, 0},   // a long prompt at once
      {10, 0, 9, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 0, 1},  // a chunk behind others
      {8, 2, 4, {0, 1, 6, 7, 4, 5}, 2, 4},            // the first two stay
      {10, 2, 6, {0, 1, 6, 7, 8, 9}, 2, 6},           //
      {12, 2, 8, {0, 1, 6, 7, 8, 9, 10, 11}, 2, 6},   // and with a chunk behind
      {6, 4, 6, {0, 1, 2, 3, 4, 5}, 0, 0},
  };
  for (const Ring& ring : rings) {
    SCOPED_TRACE(fmt::format("offset {} keep {} next {}", ring.offset, ring.keep, ring.next));
    const Folder at;
    Draft draft;
    add_ring(draft, 0, ring.offset, ring.keep, 6, ring.next, ring.at);
    draft.list_numbers();
    const MlxCacheFile file = MlxCacheFile::open(draft.write(at("x.safetensors")));
    const MlxLayer& layer = file.layers()[0];
    EXPECT_EQ(layer.sinks, ring.sinks);
    EXPECT_EQ(layer.first, ring.first);
    expect_positions(file, 0, counting(0, ring.sinks));
    expect_positions(file, 0, counting(ring.first, ring.offset - ring.first));
  }
}

TEST(MlxCacheFile, RingsThatCannotBeAreRefused) {
  const auto ring = [](int32_t offset, int32_t keep, int32_t window, int32_t next, size_t columns) {
    Draft draft;
    add_ring(draft, 0, offset, keep, window, next, counting(0, static_cast<int32_t>(columns)));
    draft.list_numbers();
    return draft;
  };
  expect_refused(ring(9, 0, 0, 4, 4), "keep lies below max_size");
  expect_refused(ring(9, 4, 4, 4, 4), "keep lies below max_size");
  expect_refused(ring(9, 0, 4, 5, 4), "idx lies within both tokens and offset");
  expect_refused(ring(3, 0, 4, 4, 4), "idx lies within both tokens and offset");
  expect_refused(ring(9, 0, 6, 2, 4), "a ring that has turned has max_size tokens");
  expect_refused(ring(4, 0, 4, 2, 4), "it has not turned");
  expect_refused(ring(9, 2, 4, 1, 4), "into what it keeps");
  expect_refused(ring(9, 4, 6, 4, 4), "all that it has is kept");
  expect_refused(ring(0, 0, 4, 0, 4), "layer 0 is empty");
}

TEST(MlxCacheFile, WhatNoSuchFileSaysIsRefused) {
  EXPECT_EQ(refusal(plain_and_ring()), "");
  EXPECT_EQ(refusal(quantized()), "");
  const auto changed = [](Draft draft, const std::function<void(Draft&)>& change, std::string_view reason,
                          ErrorCode code = ErrorCode::corrupt_file) {
    SCOPED_TRACE(reason);
    change(draft);
    expect_refused(draft, reason, code);
  };
  const Draft base = plain_and_ring(), packed = quantized();
  // Metadata.
  changed(
      base, [](Draft& d) { d.metadata.clear(); }, "not a prompt cache of mlx-lm");
  changed(
      base,
      [](Draft& d) {
        d.metadata = {{"format", "pt"}};
      },
      "metadata 'format' is none of an mlx-lm prompt cache's");
  changed(
      base, [](Draft& d) { d.metadata["3.0"] = "x"; }, "metadata '3.0' is none");
  changed(
      base, [](Draft& d) { d.metadata.erase("1.0"); }, "names 1 classes of layers, and none of layer 0");
  changed(
      base, [](Draft& d) { d.metadata.erase("1.0"), d.metadata.erase("1.1"); }, "the class of no layer");
  changed(
      base, [](Draft& d) { d.metadata.erase("1.1"); }, "tensor '1.0' belongs to none of its 1 layers");
  changed(
      base, [](Draft& d) { d.metadata["1.2"] = "KVCache"; }, "layer 2 (KVCache) has no tensor '2.0'");
  changed(
      base, [](Draft& d) { d.metadata["1.0"] = "ArraysCache"; }, "layer 0 is a cache of class 'ArraysCache'",
      ErrorCode::unsupported);
  changed(
      base, [](Draft& d) { d.metadata["1.1"] = "CacheList\n"; }, "class 'CacheList\\x0a'",
      ErrorCode::unsupported);
  changed(
      base, [](Draft& d) { d.metadata.erase("2.1.1"); }, "its metadata lacks");
  changed(
      base, [](Draft& d) { d.metadata["2.1.0"] = d.metadata["2.2.0"]; }, "twice");
  changed(
      base, [](Draft& d) { d.metadata["2.1.1"] = "string"; }, "does not say that offset ('0.2') is a number");
  changed(
      base, [](Draft& d) { d.metadata["2.6.0"] = "7.7", d.metadata["2.6.1"] = "scalar"; },
      "names '7.7', which no layer has");
  // Numbers.
  changed(
      base, [](Draft& d) { d.tensors.erase("0.2"); }, "layer 0 (KVCache) has no tensor '0.2'");
  changed(
      base, [](Draft& d) { d.number("0.2", -1); }, "offset is -1");
  changed(
      base, [](Draft& d) { d.number("0.2", 13); }, "offset 13 lies beyond its 12 tokens");
  changed(
      base, [](Draft& d) { d.number("0.2", 8); }, "layer 1 has 9 tokens and layer 0 has 8");
  changed(
      base, [](Draft& d) { d.number("0.2", 0); }, "layer 0 is empty");
  changed(
      base, [](Draft& d) { d.tensors["0.2"].dtype = SafetensorsDtype::f32; },
      "offset ('0.2') is F32 with 0 axes, expected I32");
  changed(
      base, [](Draft& d) { d.tensors["0.2"].shape = {1}; }, "is I32 with 1 axes");
  // Tensors.
  changed(
      base, [](Draft& d) { d.tensors.erase("0.1"); }, "layer 0 (KVCache) has no tensor '0.1'");
  changed(
      base,
      [](Draft& d) {
        d.tensors["0.0"].shape = {2, 1, 12, 2};
      },
      "layer 0 holds 2 sequences", ErrorCode::unsupported);
  changed(
      base,
      [](Draft& d) {
        d.tensors["0.0"].shape = {1, 2, 24};
      },
      "shape [1, 2, 24], expected [1, heads, tokens, channels]");
  changed(
      base,
      [](Draft& d) {
        d.tensors["0.0"].shape = {1, 1, 24, 2};
      },
      "'0.1' has 2 heads and 12 tokens, and '0.0' has 1 and 24");
  changed(
      base,
      [](Draft& d) {
        d.tensors["0.0"].shape = {1, 2, 0, 2}, d.tensors["0.0"].bytes.clear();
      },
      "which is not possible");
  changed(
      base, [](Draft& d) { d.tensors["0.0"].dtype = SafetensorsDtype::i32; },
      "'0.0' is I32, expected F32, F16 or BF16");
  changed(
      base, [](Draft& d) { d.number("0.3", 1); }, "tensor '0.3' belongs to none");
  changed(
      base, [](Draft& d) { d.metadata["2.6.0"] = "0.0", d.metadata["2.6.1"] = "none"; }, "layer 0 is empty");
  changed(
      base, [](Draft& d) { d.metadata["2.6.0"] = "0.0", d.metadata["2.6.1"] = "string"; },
      "'0.0' is a string in place of keys");
  // Quantized ones.
  changed(
      packed, [](Draft& d) { d.number("0.4", 7); }, "affine with 7 bits is not offered");
  changed(
      packed, [](Draft& d) { d.number("0.3", 0); }, "affine with groups of 0 is not offered");
  changed(
      packed, [](Draft& d) { d.number("0.3", 64); },
      "8 words, 2 scales and 2 biases a token are not what 4 bits in groups of 64 need");
  changed(
      packed, [](Draft& d) { d.number("0.4", 8); }, "are not what 8 bits in groups of 32 need");
  changed(
      packed, [](Draft& d) { d.tensors["0.0.0"].dtype = SafetensorsDtype::i32; },
      "'0.0.0' is I32, expected U32");
  changed(
      packed, [](Draft& d) { d.tensors.erase("0.1.2"); }, "has no tensor '0.1.2'");
  changed(
      packed, [](Draft& d) { d.floats("0.1.1", 1, 5, 2, [](auto, auto, auto) { return 1.0f; }); },
      "'0.1.1' has 1 heads and 5 tokens");
  changed(
      packed, [](Draft& d) { d.tensors["0.0.2"].dtype = SafetensorsDtype::i32; }, "are F32 and I32");
  changed(
      packed, [](Draft& d) { d.number("0.2", 7); }, "offset 7 lies beyond its 6 tokens");
}

// The form before 0.32: numbers as text, only live columns.
TEST(MlxCacheFile, TheOlderFormIsRead) {
  Draft draft;
  add_plain(draft, 0, 0, 9);
  add_ring(draft, 1, 0, 0, 0, 0, {8, 5, 6, 7});
  for (const char* number : {"0.2", "1.2", "1.3", "1.4", "1.5"}) draft.tensors.erase(number);
  draft.metadata = {{"0.0", ""},    {"0.1.0", "0"},   {"0.1.1", "4"},     {"0.1.2", "9"},
                    {"0.1.3", "1"}, {"1.model", "m"}, {"2.0", "KVCache"}, {"2.1", "RotatingKVCache"}};
  const Folder at;
  const MlxCacheFile file = MlxCacheFile::open(draft.write(at("x.safetensors")));
  EXPECT_EQ(file.form(), MlxForm::before_0_32);
  EXPECT_EQ(file.offset(), 9);
  ASSERT_EQ(file.metadata().size(), 1u);
  EXPECT_EQ(file.metadata()[0], (std::pair<std::string, std::string>{"model", "m"}));
  expect_positions(file, 0, counting(0, 9));
  expect_positions(file, 1, counting(5, 4));
  const auto changed = [&](const std::function<void(Draft&)>& change, std::string_view reason) {
    Draft copy = draft;
    change(copy);
    expect_refused(copy, reason);
  };
  changed([](Draft& d) { d.metadata.erase("0.1.2"); }, "its metadata lacks '0.1.2', the offset of layer 1");
  changed([](Draft& d) { d.metadata["0.1.2"] = "NaN"; },
          "layer 1: offset is 'NaN', which is no whole number");
  changed([](Draft& d) { d.metadata["0.1.2"] = "-9"; }, "which is no whole number");
  changed([](Draft& d) { d.metadata["0.1.2"] = "99999999999"; }, "which is no whole number");
  changed([](Draft& d) { d.metadata["0.1.2"] = "9 "; }, "which is no whole number");
  changed([](Draft& d) { d.metadata["0.1.2"] = "10"; }, "layer 1 has 10 tokens and layer 0 has 9");
}

// Cut or flipped, a file is refused or read: nothing else (the fuzzer goes on from here).
TEST(MlxCacheFile, EveryPrefixOfAFileIsRefused) {
  const Folder at;
  const fs::path path = plain_and_ring().write(at("x.safetensors"));
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (size_t length = 0; length < whole.size(); length += 1 + length / 64) {
    std::ofstream(at("cut.safetensors"), std::ios::binary | std::ios::trunc) << whole.substr(0, length);
    EXPECT_THROW(MlxCacheFile::open(at("cut.safetensors")), Error) << length;
  }
}

struct Fixture : StoreFixture {
  Fixture() : StoreFixture({.page = 4, .window = 4}) {}
  Folder at;
  MlxCacheFile file(const Draft& draft) { return MlxCacheFile::open(draft.write(at("x.safetensors"))); }
  std::string refused(const Draft& draft, ErrorCode code = ErrorCode::invalid_input) {
    try {
      (void)import_mlx_cache(cache, file(draft));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_EQ(cache.used_bytes(), 0u);
      return error.what();
    }
    return {};
  }
};

void expect_refusal(const std::string& text, std::string_view reason) {
  EXPECT_NE(text.find(reason), std::string::npos) << "'" << text << "' does not say '" << reason << "'";
}

TEST(MlxImport, PutsEveryElementInItsPlace) {
  Fixture f;
  const Sequence row = import_mlx_cache(f.cache, f.file(plain_and_ring()));
  EXPECT_EQ(row.offset(), 9);
  EXPECT_EQ(row.origin().engine, "mlx-lm");
  EXPECT_EQ(row.origin().source, "x.safetensors, mlx-lm from 0.32 on, model somebody/something");
  EXPECT_EQ(row.first_stored(0), 0);
  EXPECT_EQ(row.first_stored(1), 5);
  // Canonical bytes of a token: keys, then values, each head by head.
  for (const int layer : {0, 1}) {
    const int32_t first = layer == 0 ? 0 : 5, heads = layer == 0 ? 2 : 1, width_v = layer == 0 ? 3 : 2;
    const std::vector<std::byte> bytes = row.bytes(static_cast<size_t>(layer), first, 9 - first);
    size_t at = 0;
    for (int32_t p = first; p < 9; ++p)
      for (const int plane : {0, 1})
        for (int h = 0; h < heads; ++h)
          for (int d = 0; d < (plane == 0 ? 2 : width_v); ++d)
            EXPECT_EQ(value_at(bytes, at++), element(layer, h, p, d) + (plane == 1 ? 0.5f : 0.0f))
                << "layer " << layer << " position " << p;
    EXPECT_EQ(at * sizeof(float), bytes.size());
  }
}

TEST(MlxImport, WhatIsNotTheModelsIsRefused) {
  Fixture f;
  const auto with = [](const std::function<void(Draft&)>& change) {
    Draft draft = plain_and_ring();
    change(draft);
    draft.metadata.erase("2.0");
    std::erase_if(draft.metadata, [](const auto& entry) { return entry.first.starts_with("2."); });
    draft.list_numbers();
    return draft;
  };
  expect_refusal(f.refused(with([](Draft& d) { add_plain(d, 2, 9, 9); })), "3 cached layers but model has 2");
  expect_refusal(f.refused(with([](Draft& d) { add_plain(d, 0, 9, 9, 3); })),
                 "layer 0 has 3 heads of 2 and 3 channels (keys and values), and the model has 2 of 2 and 3");
  expect_refusal(f.refused(with([](Draft& d) { add_plain(d, 0, 9, 9, 2, 4); })),
                 "layer 0 has 2 heads of 2 and 4 channels");
  // A ring in place of a layer that sees everything, and the other way round, once something was left behind.
  expect_refusal(f.refused(with([](Draft& d) {
    d.tensors.clear();
    add_plain(d, 0, 9, 9);
    add_plain(d, 1, 9, 9, 1, 2);
  })),
                 "layer 1 has seen 9 tokens without a window, and has a window of 4 here");
  expect_refusal(f.refused(with([](Draft& d) {
    add_ring(d, 1, 9, 0, 5, 4, {5, 6, 7, 8, 4});
  })),
                 "in a ring of 5 that keeps the first 0, and has a window of 4 here");
  expect_refusal(f.refused(with([](Draft& d) {
    add_ring(d, 1, 9, 1, 4, 3, {0, 7, 8, 6});
  })),
                 "in a ring of 4 that keeps the first 1");
  Fixture wide;
  // Fewer tokens than either window: nothing was left behind, so the kind of cache does not matter.
  EXPECT_EQ(wide.refused(with([](Draft& d) {
    d.tensors.clear();
    add_plain(d, 0, 4, 6);
    add_plain(d, 1, 4, 4, 1, 2);
  })),
            "");
  EXPECT_EQ(wide.refused(with([](Draft& d) {
    add_plain(d, 0, 3, 6);
    add_ring(d, 1, 3, 2, 9, 3, {0, 1, 2});
  })),
            "");
  // Values.
  const auto poisoned = [&](float value) {
    return with([value](Draft& d) {
      std::memcpy(d.tensors["1.1"].bytes.data() + 2 * sizeof value, &value, sizeof value);
    });
  };
  expect_refusal(f.refused(poisoned(std::nanf("")), ErrorCode::corrupt_file),
                 "layer 1, token 5: a value is no finite number");
  expect_refusal(f.refused(poisoned(std::numeric_limits<float>::infinity()), ErrorCode::corrupt_file),
                 "no finite number");
}

// mlx-lm's caches have keys and values, and nothing beside them: neither latents nor attachments go through.
TEST(MlxExchange, LatentsAndAttachmentsAreRefused) {
  StoreFixture f({.page = 4, .mla = {{.dsa_dim = 0, .max_tokens = 99}}});
  const Folder at;
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  expect_refusal(refused([&] {
                   import_mlx_cache(f.cache, MlxCacheFile::open(plain_and_ring().write(at("x.safetensors"))));
                 }),
                 "layer 1 stores MLA latents");
  EXPECT_EQ(f.cache.used_bytes(), 0u);
  const auto exported = [&](testing::TestRow& row) {
    KvkHeader header;
    header.tokens = row.tokens;
    write_kvk(at("a.kvk"), header, row.sequence);
    return refused([&] {
      export_mlx_cache(KvkFile::open(at("a.kvk")), at("out.safetensors"), MlxForm::from_0_32, false);
    });
  };
  testing::TestRow row = f.computed(testing::counting(0, 5));
  expect_refusal(exported(row), "layer 1: MLA latents are not exported");
  StoreFixture plain({.page = 4});
  testing::TestRow attached = plain.computed(testing::counting(0, 5));
  attached.sequence.attach({{.schema = "mtp-cache-1", .metadata = {}, .tensors = {}}});
  expect_refusal(exported(attached), "it has attachments (mtp-cache-1)");
  EXPECT_FALSE(std::filesystem::exists(at("out.safetensors")));
}

// The pool has no room: nothing stays behind.
TEST(MlxImport, LeavesNothingWithoutRoom) {
  CacheShape shape = testing::make_shape({.page = 4, .window = 4});
  KvCache small(shape, testing::TestLayout::factory(), testing::pages_each(shape, 2), nullptr, true);
  const Folder at;
  EXPECT_THROW(import_mlx_cache(small, MlxCacheFile::open(plain_and_ring().write(at("x.safetensors")))),
               KvPoolExhausted);
  EXPECT_EQ(small.used_bytes(), 0u);
}

TEST(MlxExport, ComesBackAsItWas) {
  for (const MlxForm form : {MlxForm::before_0_32, MlxForm::from_0_32}) {
    Fixture f;
    DiskStore store(f.options());
    const Sequence row = import_mlx_cache(f.cache, f.file(plain_and_ring()));
    store.save("x", "", counting(1, 9), row, "");
    const KvkFile entry = KvkFile::open(find_entry(f.dir, "x"), true);
    EXPECT_EQ(entry.header().origin, row.origin());
    export_mlx_cache(entry, f.at("out.safetensors"), form, true);
    const MlxCacheFile back = MlxCacheFile::open(f.at("out.safetensors"));
    EXPECT_EQ(back.form(), form);
    EXPECT_EQ(back.layers()[1].window, 4);
    EXPECT_EQ(back.layers()[1].next, 4);
    EXPECT_EQ(back.layers()[1].columns, 4);
    expect_positions(back, 0, counting(0, 9));
    expect_positions(back, 1, counting(5, 4));
    const Sequence again = import_mlx_cache(f.cache, back);
    EXPECT_EQ(again.bytes(0, 0, 9), row.bytes(0, 0, 9));
    EXPECT_EQ(again.bytes(1, 5, 4), row.bytes(1, 5, 4));
    ASSERT_EQ(back.metadata().size(), 3u);
    EXPECT_EQ(back.metadata()[2].second, "[1,2,3,4,5,6,7,8,9]");
    // mlx-lm that runs the family without windows would see what they have left.
    try {
      export_mlx_cache(entry, f.at("no.safetensors"), form, false);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      expect_refusal(error.what(),
                     "layer 1: mlx-lm runs this family without its window of 4, which 9 tokens have left");
    }
    EXPECT_FALSE(fs::exists(f.at("no.safetensors")));
  }
}

// One token taken back: the oldest that the window had is gone. Its column is one that is written next and
// that no query sees before; the others stay where mlx-lm expects them.
TEST(MlxExport, ARowWhoseLastTokenWasTakenBack) {
  Fixture f;
  DiskStore store(f.options());
  Sequence row = import_mlx_cache(f.cache, f.file(plain_and_ring()));
  row.truncate(8);
  store.save("x", "", counting(1, 8), row, "");
  export_mlx_cache(KvkFile::open(find_entry(f.dir, "x"), true), f.at("out.safetensors"), MlxForm::from_0_32,
                   true);
  const MlxCacheFile back = MlxCacheFile::open(f.at("out.safetensors"));
  EXPECT_EQ(back.layers()[1].columns, 4);
  EXPECT_EQ(back.layers()[1].next, 4);
  EXPECT_EQ(back.offset(), 8);
  expect_positions(back, 1, counting(5, 3));
  for (size_t d = 0; d < 2; ++d) EXPECT_EQ(value_at(back.row(1, 0, 0, 4), d), 0);
}

// Conversations of another engine's keys and values: found by name, in nobody's way, and never by their
// tokens.
TEST(ForeignEntries, AreFoundByNameAlone) {
  Fixture f;
  DiskStore store(f.options());
  const std::vector<int32_t> tokens = counting(1, 9);
  store.save("theirs", "", tokens, import_mlx_cache(f.cache, f.file(plain_and_ring())), "{}");
  EXPECT_FALSE(store.find("", counting(1, 20)));
  EXPECT_FALSE(store.serves("", tokens));
  EXPECT_TRUE(store.entries().empty());
  EXPECT_TRUE(store.holds("theirs", ""));
  EXPECT_FALSE(store.holds("theirs", "adapter"));
  // Also by a store that opens later, and by one that may not look for prefixes there either.
  DiskStore later(f.options());
  EXPECT_FALSE(later.find("", counting(1, 20)));
  EXPECT_TRUE(f.warnings.empty());
  const DiskStore::Conversation loaded = later.load("theirs", "", f.cache);
  EXPECT_EQ(loaded.tokens, tokens);
  EXPECT_EQ(loaded.sequence.origin().engine, "mlx-lm");
  ASSERT_EQ(f.warnings.size(), 1u);
  expect_refusal(f.warnings[0], "'theirs': its keys and values were computed by mlx-lm (x.safetensors, ");
  // Forks have the origin, and none of them can be a prefix of the store's or of the tree's.
  Sequence fork = loaded.sequence.fork(6 + 3);
  EXPECT_EQ(fork.origin().engine, "mlx-lm");
  EXPECT_THROW(later.put("", tokens, fork), Error);
  PrefixTree tree(f.cache, size_t{1} << 30);
  EXPECT_FALSE(tree.put("key", tokens, fork));
  tree.publish("key", tokens, fork);
  EXPECT_EQ(tree.stats().nodes, 0u);
  EXPECT_EQ(tree.peek("key", counting(1, 20)), 0);
  EXPECT_FALSE(f.cache.create().origin());
  // Their identity is nobody's own: the header says whose they are, and in which folder.
  const auto files = list_store(f.dir);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].error, "");
  EXPECT_EQ(files[0].header.identity.numerics_id, "n+mlx-lm");
  EXPECT_EQ(files[0].path.parent_path().parent_path(),
            model_folder(f.dir, identity_of(testing::test_identity(), {.engine = "mlx-lm"})));
  EXPECT_NE(files[0].path.parent_path().parent_path(), model_folder(f.dir, testing::test_identity()));
  EXPECT_TRUE(verify_store(f.dir)[0].error.empty());
}

TEST(ForeignEntries, ShareTheirNamesWithTheOthers) {
  Fixture f;
  DiskStore store(f.options());
  const std::vector<int32_t> tokens = counting(1, 9), own_tokens = counting(50, 7);
  const Sequence theirs = import_mlx_cache(f.cache, f.file(plain_and_ring()));
  testing::TestRow own = f.computed(own_tokens);
  store.save("x", "", tokens, theirs, "");
  store.save("x", "", own_tokens, own.sequence, "");
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(store.load("x", "", f.cache).tokens, own_tokens);
  EXPECT_TRUE(f.warnings.empty());
  store.save("x", "", tokens, theirs, "");
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(store.load("x", "", f.cache).tokens, tokens);
  // As files: `kv export`, `kv rm`, `kv import`.
  const fs::path exported = f.at("x.kvk");
  export_entry(find_entry(f.dir, "x"), exported);
  EXPECT_EQ(read_kvk_header(exported).origin, theirs.origin());
  EXPECT_TRUE(store.remove_named("x", ""));
  EXPECT_EQ(f.files(), 0u);
  EXPECT_FALSE(store.remove_named("x", ""));
  store.save("x", "", own_tokens, own.sequence, "");
  EXPECT_THROW(import_entry(exported, f.dir), Error);  // another conversation has the name
  EXPECT_TRUE(store.remove_named("x", ""));
  import_entry(exported, f.dir, 4);
  import_entry(exported, f.dir, 4);  // the same again takes its place
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(store.load("x", "", f.cache).sequence.origin(), theirs.origin());
  const fs::path own_file = f.at("own.kvk");
  store.save("y", "", tokens, f.computed(tokens).sequence, "");
  export_entry(find_entry(f.dir, "y"), own_file);
  EXPECT_FALSE(read_kvk_header(own_file).origin);
}

}  // namespace
}  // namespace kvasir::kv
