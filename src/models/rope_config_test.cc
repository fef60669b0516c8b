#include "models/rope_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace kvasir::models {
namespace {

using nlohmann::json;

RopeConfig parse(const json& config, int64_t head_dim, const RopeDefaults& defaults = {},
                 const std::string& kind = "full_attention") {
  return parse_rope(ConfigFields(config, "config.json"), kind, head_dim, defaults);
}

void expect_relative(double got, double want) {
  EXPECT_NEAR(got / want, 1.0, 1e-6) << got << " for " << want;
}

// The figures below were evaluated in f64 from the published rules, independently of this code.
TEST(RopeConfig, Llama3) {
  const json config = {{"rope_theta", 5e5},
                       {"rope_scaling",
                        {{"rope_type", "llama3"},
                         {"factor", 32},
                         {"low_freq_factor", 1},
                         {"high_freq_factor", 4},
                         {"original_max_position_embeddings", 8192}}}};
  const std::vector<double> f = rope_divisors(parse(config, 64), 131072);
  ASSERT_EQ(f.size(), 32u);
  expect_relative(f[0], 1);
  expect_relative(f[1], 1.506929);
  expect_relative(f[14], 311.386211);
  expect_relative(f[15], 774.864674);
  expect_relative(f[16], 2327.980858);
  expect_relative(f[17], 10300.477492);
  expect_relative(f[18], 51383.135916);
  expect_relative(f[31], 10617619.803);
}

TEST(RopeConfig, Yarn) {
  const json config = {
      {"rope_theta", 1e4},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}}}};
  const RopeConfig rope = parse(config, 128);
  EXPECT_NEAR(rope.attention_factor, 1.3688879454113936, 1e-15);
  const std::vector<double> f = rope_divisors(rope, 131072);
  expect_relative(f[20], 17.782794);
  expect_relative(f[30], 119.983073);
  expect_relative(f[40], 1264.911064);
  expect_relative(f[63], 346385.729);
  const json equal = {{"rope_scaling",
                       {{"type", "yarn"},
                        {"factor", 16},
                        {"mscale", 1},
                        {"mscale_all_dim", 1},
                        {"original_max_position_embeddings", 4096}}}};
  EXPECT_EQ(parse(equal, 128).attention_factor, 1.0);
}

TEST(RopeConfig, LongropeChoosesItsListByTheContextInForce) {
  json config = {
      {"max_position_embeddings", 131072},
      {"original_max_position_embeddings", 4096},
      {"rope_scaling", {{"type", "su"}, {"short_factor", {1.0, 2.0}}, {"long_factor", {3.0, 4.0}}}}};
  RopeDefaults phi3;
  phi3.phi3_names = true;
  const RopeConfig rope = parse(config, 4, phi3);
  EXPECT_NEAR(rope.attention_factor, 1.1902380714238083, 1e-15);
  expect_relative(rope_divisors(rope, 4096)[1], 2.0 * 100);
  expect_relative(rope_divisors(rope, 4097)[1], 4.0 * 100);
  EXPECT_EQ(rope_regime(rope, 4096), "longrope:short");
  EXPECT_EQ(rope_regime(rope, 131072), "longrope:long");
  config["rope_scaling"].erase("long_factor");
  EXPECT_THROW(parse(config, 4, phi3), Error);
  config["rope_scaling"]["long_factor"] = {1.0, 2.0, 3.0};
  EXPECT_THROW(parse(config, 4, phi3), Error);
}

