// What GGUF metadata means, key by key (spec: formats.md 4.8; llama.cpp's reader where the format document is
// silent).
#include "models/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/test_folder.h"
#include "formats/gguf_writer.h"

namespace kvasir::models {
namespace {

using formats::GgufWriter;

// A file of metadata alone: the configuration needs no tensors.
ModelConfig parse(const std::string& architecture, const std::function<void(GgufWriter&)>& more,
                  uint32_t layers = 4, std::string_view without = "") {
  const TestFolder folder("gguf_config");
  GgufWriter writer;
  const std::string a = architecture + ".";
  writer.set_string("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair{"block_count", layers},
                                   {"context_length", 256u},
                                   {"embedding_length", 64u},
                                   {"feed_forward_length", 96u},
                                   {"attention.head_count", 4u},
                                   {"vocab_size", 48u}})
    writer.set_u32(a + key, value);
  for (const char* kind : {"layer_norm_rms_epsilon", "layer_norm_epsilon"})
    if (kind != without) writer.set_f32(a + "attention." + kind, 1e-5f);
  more(writer);
  writer.write(folder.path() / "m.gguf");
  return parse_gguf_config(formats::GgufFile::open(folder.path() / "m.gguf"));
}

RopeConfig rope_of(const std::function<void(GgufWriter&)>& more, const std::string& architecture = "llama") {
  return parse(architecture, more).ropes.front();
}

void refused(const std::string& architecture, const std::function<void(GgufWriter&)>& more,
             const std::string& reason, ErrorCode code = ErrorCode::unsupported) {
  try {
    parse(architecture, more);
    ADD_FAILURE() << "accepted: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), testing::HasSubstr(reason));
  }
}

void yarn(GgufWriter& w, const std::string& a = "llama.") {
  w.set_string(a + "rope.scaling.type", "yarn");
  w.set_f32(a + "rope.scaling.factor", 4);
  w.set_u32(a + "rope.scaling.original_context_length", 64);
}

TEST(GgufConfig, DefaultsAreTheFormats) {
  const ModelConfig qwen3 = parse("qwen3", [](GgufWriter&) {});
  EXPECT_EQ(qwen3.ropes.front().theta, 10000);
  EXPECT_EQ(qwen3.kv_heads, 4);
  EXPECT_EQ(parse("gemma3", [](GgufWriter&) {}).kv_heads, 4);
  EXPECT_EQ(parse(
                "gemma3", [](GgufWriter&) {}, 62)
                .attention_scale,
            0.25);  // the 27B model's
}

TEST(GgufConfig, ScalingIsLinearUnlessItSaysOtherwise) {
  auto factor = [](GgufWriter& w) { w.set_f32("llama.rope.scaling.factor", 4); };
  EXPECT_EQ(rope_of(factor).kind, RopeKind::linear);
  EXPECT_EQ(rope_of(factor).factor, 4);
  EXPECT_EQ(rope_of([](GgufWriter& w) { w.set_f32("llama.rope.scale_linear", 3); }).factor, 3);
  EXPECT_EQ(rope_of([&](GgufWriter& w) {
              factor(w);
              w.set_string("llama.rope.scaling.type", "none");
            }).kind,
            RopeKind::standard);
  EXPECT_EQ(rope_of([](GgufWriter& w) { w.set_string("llama.rope.scaling.type", "linear"); }).kind,
            RopeKind::standard);
  for (const char* a : {"gemma", "gemma2", "glm4", "stablelm", "starcoder2"}) {
    const RopeConfig rope =
        rope_of([&](GgufWriter& w) { w.set_f32(std::string(a) + ".rope.scaling.factor", 4); }, a);
    EXPECT_EQ(rope.kind, RopeKind::linear) << a;
    EXPECT_EQ(rope.factor, 4) << a;
  }
  refused(
      "llama", [](GgufWriter& w) { w.set_string("llama.rope.scaling.type", "yarn"); },
      "llama.rope.scaling.factor is missing or 0", ErrorCode::corrupt_file);
}

TEST(GgufConfig, MagnitudesOfYarn) {
  const double own = 1 + 0.1 * std::log(4.0);
  EXPECT_DOUBLE_EQ(rope_of([](GgufWriter& w) { yarn(w); }).attention_factor, own);
  // attn_factor multiplies the type's own.
  for (const float given : {1.0f, 0.5f})
    EXPECT_DOUBLE_EQ(rope_of([&](GgufWriter& w) {
                       yarn(w);
                       w.set_f32("llama.rope.scaling.attn_factor", given);
                     }).attention_factor,
                     own * static_cast<double>(given));
  // yarn_log_multiplier is mscale_all_dim beside an mscale of 1.
  for (const float all : {0.0f, 0.5f, 1.0f})
    EXPECT_DOUBLE_EQ(rope_of(
                         [&](GgufWriter& w) {
                           yarn(w, "mistral3.");
                           w.set_f32("mistral3.rope.scaling.yarn_log_multiplier", all);
                         },
                         "mistral3")
                         .attention_factor,
                     own / (1 + 0.1 * static_cast<double>(all) * std::log(4.0)));
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity()})
    EXPECT_THROW(rope_of([&](GgufWriter& w) { w.set_f32("llama.rope.scaling.attn_factor", bad); }), Error);
  refused(
      "llama",
      [](GgufWriter& w) {
        yarn(w);
        w.set_f32("llama.rope.scaling.yarn_ext_factor", 0.5);
      },
      "llama.rope.scaling.yarn_ext_factor is 0.5");
}

