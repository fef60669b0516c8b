#include "kv/scheme.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/test_folder.h"
#include "kv/planes.h"

namespace kvasir::kv {
namespace {

using Kind = PlaneCodec::Kind;

std::vector<SchemeLayer> model(int layers, int head_dim = 64, int kv_heads = 3) {
  std::vector<SchemeLayer> list;
  for (int i = 0; i < layers; ++i) {
    SchemeLayer layer;
    layer.geometry = {.layer = i, .kv_heads = kv_heads, .head_dim_k = head_dim, .head_dim_v = head_dim};
    list.push_back(layer);
  }
  return list;
}

SchemeRequest request(std::string spec) {
  SchemeRequest r;
  r.spec = std::move(spec);
  return r;
}

std::string refusal(const SchemeRequest& r, const std::vector<SchemeLayer>& layers, ErrorCode code) {
  try {
    resolve_scheme(r, layers);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << r.spec;
  return {};
}

struct ConfigFolder : TestFolder {
  ConfigFolder() : TestFolder("scheme") {}
  void write(const std::string& name, const std::string& text) const { std::ofstream(path() / name) << text; }
};

// P38.
TEST(Planes, BytesPerTokenOfTheSpec) {
  // kv-cache.md 3: plain H (Dk + Dv) sz; affine b/8 + 4/g bytes an element with 16-bit scales; turbo D (kb +
  // vb) / 8 + 3 D / 16.
  const auto pair_bytes = [](const char* spec, Dtype plain, int d) {
    const CodecPair codec = parse_codec(spec, plain);
    return plane_bytes(codec.k, d) + plane_bytes(codec.v, d);
  };
  EXPECT_EQ(pair_bytes("bf16", Dtype::bf16, 128), 512u);
  EXPECT_EQ(pair_bytes("turbo:8,3", Dtype::bf16, 128), 200u);
  EXPECT_EQ(pair_bytes("affine:8:64", Dtype::bf16, 64), 2 * (64u + 4u));
  EXPECT_EQ(pair_bytes("affine:4:32", Dtype::bf16, 64), 2 * (32u + 8u));
  EXPECT_EQ(pair_bytes("affine:4:32", Dtype::f32, 64), 2 * (32u + 16u));
  EXPECT_EQ(pair_bytes("rot:4", Dtype::bf16, 64), 2 * (32u + 4u));
  EXPECT_EQ(pair_bytes("q8_0", Dtype::bf16, 64), 2 * (64u + 4u));
  EXPECT_EQ(planes(parse_codec("q8_0/rot:q8_0", Dtype::bf16), 64, 128),
            (std::vector<Plane>{
                {"kCodes", "i8", 64}, {"kScales", "f16", 4}, {"vCodes", "i8", 128}, {"vScales", "f16", 8}}));
  EXPECT_EQ(planes(parse_codec("affine:5:32", Dtype::bf16), 64, 128), (std::vector<Plane>{{"Kq", "u5", 40},
                                                                                          {"Ks", "f16", 4},
                                                                                          {"Kb", "f16", 4},
                                                                                          {"Vq", "u5", 80},
                                                                                          {"Vs", "f16", 8},
                                                                                          {"Vb", "f16", 8}}));
  EXPECT_EQ(planes(parse_codec("turbo", Dtype::bf16), 64, 64), (std::vector<Plane>{{"kIdx", "i8", 64},
                                                                                   {"kScales", "f16", 4},
                                                                                   {"kZeros", "f16", 4},
                                                                                   {"vPacked", "u3", 24},
                                                                                   {"vScales", "f16", 4}}));
}

TEST(Scheme, Grammar) {
  EXPECT_EQ(parse_codec("f16", Dtype::bf16), (CodecPair{{.plain = Dtype::f16}, {.plain = Dtype::f16}}));
  const CodecPair affine = parse_codec("affine:4", Dtype::bf16);
  EXPECT_EQ(affine.k, (PlaneCodec{Kind::affine, Dtype::bf16, 4, 64, Dtype::f16}));
  EXPECT_EQ(affine.k, affine.v);
  EXPECT_EQ(parse_codec("affine:8:32:bf16", Dtype::bf16).v,
            (PlaneCodec{Kind::affine, Dtype::bf16, 8, 32, Dtype::bf16}));
  EXPECT_EQ(parse_codec("affine:8:bf16", Dtype::bf16).v,
            (PlaneCodec{Kind::affine, Dtype::bf16, 8, 64, Dtype::bf16}));
  EXPECT_EQ(parse_codec("affine:8", Dtype::f32).v.scale_dtype, Dtype::f32);
  EXPECT_EQ(parse_codec("turbo", Dtype::bf16), parse_codec("turbo:8,3", Dtype::bf16));
  EXPECT_EQ(parse_codec("turbo:4,2", Dtype::bf16), parse_codec("turbokey:4/rot:2", Dtype::bf16));
  EXPECT_EQ(parse_codec("rot:5", Dtype::bf16), parse_codec("rot:5/rot:5", Dtype::bf16));
  EXPECT_EQ(parse_codec("affine:8/rot:4", Dtype::bf16).v.kind, Kind::rotated);
  EXPECT_EQ(parse_codec("q8_0", Dtype::bf16).k, (PlaneCodec{Kind::q_0, Dtype::bf16, 8, 32}));
  EXPECT_EQ(parse_codec("rot:q8_0/rot:4", Dtype::f16).k, (PlaneCodec{Kind::rotated_q_0, Dtype::f16, 8, 32}));
  EXPECT_EQ(parse_codec("q5_0/rot:q3_0", Dtype::bf16).k, (PlaneCodec{Kind::q_0, Dtype::bf16, 5, 32}));
  EXPECT_EQ(parse_codec("q5_0/rot:q3_0", Dtype::bf16).v, (PlaneCodec{Kind::rotated_q_0, Dtype::bf16, 3, 32}));
  for (const int bits : {2, 7, 9}) EXPECT_NE(why_invalid({Kind::q_0, Dtype::bf16, bits, 32}, 64), "") << bits;
  for (const int bits : {3, 4, 5, 6, 8})
    EXPECT_EQ(why_invalid({Kind::q_0, Dtype::bf16, bits, 32}, 96), "") << bits;
  for (const char* bad : {"q8_0:32",
                          "qx_0",
                          "q4_1",
                          "q10_0",
                          "rot:q8_0:2",
                          "rot:q_0",
                          "affine",
                          "affine:",
                          "affine:x",
                          "affine:8:",
                          "affine:8:64:i8",
                          "affine:8:64:f16:1",
                          "turbo:8",
                          "turbo:8,3,2",
                          "rot",
                          "rot:4:2",
                          "f32/f16/bf16",
                          "/",
                          "f16/",
                          "",
                          "bf16 ",
                          "affine:-4",
                          "turbokey:4",
                          "f16/turbokey:4",
                          "affine:99999999999999999999"})
    EXPECT_THROW(parse_codec(bad, Dtype::bf16), Error) << bad;
}

TEST(Scheme, DescribeIsTheGrammarsInverse) {
  for (const char* spec : {"f32", "bf16", "affine:4:64", "affine:8:128:bf16", "turbo:8,3", "rot:5",
                           "affine:8:64/rot:4", "f16/rot:3", "turbokey:5/affine:8:64", "rot:4/affine:8:32",
                           "q8_0", "rot:q8_0", "q8_0/rot:q8_0", "q5_0", "rot:q4_0", "rot:q6_0/q3_0"})
    EXPECT_EQ(describe(parse_codec(spec, Dtype::bf16)), spec);
}

TEST(Scheme, DefaultsAndUniformChoices) {
  const auto layers = model(4);
  Scheme scheme = resolve_scheme(request(""), layers);
  EXPECT_EQ(scheme.key, "plain-bf16");
  EXPECT_EQ(scheme.bytes_per_token(), 4u * 3u * 256u);
  scheme = resolve_scheme(request("affine:8"), layers);
  EXPECT_EQ(scheme.key, "affine-b8g64-bf16-xf16-s0");
  EXPECT_EQ(scheme.shape(64).groups.size(), 1u);
  SchemeRequest r = request("turbo");
  r.start = 512;
  scheme = resolve_scheme(r, layers);
  EXPECT_EQ(scheme.key, "turbo-k8v3-bf16-s512");
  EXPECT_TRUE(scheme.shape(64).converts());
  r.plain = "f32";
  EXPECT_EQ(resolve_scheme(r, layers).codecs[0].k.plain, Dtype::f32);
}

TEST(Scheme, PerLayerOverrides) {
  auto r = request("affine:4");
  r.layers = {"0-1=affine:8", "3=bf16"};
  const Scheme scheme = resolve_scheme(r, model(5));
  EXPECT_EQ(scheme.codecs[0].k.bits, 8);
  EXPECT_EQ(scheme.codecs[1].k.bits, 8);
  EXPECT_EQ(scheme.codecs[2].k.bits, 4);
  EXPECT_TRUE(scheme.codecs[3].is_plain());
  EXPECT_EQ(scheme.codecs[4].k.bits, 4);
  EXPECT_EQ(scheme.shape(64).groups.size(), 3u);
  EXPECT_TRUE(scheme.key.starts_with("config-")) << scheme.key;
  r.layers = {"0-2=affine:8", "2=bf16"};
  EXPECT_NE(refusal(r, model(5), ErrorCode::invalid_input).find("layer 2 is also named"), std::string::npos);
  for (const char* bad :
       {"9=affine:8", "3-1=affine:8", "a=affine:8", "1", "1-2-3=f32", "-1=f32", "1=config"}) {
    r.layers = {bad};
    EXPECT_THROW(resolve_scheme(r, model(5)), Error) << bad;
  }
}

TEST(Scheme, RefusesWhatALayerCannotTake) {
  EXPECT_NE(refusal(request("affine:8:128"), model(2, 64), ErrorCode::unsupported)
                .find("does not divide head_dim 64"),
            std::string::npos);
  EXPECT_NE(refusal(request("turbo"), model(2, 96), ErrorCode::unsupported).find("64, 128, 256, 512"),
            std::string::npos);
  EXPECT_NE(refusal(request("rot:7"), model(2), ErrorCode::unsupported).find("Lloyd-Max"), std::string::npos);
  EXPECT_NE(refusal(request("affine:7"), model(2), ErrorCode::unsupported).find("7 bits"), std::string::npos);
  EXPECT_NE(refusal(request("affine:8:48"), model(2), ErrorCode::unsupported).find("48"), std::string::npos);
  EXPECT_NE(refusal(request("turbo:3,3"), model(2), ErrorCode::unsupported).find("layer 0"),
            std::string::npos);
}

TEST(Scheme, RefusesSettingsThatWouldDoNothing) {
  SchemeRequest r = request("bf16");
  r.start = 100;
  EXPECT_NE(refusal(r, model(2), ErrorCode::invalid_input).find("no layer is encoded"), std::string::npos);
  r = request("affine:8");
  r.start = -1;
  refusal(r, model(2), ErrorCode::invalid_input);
  r = request("bf16");
  r.plain = "f16";
  refusal(r, model(2), ErrorCode::invalid_input);
  r = request("affine:8");
  r.plain = "i8";
  refusal(r, model(2), ErrorCode::invalid_input);
  r = request("bf16");
  r.start = 0;
  EXPECT_EQ(resolve_scheme(r, model(2)).start, 0);
}

TEST(Scheme, LayersWithoutKvOfTheirOwn) {
  auto layers = model(4);
  layers[1].kind = SchemeLayer::Kind::recurrent;
  layers[2].kind = SchemeLayer::Kind::shares;
  layers[3].kind = SchemeLayer::Kind::mla;
  const Scheme scheme = resolve_scheme(request("affine:8"), layers);
  ASSERT_EQ(scheme.owners.size(), 2u);  // the latents are stored, as they are
  EXPECT_EQ(describe(scheme.codecs[0]), "affine:8:64");
  EXPECT_EQ(describe(scheme.codecs[1]), "mla");
  EXPECT_EQ(scheme.notes.size(), 2u);
  for (const char* named : {"1=affine:8", "2=affine:8", "3=affine:8"}) {
    SchemeRequest r = request("");
    r.layers = {named};
    refusal(r, layers, ErrorCode::unsupported);
  }
  layers[0].kind = SchemeLayer::Kind::recurrent;
  refusal(request("affine:8"), layers, ErrorCode::unsupported);  // no layer is eligible
  EXPECT_EQ(resolve_scheme(request(""), layers).key, "mla");
  EXPECT_EQ(resolve_scheme(request("f32"), layers).notes.size(), 0u);
  EXPECT_EQ(resolve_scheme(request("f16"), layers).notes.size(), 1u);  // latents stay f32
}

TEST(Scheme, ConfigFile) {
  ConfigFolder folder;
  SchemeRequest r = request("config");
  EXPECT_NE(refusal(r, model(4), ErrorCode::not_found).find("no kv_config.json"), std::string::npos);
  folder.write(
      "kv_config.json",
      R"([{"layer_idx":0,"bits":8,"group_size":32},{"layer_idx":2,"codec":"turbo:8,4"},{"layer_idx":3,"bits":4}])");
  r.model_folder = folder.path();
  Scheme scheme = resolve_scheme(r, model(4));
  EXPECT_EQ(describe(scheme.codecs[0]), "affine:8:32");
  EXPECT_TRUE(scheme.codecs[1].is_plain());
  EXPECT_EQ(describe(scheme.codecs[2]), "turbo:8,4");
  EXPECT_EQ(describe(scheme.codecs[3]), "affine:4:64");
  r.layers = {"0=rot:4"};
  EXPECT_EQ(describe(resolve_scheme(r, model(4)).codecs[0]), "rot:4");
  r.layers.clear();
  for (const char* bad :
       {R"({})", R"([{"bits":8}])", R"([{"layer_idx":0,"bits":8},{"layer_idx":0,"bits":4}])",
        R"([{"layer_idx":9,"bits":8}])", R"([{"layer_idx":0,"bits":7}])",
        R"([{"layer_idx":0,"bits":8,"codec":"f32"}])", R"([{"layer_idx":0}])",
        R"([{"layer_idx":0,"codec":3}])", R"([{"layer_idx":0,"bits":8,"group_size":"a"}])", "[",
        R"([{"layer_idx":-1,"bits":8}])", R"([{"layer_idx":0,"bits":8,"group":32}])"}) {
    folder.write("bad.json", bad);
    EXPECT_THROW(resolve_scheme(request("config:" + (folder.path() / "bad.json").string()), model(4)), Error)
        << bad;
  }
  EXPECT_THROW(resolve_scheme(request("config:" + (folder.path() / "none.json").string()), model(4)), Error);
}

TEST(Scheme, AutoTakesTheBestThatFits) {
  ConfigFolder folder;
  folder.write("kv_config.json", R"([
    {"layer_idx":0,"codec":"affine:8","measured":[{"codec":"affine:8","bytes":136,"kl":0.001},
      {"codec":"affine:4","bytes":72,"kl":0.5},{"codec":"rot:4","bytes":72,"kl":0.3}]},
    {"layer_idx":1,"codec":"rot:4","measured":[{"codec":"affine:8","bytes":136,"kl":0.001},
      {"codec":"affine:4","bytes":72,"kl":0.02},{"codec":"rot:4","bytes":72,"kl":0.01}]}])");
  // One head of 64: affine:8 136 bytes, affine:4 72, rot:4 72 a layer.
  const auto pick = [&](int64_t bytes) {
    SchemeRequest r = request(fmt::format("auto:{}", bytes));
    r.model_folder = folder.path();
    const Scheme scheme = resolve_scheme(r, model(2, 64, 1));
    EXPECT_LE(scheme.bytes_per_token(), static_cast<size_t>(bytes));
    return describe(scheme.codecs[0]) + " " + describe(scheme.codecs[1]);
  };
  EXPECT_EQ(pick(272), "affine:8:64 affine:8:64");
  EXPECT_EQ(pick(100000), "affine:8:64 affine:8:64");
  EXPECT_EQ(pick(271), "affine:8:64 rot:4");
  EXPECT_EQ(pick(208), "affine:8:64 rot:4");
  EXPECT_EQ(pick(207), "rot:4 rot:4");
  EXPECT_EQ(pick(144), "rot:4 rot:4");
  SchemeRequest r = request("auto:143");
  r.model_folder = folder.path();
  EXPECT_NE(refusal(r, model(2, 64, 1), ErrorCode::invalid_input).find("144 bytes per token"),
            std::string::npos);
  r = request("auto:1000");
  refusal(r, model(2), ErrorCode::not_found);
  r.model_folder = folder.path();
  refusal(r, model(3, 64, 1), ErrorCode::not_found);  // layer 2 was not measured
  EXPECT_THROW(resolve_scheme(request("auto"), model(2)), Error);
  EXPECT_THROW(resolve_scheme(request("auto:0"), model(2)), Error);
}

// A table says in which plain type it was measured; where the bytes do not depend on it nothing else would.
TEST(Scheme, ATableOfAnotherPlainTypeIsRefused) {
  ConfigFolder folder;
  const auto write = [&](const char* more, const char* inside) {
    folder.write(
        "kv_config.json",
        fmt::format(
            R"([{{"layer_idx":0,"codec":"rot:4"{},"measured":[{{"codec":"rot:4","bytes":72,"kl":0.3{}}}]}}])",
            more, inside));
  };
  for (const char* spec : {"auto:100", "config"}) {
    SchemeRequest r = request(spec);
    r.model_folder = folder.path();
    write(R"(,"plain":"f32")", "");
    const std::string message = refusal(r, model(1, 64, 1), ErrorCode::invalid_input);
    EXPECT_NE(
        message.find("measured with keys and values in f32, and here they are bf16: give --kv-plain f32"),
        std::string::npos)
        << message;
    r.plain = "f32";
    EXPECT_EQ(describe(resolve_scheme(r, model(1, 64, 1)).codecs[0]), "rot:4");
    write(R"(,"plain":"f64")", "");
    refusal(r, model(1, 64, 1), ErrorCode::corrupt_file);
    r.plain.reset();
    for (const char* fine : {R"(,"plain":"bf16")", ""}) {
      write(fine, "");
      EXPECT_EQ(describe(resolve_scheme(r, model(1, 64, 1)).codecs[0]), "rot:4");
    }
  }
  write("", R"(,"klx":1)");
  SchemeRequest r = request("auto:100");
  r.model_folder = folder.path();
  EXPECT_NE(refusal(r, model(1, 64, 1), ErrorCode::corrupt_file).find("unknown member \"klx\""),
            std::string::npos);
}

// BYTES are those of all layers, also of those that --kv-layer names.
TEST(Scheme, AutoCountsTheLayersThatAreNamed) {
  ConfigFolder folder;
  folder.write("kv_config.json", R"([
    {"layer_idx":0,"measured":[{"codec":"affine:8","bytes":136,"kl":0.01},{"codec":"rot:4","bytes":72,"kl":0.3}]},
    {"layer_idx":1,"measured":[{"codec":"affine:8","bytes":136,"kl":0.2},{"codec":"rot:4","bytes":72,"kl":0.9}]}])");
  // One head of 64 in f32: 512 bytes a layer.
  const auto asked = [&](const char* spec) {
    SchemeRequest r = request(spec);
    r.model_folder = folder.path();
    r.layers = {"0=f32"};
    return r;
  };
  Scheme scheme = resolve_scheme(asked("auto:648"), model(2, 64, 1));
  EXPECT_EQ(describe(scheme.codecs[0]) + " " + describe(scheme.codecs[1]), "f32 affine:8:64");
  EXPECT_EQ(scheme.bytes_per_token(), 648u);
  scheme = resolve_scheme(asked("auto:647"), model(2, 64, 1));
  EXPECT_EQ(describe(scheme.codecs[1]), "rot:4");
  EXPECT_NE(refusal(asked("auto:583"), model(2, 64, 1), ErrorCode::invalid_input).find("584 bytes per token"),
            std::string::npos);
}

// Who wrote what is refused: the flag as it was given, or the file and its entry.
TEST(Scheme, RefusalsNameTheirSource) {
  const auto begins = [](const std::string& message, const std::string& source) {
    EXPECT_EQ(message.substr(0, source.size() + 2), source + ": ");
  };
  SchemeRequest r = request("");
  for (const char* layer : {"0=foo", "0=", "0=turbo:8", "0=affine:x", "0=config", "0=auto:100", "0=a/b/c"}) {
    r.layers = {layer};
    const std::string message = refusal(r, model(2), ErrorCode::invalid_input);
    begins(message, std::string("--kv-layer ") + layer);
    EXPECT_EQ(message.find("auto:BYTES"), std::string::npos) << message;
  }
  ConfigFolder folder;
  r = request("config");
  r.model_folder = folder.path();
  for (const char* entry : {R"("codec":"foo")", R"("bits":-8)", R"("bits":4294967304)",
                            R"("bits":8,"group_size":-64)", R"("codec":"turbo:8")"}) {
    folder.write("kv_config.json",
                 fmt::format(R"([{{"layer_idx":1,"bits":8}},{{"layer_idx":0,{}}}])", entry));
    begins(refusal(r, model(2), ErrorCode::invalid_input),
           (folder.path() / "kv_config.json").string() + ": entry 1");
  }
  for (const char* spec : {"config", "auto:100"}) {
    folder.write("kv_config.json", R"([{"layer_idx":18446744073709551615,"bits":8}])");
    r = request(spec);
    r.model_folder = folder.path();
    EXPECT_NE(refusal(r, model(2), ErrorCode::invalid_input).find("there is no layer 18446744073709551615"),
              std::string::npos);
  }
  begins(refusal(request("foo"), model(2), ErrorCode::invalid_input), "--kv foo");
  for (const char* spec : {"config:", "auto:100:"})
    EXPECT_NE(refusal(request(spec), model(2), ErrorCode::invalid_input).find("name of a file is missing"),
              std::string::npos);
}

// By hand: of all ways to stay within the budget the one that loses least.
TEST(Scheme, LeastLossIsExact) {
  const std::vector<std::vector<SizeAndLoss>> layers = {
      {{12, 0.1}, {8, 0.5}, {4, 2.0}}, {{10, 0.0}, {6, 0.3}}, {{6, 0.2}, {2, 0.4}}};
  for (size_t budget = 12; budget <= 30; ++budget) {
    double best = 1e9;
    for (const SizeAndLoss& a : layers[0])
      for (const SizeAndLoss& b : layers[1])
        for (const SizeAndLoss& c : layers[2])
          if (a.bytes + b.bytes + c.bytes <= budget) best = std::min(best, a.loss + b.loss + c.loss);
    const std::vector<size_t> chosen = least_loss(layers, budget, "test");
    size_t bytes = 0;
    double loss = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      bytes += layers[i][chosen[i]].bytes;
      loss += layers[i][chosen[i]].loss;
    }
    EXPECT_LE(bytes, budget);
    EXPECT_DOUBLE_EQ(loss, best) << budget;
  }
  EXPECT_EQ(smallest_bytes(layers[0]), 4u);
  EXPECT_TRUE(least_loss({}, 10, "test").empty());
}