TEST(RopeConfig, DynamicLinearAlphaProportional) {
  const json dynamic = {{"max_position_embeddings", 4096},
                        {"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}};
  const RopeConfig rope = parse(dynamic, 64);
  // b' = 52664.43433636452: f_1 = b'^(2/64)
  expect_relative(rope_divisors(rope, 8192)[1], std::pow(52664.43433636452, 2.0 / 64));
  expect_relative(rope_divisors(rope, 100)[1], std::pow(1e4, 2.0 / 64));
  EXPECT_EQ(rope_regime(rope, 8192), "dynamic:8192");

  const json linear = {{"rope_theta", 1e4}, {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}};
  expect_relative(rope_divisors(parse(linear, 64), 10)[0], 8);

  const json alpha = {{"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}}}};
  expect_relative(rope_divisors(parse(alpha, 128), 10)[1],
                  std::pow(1e4 * std::pow(1000.0, 128.0 / 126.0), 2.0 / 128));

  const json proportional = {
      {"rope_parameters",
       {{"full_attention",
         {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}}}}};
  const std::vector<double> f = rope_divisors(parse(proportional, 512), 10);
  ASSERT_EQ(f.size(), 256u);
  expect_relative(f[63], std::pow(1e6, 126.0 / 512));
  EXPECT_TRUE(std::isinf(f[64]));
  EXPECT_EQ(rope_table(parse(proportional, 512), 10).inverse_frequency[64], 0.0f);
}

TEST(RopeConfig, OldAndNewFormsOfOneModelAreEqual) {
  const json old_form = {{"rope_theta", 5e5},
                         {"max_position_embeddings", 1024},
                         {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}};
  const json new_form = {{"max_position_embeddings", 1024},
                         {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 5e5}}}};
  EXPECT_EQ(parse(old_form, 64), parse(new_form, 64));
}

TEST(RopeConfig, Refusals) {
  auto message = [](const json& config, int64_t head_dim, const RopeDefaults& defaults = {}) -> std::string {
    try {
      parse(config, head_dim, defaults);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message({{"rope_scaling", {{"type", "spiral"}}}}, 64), testing::HasSubstr("spiral"));
  EXPECT_THAT(message({{"rope_scaling", {{"type", "linear"}}}}, 64), testing::HasSubstr("factor"));
  EXPECT_THAT(message({{"rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 2}}}}, 64),
              testing::HasSubstr("must agree"));
  EXPECT_THAT(message({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                       {"rope_parameters", {{"rope_type", "default"}}}},
                      64),
              testing::HasSubstr("rope_parameters and rope_scaling"));
  RopeDefaults part;
  part.takes_partial = true;
  EXPECT_THAT(message({{"partial_rotary_factor", 0.1}}, 10, part), testing::HasSubstr("even number"));
  RopeDefaults required = part;
  required.partial_required = true;
  EXPECT_THAT(message({{"rope_theta", 1e4}}, 64, required), testing::HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(message({{"rope_theta", -1}}, 64), testing::HasSubstr("rope_theta is -1"));
  EXPECT_THAT(message({{"rope_theta", 0}}, 64), testing::HasSubstr("rope_theta is 0"));
  EXPECT_THAT(message({{"partial_rotary_factor", 1.5}}, 64), testing::HasSubstr("at most 1"));
  EXPECT_THAT(message({{"rope_parameters", {{"partial_rotary_factor", 1.5}}}}, 64),
              testing::HasSubstr("rope_parameters: partial_rotary_factor is 1.5"));
  // Length rules that lack a part, or have one of the wrong length or sign.
  const auto scaled = [&](json scaling, json more = json::object()) {
    more["rope_scaling"] = std::move(scaling);
    more["max_position_embeddings"] = 4096;
    return message(more, 8);
  };
  const json three = {1, 1, 1}, four = {1, 1, 1, 1};
  // transformers 5.24 builds a llama of each of these and refuses it without any of its required fields
  // (KeyError). An absent original limit is the whole one there.
  const json whole[] = {
      {{"rope_type", "linear"}, {"factor", 2}},
      {{"rope_type", "dynamic"}, {"factor", 2}},
      {{"rope_type", "yarn"}, {"factor", 4}},
      {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
      {{"rope_type", "longrope"}, {"short_factor", four}, {"long_factor", four}},
  };
  for (const json& kind : whole) {
    EXPECT_EQ(scaled(kind), "accepted");
    for (const auto& [key, value] : kind.items()) {
      if (key == "rope_type") continue;
      json less = kind;
      less.erase(key);
      EXPECT_THAT(scaled(less), testing::HasSubstr("rope_scaling: " + key + " is missing")) << less;
      // A null is no value, but for YaRN's, which is the ratio of the limits.
      less[key] = nullptr;
      if (kind["rope_type"] != "yarn") {
        EXPECT_THAT(scaled(less), testing::HasSubstr(key + " is missing")) << less;
      }
    }
  }
  EXPECT_EQ(parse({{"max_position_embeddings", 256},
                   {"rope_scaling",
                    {{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 64}}}},
                  8)
                .factor,
            4);
  EXPECT_THAT(scaled({{"type", "longrope"},
                      {"short_factor", four},
                      {"long_factor", three},
                      {"original_max_position_embeddings", 64}}),
              testing::HasSubstr("long_factor has 3 entries, expected 4"));
  EXPECT_THAT(scaled({{"type", "longrope"},
                      {"short_factor", {1, 1, 0, 1}},
                      {"long_factor", four},
                      {"original_max_position_embeddings", 64}}),
              testing::HasSubstr("numbers above 0"));
  EXPECT_THAT(scaled({{"rope_type", "llama3"},
                      {"factor", 8},
                      {"low_freq_factor", 4},
                      {"high_freq_factor", 1},
                      {"original_max_position_embeddings", 64}}),
              testing::HasSubstr("high_freq_factor is 1, expected a number above low_freq_factor"));
  EXPECT_THAT(scaled({{"rope_type", "yarn"}, {"factor", "x"}}), testing::HasSubstr("factor is \"x\""));
  EXPECT_THAT(scaled({{"rope_type", "linear"}, {"factor", -2}}), testing::HasSubstr("factor is -2"));
  EXPECT_THAT(scaled("linear"), testing::HasSubstr("rope_scaling is \"linear\""));
  EXPECT_THAT(message({{"rope_parameters", {{"sliding_attention", {{"rope_type", "default"}}}}}}, 64),
              testing::HasSubstr("full_attention"));
}

}  // namespace
}  // namespace kvasir::models