// llama.cpp (llama-model.cpp) refuses a llama that does not rotate whole heads; of the other architectures
// the converter writes less for the families below only. Without the key it is the whole head
// (formats.md 4.8).
TEST(GgufConfig, RotatedElements) {
  auto rotated = [](const std::string& a, uint32_t dims, uint32_t head_dim) {
    return [=](GgufWriter& w) {
      w.set_u32(a + ".attention.key_length", head_dim);
      w.set_u32(a + ".attention.value_length", head_dim);
      if (dims != 1) w.set_u32(a + ".rope.dimension_count", dims);
    };
  };
  for (const char* a : {"llama", "qwen2", "qwen3", "gemma2", "smollm3", "exaone"}) {
    EXPECT_EQ(parse(a, rotated(a, 16, 16)).ropes.front().dims, 16) << a;
    for (const uint32_t dims : {0u, 8u, 15u, 18u, 32u})
      refused(a, rotated(a, dims, 16),
              fmt::format("{}.rope.dimension_count is {}, expected the 16 elements of a head", a, dims),
              ErrorCode::corrupt_file);
  }
  for (const char* a : {"phi2", "phi3", "glm4", "nemotron"}) {
    EXPECT_EQ(parse(a, rotated(a, 1, 16)).ropes.front().dims, 16) << a;  // not written
    for (const auto& [dims, head] : {std::pair{8u, 16u}, {16u, 16u}, {30u, 44u}, {26u, 46u}, {96u, 128u}})
      EXPECT_EQ(parse(a, rotated(a, dims, head)).ropes.front().dims, dims) << a;
    for (const uint32_t dims : {0u, 7u, 18u})
      refused(a, rotated(a, dims, 16),
              fmt::format("{}.rope.dimension_count is {}, expected an even number from 2 to the 16", a, dims),
              ErrorCode::corrupt_file);
  }
  refused(
      "gemma3",
      [](GgufWriter& w) {
        w.set_u32("gemma3.rope.dimension_count", 16);
        w.set_u32("gemma3.rope.dimension_count_swa", 8);
      },
      "gemma3.rope.dimension_count_swa is 8, expected 16", ErrorCode::corrupt_file);
}

TEST(GgufConfig, TheVocabularyIsTheRowsOfTheTable) {
  auto table = [](int64_t rows) {
    return [rows](GgufWriter& w) {
      w.add_tensor("token_embd.weight", formats::StorageFormat::f32, {64, rows},
                   formats::produce_bytes(std::vector<std::byte>(static_cast<size_t>(rows) * 64 * 4)));
    };
  };
  EXPECT_EQ(parse("llama", table(48)).vocab, 48);
  for (const char* a : {"llama", "qwen3"})
    for (const int64_t rows : {47, 49})
      refused(a, table(rows),
              fmt::format("{}.vocab_size is 48, expected the {} rows of token_embd.weight", a, rows),
              ErrorCode::corrupt_file);
  EXPECT_EQ(parse("gemma3", table(47)).vocab, 47);  // its converter cuts rows past the tokens
  refused("gemma3", table(49), "gemma3.vocab_size is 48, expected the 49 rows", ErrorCode::corrupt_file);
}

TEST(GgufConfig, QueriesGrowWithThePositionFromTheOriginalContext) {
  auto beta = [](GgufWriter& w) { w.set_f32("mistral3.attention.temperature_scale", 0.5); };
  EXPECT_EQ(parse("mistral3", beta).query_scale_original, 256);
  const ModelConfig m = parse("mistral3", [&](GgufWriter& w) {
    beta(w);
    w.set_u32("mistral3.rope.scaling.original_context_length", 16);
  });
  EXPECT_EQ(m.query_scale_beta, 0.5);
  EXPECT_EQ(m.query_scale_original, 16);
  EXPECT_EQ(m.ropes.front().kind, RopeKind::standard);
}