// P38: different bytes or arithmetic, different key.
TEST(Scheme, KeysAreInjective) {
  std::set<std::string> keys;
  std::vector<PlaneCodec> planes;
  for (const Dtype t : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    planes.push_back({.plain = t});
    for (const int b : {2, 4, 8}) {
      for (const int g : {32, 64})
        for (const Dtype s : {Dtype::f32, Dtype::f16, Dtype::bf16})
          planes.push_back({Kind::affine, t, b, g, s});
      planes.push_back({Kind::turbo_key, t, b, 32});
      planes.push_back({Kind::rotated, t, b, 32});
      for (const Kind kind : {Kind::affine, Kind::turbo_key, Kind::rotated}) {
        planes.push_back({kind, t, b, 32});
        set_encoder(planes.back(), true, false);
        if (kind == Kind::affine) planes.back().scale_dtype = t;
      }
    }
    for (const int b : {3, 4, 5, 6, 8}) {
      planes.push_back({Kind::q_0, t, b, 32});
      planes.push_back({Kind::rotated_q_0, t, b, 32});
    }
  }
  size_t count = 0;
  for (const PlaneCodec& k : planes)
    for (const PlaneCodec& v : planes)
      for (const int32_t start : {0, 7}) {
        if (start > 0 && CodecPair{k, v}.is_plain()) continue;
        ++count;
        EXPECT_TRUE(keys.insert(layer_key({k, v}, start)).second) << layer_key({k, v}, start);
      }
  EXPECT_EQ(keys.size(), count);
  std::mt19937 random(3);
  std::set<std::string> mixed;
  std::set<std::vector<size_t>> lists;
  for (int i = 0; i < 2000; ++i) {
    std::vector<size_t> list{random() % planes.size(), random() % planes.size(), random() % planes.size()};
    std::vector<CodecPair> codecs;
    for (size_t p : list) codecs.push_back({planes[p], planes[p]});
    if (lists.insert(list).second) {
      EXPECT_TRUE(mixed.insert(scheme_key(codecs, 0)).second);
    }
  }
}

