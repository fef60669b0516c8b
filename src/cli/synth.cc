// `kvasir synth`: a checkpoint of random weights in any supported family, size and storage format.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/ordered_json.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"
#include "formats/json.h"
#include "models/synth.h"

namespace kvasir::cli {
namespace {

struct SynthFlags {
  std::string out;
  std::string family = "llama";
  std::string size = "tiny";
  std::string format;
  std::string config;
  std::vector<std::string> set;
  std::optional<uint64_t> seed;
  bool overwrite = false;
  bool list = false;
  bool json = false;
};

int synth(const SynthFlags& flags) {
  using Json = nlohmann::ordered_json;
  if (flags.list) {
    const Json out = {{"families", models::synth_families()}, {"sizes", models::synth_sizes()}};
    if (flags.json) {
      print_json(out, 1);
    } else {
      for (const auto& [key, values] : out.items()) {
        std::printf("%s:", key.c_str());
        for (const auto& value : values) std::printf(" %s", value.get<std::string>().c_str());
        std::printf("\n");
      }
    }
    return kExitDone;
  }
  if (flags.out.empty())
    throw_error(ErrorCode::invalid_input, "no output: give the folder or .gguf file to write");
  nlohmann::json overrides = nlohmann::json::object();
  for (const std::string& pair : flags.set) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      throw_error(ErrorCode::invalid_input, "--set: '{}' is not KEY=VALUE", printable(pair));
    const std::string key = pair.substr(0, equals), text = pair.substr(equals + 1);
    const auto value = find_ordered_json(text, "--set " + key);
    overrides[key] = value ? nlohmann::json(*value) : nlohmann::json(text);
  }
  const bool named_gguf = flags.out.ends_with(".gguf");
  const std::string name = flags.format.empty() ? (named_gguf ? "gguf-f32" : "f32") : flags.format;
  const models::SynthFormat format = models::synth_format(name);
  if (named_gguf != (format.container == models::SynthFormat::Container::gguf))
    throw_error(ErrorCode::invalid_input, "{}: {} is written to a {}", printable(flags.out), name,
                named_gguf ? "folder: leave out .gguf, or give a format gguf-..."
                           : "file: let its name end in .gguf");
  std::error_code ignored;
  if (!flags.overwrite && std::filesystem::exists(flags.out, ignored) &&
      !std::filesystem::is_empty(flags.out, ignored))
    throw_error(ErrorCode::invalid_input, "{}: exists; --overwrite replaces it", printable(flags.out));
  const uint64_t seed = flags.seed.value_or(0);
  nlohmann::json config;
  try {
    nlohmann::json base;
    if (flags.config.empty()) {
      base = models::synth_config(flags.family, flags.size);
      config = models::synth_config(flags.family, flags.size, overrides);
    } else {
      base = formats::parse_json(read_input(flags.config, size_t{16} << 20), flags.config);
      if (!base.is_object())
        throw_error(ErrorCode::corrupt_file, "{}: is no JSON object", printable(flags.config));
      config = base;
      config.merge_patch(overrides);
    }
    models::check_fields(base, config);
    models::synthesize(config, format, seed, flags.out);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt_file || !flags.config.empty()) throw;
    throw Error(ErrorCode::invalid_input, error.what(), error.details());  // no file says so, but --set
  }
  if (flags.json)
    print_json({{"path", flags.out}, {"format", name}, {"seed", seed}, {"config", config}});
  else
    std::printf("%s: written (%s, %s, seed %llu)\n", flags.out.c_str(),
                config.value("model_type", "?").c_str(), name.c_str(), static_cast<unsigned long long>(seed));
  return kExitDone;
}

}  // namespace

void add_synth(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* command =
      app.add_subcommand("synth", "Write a checkpoint of random weights, for tests and benchmarks")
          ->group(kMinorGroup);
  add_output(*command, "OUT", flags->out, "Folder (safetensors, MLX) or .gguf file to write");
  CLI::Option* family =
      add_text(*command, "--family", flags->family, "NAME", "model_type (see --list; default llama)");
  CLI::Option* size = add_text(*command, "--size", flags->size, "NAME", "See --list; default tiny");
  add_text(*command, "--format", flags->format, "NAME",
           "f32, f16, bf16, mlx-affine-4-64, gguf-q4_0, gguf-q4_K, ... (default f32, or gguf-f32)");
  add_text(*command, "--config", flags->config, kFileValue, "A config.json instead of --family and --size")
      ->excludes(family)
      ->excludes(size);
  add_list(*command, "--set", flags->set, "K=V", "A field of the configuration");
  add_unsigned(*command, "--seed", flags->seed, "N", "Same seed, same bytes (default 0)");
  command->add_flag("--overwrite", flags->overwrite, "Replace what OUT holds");
  command->add_flag("--list", flags->list, "List families and sizes");
  add_json(*command, flags->json);
  command->footer("Example: kvasir synth bench.gguf --family llama --size 1b --format gguf-q4_0");
  command->callback([flags, &invocation] { invocation.work = [flags] { return synth(*flags); }; });
}

}  // namespace kvasir::cli
