// `kvasir eval kv-sensitivity`: what each layer loses to each KV codec, as the table that `--kv auto:BYTES`
// chooses from.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_error.h"
#include "base/mapped_file.h"
#include "cli/eval.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/starter_models.h"
#include "engine/kv_sensitivity.h"
#include "kv/scheme.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

struct SensitivityFlags {
  LoadFlags load;
  std::string tokens;
  std::string out;
  std::vector<std::string> codecs;
  std::vector<std::string> together;
  int64_t bytes = 0;
  bool json = false;
};

Json codecs_json(const std::vector<engine::MeasuredCodec>& codecs) {
  Json list = Json::array();
  for (const engine::MeasuredCodec& codec : codecs)
    list.push_back({{"codec", codec.codec}, {"bytes", codec.bytes}, {"kl", codec.kl}});
  return list;
}

// Before the measuring, not after it.
void check_writable(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (std::filesystem::is_directory(file))
    throw_error(ErrorCode::invalid_input, "{}: is a folder, expected a file to write",
                printable(file.string()));
  if (::access((folder / "").c_str(), W_OK | X_OK) != 0)
    throw_error(file_error(errno), "{}: cannot be written: {}", printable(file.string()),
                std::strerror(errno));
}

// What was named and no layer can take is refused; what some layer cannot take is said. Headers tell.
void check_codecs(const SensitivityFlags& flags, const engine::MemoryReport& plan) {
  const auto check = [&](const std::string& flag, const kv::CodecPair& codec, bool whole, bool keys_only) {
    std::string reason;
    std::vector<int> lacking;
    size_t layers = 0;
    for (const models::KvGroup& group : plan.kv_groups) {
      const kv::GroupGeometry& g = group.geometry;
      std::string why = kv::why_invalid(codec.k, g.head_dim_k);
      if (why.empty() && !keys_only) why = kv::why_invalid(codec.v, g.head_dim_v);
      layers += group.layers.size();
      if (why.empty()) continue;
      reason = why;
      lacking.insert(lacking.end(), group.layers.begin(), group.layers.end());
    }
    if (lacking.empty()) return;
    if (lacking.size() == layers || whole) throw_error(ErrorCode::unsupported, "{}: {}", flag, reason);
    std::fprintf(stderr, "kvasir: note: %s is not measured in %zu of %zu layers: %s\n", flag.c_str(),
                 lacking.size(), layers, reason.c_str());
  };
  for (const std::string& codec : flags.codecs) {
    const bool keys_only = codec.starts_with("turbokey:");
    const std::string flag = "--codec " + printable(codec);
    check(flag, kv::parse_codec(keys_only ? codec + "/f32" : codec, Dtype::bf16, flag), false, keys_only);
  }
  for (const std::string& spec : flags.together) {
    const std::string flag = "--together " + printable(spec);
    check(flag, kv::parse_codec(spec, Dtype::bf16, flag), true, false);
  }
}