// The library's encoder options show in the key, and reach only the planes that have a choice.
TEST(Scheme, EncoderOptions) {
  SchemeRequest r = request("affine:8/rot:4");
  r.affine_gpu_compat = true;
  EXPECT_EQ(resolve_scheme(r, model(2)).key, "affine-b8g64-bf16-xf16-gc+rot-b4-bf16-s0");
  r.turbo_guard = false;
  const Scheme both = resolve_scheme(r, model(2));
  EXPECT_EQ(both.key, "affine-b8g64-bf16-xf16-gc+rot-b4-bf16-g0-s0");
  EXPECT_TRUE(both.codecs[0].k.gpu_compat && both.codecs[0].k.guard);
  EXPECT_TRUE(!both.codecs[0].v.gpu_compat && !both.codecs[0].v.guard);
  r.spec = "turbo";
  EXPECT_EQ(resolve_scheme(r, model(2)).key, "turbo-k8v3-bf16-g0-s0");
  r.layers = {"1=affine:4:32:bf16"};
  EXPECT_TRUE(resolve_scheme(r, model(2)).codecs[1].v.gpu_compat);
  r = request("q8_0");
  r.affine_gpu_compat = true;
  r.turbo_guard = false;
  EXPECT_EQ(resolve_scheme(r, model(2)).key, "q8_0-bf16-s0");
}