// formats.md 4.8: required for the norm kind.
TEST(GgufConfig, TheEpsilonOfTheNormKindIsRequired) {
  const auto nothing = [](GgufWriter&) {};
  auto message = [&](const std::string& architecture, std::string_view without) -> std::string {
    try {
      parse(architecture, nothing, 4, without);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      return error.what();
    }
    return "accepted";
  };
  for (const char* a : {"llama", "gemma", "gemma2", "gemma3", "phi3", "qwen2", "exaone4", "minicpm"}) {
    EXPECT_THAT(message(a, "layer_norm_rms_epsilon"),
                testing::HasSubstr(std::string(a) + ".attention.layer_norm_rms_epsilon"));
    EXPECT_EQ(message(a, "layer_norm_epsilon"), "accepted") << a;
  }
  for (const char* a : {"command-r", "cohere2", "nemotron", "olmo", "phi2", "stablelm", "starcoder2"}) {
    EXPECT_THAT(message(a, "layer_norm_epsilon"),
                testing::HasSubstr(std::string(a) + ".attention.layer_norm_epsilon"));
    EXPECT_EQ(message(a, "layer_norm_rms_epsilon"), "accepted") << a;
  }
  const ModelConfig olmo = parse(
      "olmo", [](GgufWriter& w) { w.set_f32("olmo.attention.layer_norm_epsilon", 1e-3f); }, 4,
      "layer_norm_epsilon");
  EXPECT_EQ(olmo.epsilon, 1e-3f);
}

// Messages call a field by its key in the file, not by config.json's name for it.
TEST(GgufConfig, MessagesHaveTheFilesNames) {
  const auto corrupt = ErrorCode::corrupt_file;
  refused(
      "llama", [](GgufWriter& w) { w.set_u32("llama.attention.head_count_kv", 3); },
      "4 attention heads cannot be shared by 3 key-value heads", corrupt);
  refused(
      "llama", [](GgufWriter& w) { w.set_f32("llama.rope.freq_base", -1); },
      "llama.rope.freq_base is -1.0, expected a number above 0", corrupt);
  refused(
      "llama", [](GgufWriter& w) { w.set_u32("llama.attention.shared_kv_layers", 4); },
      "llama.attention.shared_kv_layers is 4, expected less than the 4 layers that llama.block_count",
      corrupt);
  refused(
      "granite", [](GgufWriter&) {}, "granite.attention.scale is missing, expected a finite number", corrupt);
  refused(
      "llama",
      [](GgufWriter& w) {
        yarn(w);
        w.set_f32("llama.rope.scaling.yarn_beta_fast", -1);
      },
      "llama.rope.scaling.yarn_beta_fast is -1", corrupt);
}

TEST(GgufConfig, WhatIsNotHonouredIsRefused) {
  refused(
      "llama", [](GgufWriter& w) { w.set_string("general.type", "adapter"); }, "general.type is adapter");
  refused(
      "llama", [](GgufWriter& w) { w.set_bool("llama.attention.causal", false); },
      "llama.attention.causal is false");
  refused(
      "llama", [](GgufWriter& w) { w.set_u32("llama.expert_count", 8); },
      "llama.expert_count is 8: experts of llama models are not supported");
  auto moe = [](GgufWriter& w) {
    w.set_u32("qwen3moe.expert_count", 8);
    w.set_u32("qwen3moe.expert_used_count", 2);
    w.set_u32("qwen3moe.expert_feed_forward_length", 32);
  };
  refused(
      "qwen3moe",
      [&](GgufWriter& w) {
        moe(w);
        w.set_f32("qwen3moe.expert_weights_scale", 2.5);
      },
      "qwen3moe.expert_weights_scale is 2.5");
  refused(
      "qwen3moe",
      [&](GgufWriter& w) {
        moe(w);
        w.set_u32("qwen3moe.expert_gating_func", 2);
      },
      "qwen3moe.expert_gating_func is 2");
  EXPECT_EQ(parse("qwen3moe",
                  [&](GgufWriter& w) {
                    moe(w);
                    w.set_string("general.type", "model");
                    w.set_bool("qwen3moe.attention.causal", true);
                    w.set_f32("qwen3moe.expert_weights_scale", 1);
                    w.set_u32("qwen3moe.expert_gating_func", 1);
                  })
                .experts.count,
            8);
}

TEST(GgufConfig, XieluScalarsAreLists) {
  auto lists = [](size_t count) {
    return [count](GgufWriter& w) {
      w.set_f32s("xielu.alpha_p", std::vector<float>(count, 0.75f));
      w.set_f32s("xielu.alpha_n", std::vector<float>(count, 0.25f));
      w.set_f32("xielu.beta", 0.5f);  // one for all
      w.set_f32("xielu.eps", -1e-6f);
    };
  };
  const ModelConfig m = parse("apertus", lists(4));
  ASSERT_EQ(m.xielu.size(), 4u);
  EXPECT_EQ(m.xielu[3].alpha_p, 0.75f);
  EXPECT_EQ(m.xielu[3].beta, 0.5f);
  EXPECT_THROW(parse("apertus", lists(3)), Error);
  EXPECT_THROW(parse("apertus", [](GgufWriter&) {}), Error);
}

}  // namespace
}  // namespace kvasir::models