int eval_kv_sensitivity(const SensitivityFlags& flags) {
  const std::vector<int32_t> ids = read_token_file(flags.tokens);
  if (ids.size() < 2)
    throw_error(ErrorCode::invalid_input, "{}: {} tokens; measuring needs at least 2, better some hundreds",
                printable(flags.tokens), ids.size());
  if (!flags.load.kv.empty() || !flags.load.kv_layer.empty() || flags.load.kv_start >= 0)
    throw_error(ErrorCode::invalid_input,
                "kv-sensitivity chooses the codecs itself: leave out --kv, --kv-layer and --kv-start");
  std::vector<std::string> codecs = flags.codecs.empty() ? engine::default_plane_codecs() : flags.codecs;
  if (!flags.together.empty())
    for (const auto& [given, flag] : {std::pair{!flags.codecs.empty(), "--codec"},
                                      {flags.bytes != 0, "--bytes"},
                                      {!flags.out.empty(), "--out"}})
      if (given)
        throw_error(ErrorCode::invalid_input,
                    "{}: --together measures and writes nothing: leave one of the two out", flag);
  for (const std::string& codec : codecs)
    kv::parse_codec(codec + "/f32", Dtype::bf16, "--codec " + printable(codec));  // refused before a load
  for (const std::string& spec : flags.together)
    kv::parse_codec(spec, Dtype::bf16, "--together " + printable(spec));
  engine::EngineOptions options = flags.load.options();
  const auto length = static_cast<int64_t>(ids.size());
  if (options.load.context == 0) options.load.context = length;
  if (length > options.load.context)
    throw_error(ErrorCode::invalid_input, "{} holds {} tokens, more than --context {}",
                printable(flags.tokens), length, options.load.context);
  options.load.chunk = static_cast<int>(std::min<int64_t>(options.load.chunk, length));
  options.load.logits = std::min(kLogitRows, options.load.chunk);
  options.load.kv = {};
  options.load.kv.spec = "f32";
  options.load.layers_apart = true;
  const std::filesystem::path path = resolve_model(flags.load.model);
  const std::filesystem::path folder = std::filesystem::is_directory(path) ? path : path.parent_path();
  const std::filesystem::path out =
      flags.out.empty() ? folder / "kv_config.json" : std::filesystem::path(flags.out);
  options.load.accept = [&](const models::ModelInfo& info) {
    models::check_tokens(ids, info.vocab, flags.tokens);
  };
  check_codecs(flags, engine::Engine::plan(path, options));
  const std::unique_ptr<engine::Engine> engine = engine::Engine::open(path, options);
  const size_t needed = engine->memory().total_bytes + engine::sensitivity_bytes(*engine, length);
  if (needed > engine->memory().available_bytes)
    throw_error(ErrorCode::resource_exhausted,
                "{} tokens need {} MB, mostly for the logits of the f32 cache, and {} MB are available: use "
                "fewer tokens",
                length, needed / 1000000, engine->memory().available_bytes / 1000000);
  Dtype plain = engine->model().info().activations == models::Activations::f32 ? Dtype::f32 : Dtype::bf16;
  if (!flags.load.kv_plain.empty()) plain = kv::parse_codec(flags.load.kv_plain, plain).k.plain;

  size_t bytes = static_cast<size_t>(flags.bytes);
  if (flags.together.empty()) {
    check_writable(out);
    const size_t least = engine::least_bytes(*engine, codecs, plain);
    size_t plain_bytes = 0;
    for (const models::KvGroup& group : engine->model().groups())
      plain_bytes += static_cast<size_t>(group.geometry.kv_heads) *
                     static_cast<size_t>(group.geometry.head_dim_k + group.geometry.head_dim_v) * 2;
    if (bytes == 0) bytes = std::max(plain_bytes / 2, least);
    if (bytes < least)
      throw_error(
          ErrorCode::invalid_input,
          "--bytes {}: the smallest of the codecs to be measured take {} bytes a token; allow at least "
          "that, or name smaller ones with --codec",
          bytes, least);
  }

  Progress progress("measuring");
  const auto show = [&](double done) { progress.update(done, 1.0); };
  if (!flags.together.empty()) {
    const auto measured = engine::measure_kv_codecs(*engine, ids, flags.together, plain, show, interrupted);
    progress.done();
    Json list = Json::array();
    for (const engine::MeasuredScheme& scheme : measured) {
      if (!flags.json)
        std::printf("%-20s %-8s %8zu bytes a token  KL %.3e  top-1 %.2f%%\n", scheme.codec.c_str(),
                    scheme.layers.c_str(), scheme.bytes, scheme.kl, 100 * scheme.top1);
      list.push_back({{"codec", scheme.codec},
                      {"layers", scheme.layers},
                      {"bytes_per_token", scheme.bytes},
                      {"mean_kl", scheme.kl},
                      {"top1", scheme.top1}});
    }
    if (flags.json) print_json(list, 1);
    return kExitDone;
  }
  const std::vector<engine::LayerSensitivity> layers =
      engine::measure_kv_sensitivity(*engine, ids, codecs, plain, show, interrupted);
  progress.done();

  // Which codec `--kv config` takes: what `auto` chooses for --bytes.
  std::vector<std::vector<kv::SizeAndLoss>> costs;
  for (const engine::LayerSensitivity& layer : layers) {
    std::vector<kv::SizeAndLoss>& cost = costs.emplace_back();
    for (const engine::MeasuredCodec& pair : layer.pairs) cost.push_back({pair.bytes, pair.kl});
  }
  const std::vector<size_t> chosen = kv::least_loss(costs, bytes, "kv-sensitivity");
  Json config = Json::array();
  size_t chosen_bytes = 0;
  double expected = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const engine::LayerSensitivity& layer = layers[i];
    const engine::MeasuredCodec& pair = layer.pairs[chosen[i]];
    config.push_back({{"layer_idx", layer.layer},
                      {"codec", pair.codec},
                      {"plain", name(plain)},
                      {"measured", codecs_json(layer.pairs)},
                      {"planes", {{"k", codecs_json(layer.keys)}, {"v", codecs_json(layer.values)}}}});
    chosen_bytes += pair.bytes;
    expected += pair.kl;
  }
  write_file_atomically(out, json_text(config, 1) + "\n");
  if (flags.json) {
    print_json({{"out", out.string()},
                {"tokens", length},
                {"layers", layers.size()},
                {"bytes_per_token", chosen_bytes},
                {"expected_kl", expected}});
  } else {
    for (const Json& entry : config)
      std::printf("layer %3d  %-20s", entry["layer_idx"].get<int>(),
                  entry["codec"].get<std::string>().c_str());
    std::printf(
        "\n%s: written; --kv config takes %zu bytes a token (expected KL %.2e), --kv auto:BYTES chooses "
        "anew\n",
        out.c_str(), chosen_bytes, expected);
  }
  return kExitDone;
}

}  // namespace

void add_eval_kv_sensitivity(CLI::App& eval, Invocation& invocation) {
  auto flags = std::make_shared<SensitivityFlags>();
  CLI::App* command = eval.add_subcommand(
      "kv-sensitivity", "Measure what each layer loses to each KV codec; writes kv_config.json");
  flags->load.add_to(*command, false);
  add_text(*command, "--tokens", flags->tokens, kFileValue, "JSON list of token ids of ordinary text")
      ->required();
  add_output(*command, "--out", flags->out, "File to write (default: kv_config.json beside the model)");
  add_list(*command, "--codec", flags->codecs, "CODEC",
           "A codec to measure on keys and on values (default: bf16, f16, rot:q8_0, q8_0, rot:q6_0, "
           "q6_0, rot:q5_0, rot:q4_0, rot:q3_0, rot:2)");
  add_list(*command, "--together", flags->together, "SPEC",
           "Instead: a --kv SPEC to measure in all layers at once; nothing is written");
  add_whole(*command, "--bytes", flags->bytes,
            "Bytes a token for which codecs are chosen (default: half of what bf16 takes)", 1);
  add_json(*command, flags->json);
  command->callback(
      [flags, &invocation] { invocation.work = [flags] { return eval_kv_sensitivity(*flags); }; });
}

}  // namespace kvasir::cli