// P25. kv-cache.md 4.3.
TEST(Scheme, Signatures) {
  const auto signature = [](const char* spec, bool windowed) {
    GroupGeometry geometry{.codec = parse_codec(spec, Dtype::bf16)};
    if (windowed) geometry.window = 512;
    return layer_signature(geometry);
  };
  EXPECT_EQ(signature("bf16", false), "kv:plain");
  EXPECT_EQ(signature("bf16", true), "kv:rotating-plain");
  EXPECT_EQ(signature("affine:4", false), "kv:quant:4:64");
  EXPECT_EQ(signature("affine:8:32", true), "kv:rotating-quant:8:32");
  EXPECT_EQ(signature("turbo", false), "kv:turboquant:8:3");
  EXPECT_EQ(signature("turbo:4,2", true), "kv:rotating-turboquant:4:2");
  const auto latents = [](const MlaGeometry& mla) {
    return layer_signature({.codec = mla_codec(), .mla = mla});
  };
  EXPECT_EQ(latents({.dsa_dim = 0, .max_tokens = 9}), "kv:mla:target");
  EXPECT_EQ(latents({.dsa_dim = 128, .max_tokens = 9}), "kv:mla:target:dsa");
  EXPECT_EQ(latents({.dsa_dim = 0, .max_tokens = 9, .mtp = true}), "kv:mla:mtp");
}

// P25: the two fixtures of kv-cache.md 4.3, from a kv_config.json.
TEST(Scheme, SignatureVectorsOfGemma4) {
  const auto vector_of = [](int owners, const std::set<int>& full, const std::set<int>& eight) {
    std::vector<SchemeLayer> layers;
    nlohmann::json config = nlohmann::json::array();
    std::vector<std::string> expected;
    for (int i = 0; i < owners; ++i) {
      SchemeLayer layer;
      layer.geometry = {
          .layer = i, .kv_heads = full.contains(i) ? 2 : 8, .head_dim_k = 256, .head_dim_v = 256};
      if (!full.contains(i)) layer.geometry.window = 1024;
      layers.push_back(layer);
      const int bits = eight.contains(i) ? 8 : 4;
      config.push_back({{"layer_idx", i}, {"bits", bits}, {"group_size", 64}});
      expected.push_back(fmt::format("kv:{}quant:{}:64", full.contains(i) ? "" : "rotating-", bits));
    }
    const ConfigFolder folder;
    folder.write("kv_config.json", config.dump());
    SchemeRequest asked = request("config");
    asked.model_folder = folder.path();
    EXPECT_EQ(signatures(resolve_scheme(asked, layers).shape(64)), expected);
    return expected;
  };
  const auto large = vector_of(30, {5, 11, 17, 23, 29}, {0, 3, 4, 5, 8, 9, 11, 12});
  EXPECT_EQ(large[0], "kv:rotating-quant:8:64");
  EXPECT_EQ(large[5], "kv:quant:8:64");
  EXPECT_EQ(large[29], "kv:quant:4:64");
  const auto small = vector_of(24, {5, 11, 17, 23}, {3, 4, 9, 10, 11, 14});
  EXPECT_EQ(small[5], "kv:quant:4:64");
  EXPECT_EQ(small[11], "kv:quant:8:64");
}

}  // namespace
}  // namespace kvasir::kv
