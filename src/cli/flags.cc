#include "cli/flags.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/nearest_name.h"
#include "base/ordered_json.h"
#include "base/topology.h"
#include "cli/conversation_store.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"
#include "engine/rng.h"

namespace kvasir::cli {
namespace {

constexpr double kAny = std::numeric_limits<float>::max();

}  // namespace

void LoadFlags::add_to(CLI::App& command, bool with_batch) {
  add_model(command, model);
  CLI::Option_group& group = *command.add_option_group("Loading");
  add_whole(group, "--context,--ctx", context,
            "Tokens a sequence may hold (default: the model's limit, or what fits)", 1);
  if (with_batch) batch_option = add_whole(group, "--batch", batch, "Sequences in one step (default 1)", 1);
  add_whole(group, "--chunk", chunk, "Most tokens in one forward pass (default 512)", 1);
  add_choice(group, "--activations", activations, models::activation_names(),
             "How inputs of matrix products are rounded (default auto)");
  add_threads(group, threads);
  add_choice(group, "--isa", isa, {"auto", "generic", "avx2", "avxvnni", "avx512vnni", "avx512bf16", "neon"},
             "Instruction-set level (default auto: the best this machine has)");
  add_text(group, "--kv", kv, "CODEC",
           "KV cache codec: f32, f16, bf16, affine:BITS[:GROUP], turbo[:K,V], rot:BITS, q8_0 to q3_0, "
           "rot:q8_0 to rot:q3_0, K/V, "
           "config[:FILE], "
           "auto:BYTES[:FILE]")
      ->each([](const std::string& spec) {
        if (spec.empty()) refuse_value(spec, "a codec");
      });
  add_list(group, "--kv-layer", kv_layer, "A[-B]=CODEC", "Codec of some layers");
  add_whole(group, "--kv-start", kv_start, "Tokens that stay plain before a row converts", 0);
  add_choice(group, "--kv-plain", kv_plain, {"f32", "f16", "bf16"}, "Plain type of encoded layers");
  add_whole(group, "--kv-page", kv_page, "Tokens a KV page: a power of two from 16 to 256 (default 64)", 16,
            256);
  add_text(group, "--pack", pack, kFileValue,
           "Packed weights to map, auto (default: what kvasir pack wrote beside the model) or off");
  add_memory(group, memory);
}

size_t parse_size(const std::string& text, const std::string& flag) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string suffix(end, text.data() + text.size());
  if (!suffix.empty() && suffix.back() == 'B') suffix.pop_back();
  double unit = 0;
  if (suffix.empty()) unit = 1;
  if (suffix == "K" || suffix == "k") unit = 1e3;
  if (suffix == "M") unit = 1e6;
  if (suffix == "G") unit = 1e9;
  if (suffix == "Ki") unit = 1024;
  if (suffix == "Mi") unit = 1024.0 * 1024;
  if (suffix == "Gi") unit = 1024.0 * 1024 * 1024;
  if (error != std::errc() || unit == 0 || !(value > 0) || !std::isfinite(value) || value * unit > 1e18)
    throw_error(ErrorCode::invalid_input,
                "{}: '{}' is no size: expected a number with K, M, G (decimal) or Ki, Mi, Gi", flag,
                printable(text));
  return static_cast<size_t>(value * unit);
}

engine::EngineOptions LoadFlags::options() const {
  engine::EngineOptions out;
  out.load.activations = models::parse_activations(activations, "--activations");
  out.load.isa = resolve_isa_level(isa);
  out.load.threads = threads;
  out.load.context = context;
  out.load.rows = batch;
  out.load.chunk = chunk;
  out.load.page_tokens = kv_page;
  out.load.pack = models::pack_choice(pack);
  out.load.note = [](const std::string& text) { std::fprintf(stderr, "kvasir: note: %s\n", text.c_str()); };
  if (!memory.empty()) out.memory_budget = parse_size(memory, "--memory");
  if (kv_page < 16 || kv_page > 256 || (kv_page & (kv_page - 1)) != 0)
    throw_error(ErrorCode::invalid_input, "--kv-page: {} is not a power of two from 16 to 256", kv_page);
  out.load.kv.spec = kv;
  out.load.kv.layers = kv_layer;
  if (kv_start >= 0) out.load.kv.start = kv_start;
  if (!kv_plain.empty()) out.load.kv.plain = kv_plain;
  return out;
}

void PrefixFlags::add_to(CLI::App& command) {
  CLI::Option_group& group = *command.add_option_group("Prefixes");
  CLI::Option* bytes =
      add_text(group, "--prompt-cache", size, "SIZE",
               "Memory, for example 512M, for earlier prompts beside what sequences leave free");
  group.add_flag("--no-prompt-cache", off, "Compute every prompt from its beginning")->excludes(bytes);
  interval_option = add_whole(
      group, "--state-snapshot-interval", interval,
      "Models with windows: tokens between points of a prompt that can be resumed (0: its end only)", 0);
}

void PrefixFlags::add_disk_to(CLI::App& command) {
  CLI::Option* dir = add_text(command, "--prompt-cache-dir", folder, kFolderValue,
                              "Where conversations and prompts are kept (default: ~/.local/state/kvasir/kv)")
                         ->each(refuse_no_folder);
  minor({dir});
  CLI::App& group = *command.get_option_group("Prefixes");
  CLI::Option* bytes =
      add_text(group, "--prompt-cache-disk", disk, "SIZE",
               "Disk, for example 8G, for earlier prompts: written in the background, found by later runs");
  group
      .add_flag("--kv-verify", verify,
                "Compare the hashes of prompts that come from disk (conversations' always are)")
      ->needs(bytes);
}

std::string PrefixFlags::unused_interval(bool kept, bool points) const {
  if (interval_option == nullptr || interval_option->count() == 0 || (kept && points)) return {};
  return fmt::format("--state-snapshot-interval does nothing: {}",
                     !kept ? "no prompt is kept here"
                           : "this model has neither windows nor recurrent layers, and resumes at any token");
}

void PrefixFlags::note_unused(engine::Engine& engine) const {
  const kv::CacheShape& shape = engine.cache().shape();
  const bool windows = std::any_of(shape.groups.begin(), shape.groups.end(),
                                   [](const auto& group) { return group.geometry.window.has_value(); });
  const std::string unused = unused_interval(engine.prefixes() != nullptr, windows || shape.state_bytes > 0);
  if (!unused.empty()) std::fprintf(stderr, "kvasir: note: %s\n", unused.c_str());
}

std::filesystem::path PrefixFlags::store_folder() const {
  return folder.empty() ? default_store_folder() : std::filesystem::path(folder);
}

void PrefixFlags::apply(engine::EngineOptions& options, bool by_default) const {
  options.prefix_cache = (by_default || !size.empty()) && !off;
  if (!size.empty()) options.prefix_bytes = parse_size(size, "--prompt-cache");
  options.snapshot_interval = interval;
  if (disk.empty()) return;
  options.prefix_cache = !off;  // refused with --no-prompt-cache
  options.prefix_disk.folder = store_folder();
  options.prefix_disk.bytes = parse_size(disk, "--prompt-cache-disk");
  options.prefix_disk.verify = verify;
  options.prefix_disk.warn = [](const std::string& text) {
    std::fprintf(stderr, "kvasir: %s\n", text.c_str());
  };
}

void SamplingFlags::add_to(CLI::App& command) {
  constexpr int64_t kMost = INT32_MAX;
  CLI::Option_group& group = *command.add_option_group("Sampling");
  add_number(group, "--temperature,--temp", temperature, "0: greedy (default 0.7)", 0);
  add_whole(group, "--top-k", top_k, "Keep the k most likely tokens (0: off)", 0, kMost);
  add_number(group, "--top-p", top_p, "Keep the most likely tokens that make up this probability", 0, 1);
  add_number(group, "--min-p", min_p, "Drop tokens less likely than this share of the most likely one", 0, 1);
  add_unsigned(group, "--seed", seed, "N", "Same seed, same text (default: a fresh one)");
  add_whole(group, "--min-tokens-to-keep", min_keep, "Of --min-p and --typical (default 1)", 1, kMost);
  add_number(group, "--typical", typical_p, "Locally typical sampling", 0, 1);
  add_number(group, "--top-n-sigma", top_n_sigma, "Keep logits within n standard deviations of the largest",
             0);
  add_number(group, "--xtc-probability", xtc_probability, "Chance of dropping the most likely choices", 0, 1);
  add_number(group, "--xtc-threshold", xtc_threshold,
             "Probability above which a choice may be dropped (default 0.1)", 0, 1);
  add_number(group, "--repetition-penalty", repetition_penalty, "Divide logits of recent tokens (0, 1: off)",
             0);
  add_whole(group, "--repetition-context-size", repetition_context,
            "Recent tokens of that penalty (default 20; 0: all)", 0, kMost);
  add_number(group, "--presence-penalty", presence_penalty, "Subtracted once from recent tokens", -kAny,
             kAny);
  add_whole(group, "--presence-context-size", presence_context,
            "Recent tokens of that penalty (default 20; 0: all)", 0, kMost);
  add_number(group, "--frequency-penalty", frequency_penalty, "Subtracted per occurrence of recent tokens",
             -kAny, kAny);
  add_whole(group, "--frequency-context-size", frequency_context,
            "Recent tokens of that penalty (default 20; 0: all)", 0, kMost);
  add_number(group, "--dry-multiplier", dry_multiplier, "Penalize extending a repetition (0: off)", 0);
  add_number(group, "--dry-base", dry_base, "Growth of that penalty per token (default 1.75)", 0);
  add_whole(group, "--dry-allowed-length", dry_allowed_length,
            "Repetitions up to this length are free (default 2)", 0, kMost);
  add_whole(group, "--dry-penalty-last-n", dry_context, "Tokens that DRY looks back (0: all)", 0, kMost);
  add_list(group, "--dry-sequence-breaker", dry_breakers, "TEXT",
           "A text that no repetition runs across ('none': nothing; default: newline, ':', '\"', '*')");
  add_whole(group, "--mirostat", mirostat,
            "2: mirostat 2.0 instead of all filters (0: off; a temperature of 0 stays greedy)", 0, 2);
  add_number(group, "--mirostat-tau", mirostat_tau, "Target surprise in bits (default 5)", 0);
  add_number(group, "--mirostat-eta", mirostat_eta, "Learning rate (default 0.1)", 0);
  add_list(group, "--logit-bias", logit_bias, "ID=X", "Added to a token's logit");
  add_text(group, "--sampler-order", order, "ORDER",
           "mlx (default), llama, temperature_first, or stage names joined by ';'");
}

engine::SamplingOptions SamplingFlags::options(double default_temperature) const {
  engine::SamplingOptions out;
  out.temperature = static_cast<float>(temperature < 0 ? default_temperature : temperature);
  out.top_k = top_k;
  out.top_p = static_cast<float>(top_p);
  out.min_p = static_cast<float>(min_p);
  out.min_tokens_to_keep = min_keep;
  out.typical_p = static_cast<float>(typical_p);
  out.top_n_sigma = static_cast<float>(top_n_sigma);
  out.xtc_probability = static_cast<float>(xtc_probability);
  out.xtc_threshold = static_cast<float>(xtc_threshold);
  out.repetition_penalty = static_cast<float>(repetition_penalty);
  out.presence_penalty = static_cast<float>(presence_penalty);
  out.frequency_penalty = static_cast<float>(frequency_penalty);
  out.repetition_context = repetition_context;
  out.presence_context = presence_context;
  out.frequency_context = frequency_context;
  out.dry_multiplier = static_cast<float>(dry_multiplier);
  out.dry_base = static_cast<float>(dry_base);
  out.dry_allowed_length = dry_allowed_length;
  out.dry_context = dry_context;
  if (!dry_breakers.empty()) out.dry_sequence_breakers = dry_breakers;
  if (dry_breakers == std::vector<std::string>{"none"}) out.dry_sequence_breakers.clear();
  out.mirostat = mirostat;
  out.mirostat_tau = static_cast<float>(mirostat_tau);
  out.mirostat_eta = static_cast<float>(mirostat_eta);
  out.order = engine::order_from_text(order);
  for (const std::string& entry : logit_bias) {
    const size_t equals = entry.find('=');
    int32_t id = 0;
    float value = 0;
    const char* begin = entry.data();
    const char* end = begin + entry.size();
    // Digits that were read to the end may still name a number that does not fit.
    const auto whole = [](std::from_chars_result read, const char* last) {
      return read.ec == std::errc() && read.ptr == last;
    };
    const bool ok = equals != std::string::npos &&
                    whole(std::from_chars(begin, begin + equals, id), begin + equals) && id >= 0 &&
                    whole(std::from_chars(begin + equals + 1, end, value), end) && std::isfinite(value);
    if (!ok)
      throw_error(ErrorCode::invalid_input,
                  "--logit-bias: '{}' is not ID=VALUE with a token id and a number that fits in 32 bits",
                  printable(entry));
    out.logit_bias[id] = value;
  }
  out.seed = seed ? *seed : engine::fresh_seed();
  return out;
}

engine::TextSide open_text(const std::filesystem::path& path) {
  engine::TextSide side = engine::TextSide::open(path);
  for (const std::string& warning : side.warnings)
    std::fprintf(stderr, "kvasir: note: %s\n", warning.c_str());
  return side;
}

void note_unread_variables(const engine::TextSide& text, const nlohmann::ordered_json& variables,
                           bool with_tools) {
  std::vector<std::string> given;
  for (const auto& [name, value] : variables.items()) given.push_back(name);
  if (with_tools) given.emplace_back("tools");
  if (given.empty()) return;
  const chat::ChatTemplate chat = text.chat_template(with_tools);
  const std::set<std::string>& read = chat.variables();
  for (const std::string& name : given)
    if (!read.contains(name))
      std::fprintf(stderr, "kvasir: note: the chat template of %s does not read '%s'%s\n", text.name.c_str(),
                   printable(name).c_str(),
                   did_you_mean(nearest_name(name, {read.begin(), read.end()})).c_str());
}

std::vector<int32_t> read_token_file(const std::string& path) {
  const std::string text = read_input(path, size_t{256} << 20);
  const nlohmann::ordered_json json = parse_ordered_json(text, path);
  if (!json.is_array())
    throw_error(ErrorCode::invalid_input, "{}: expected a JSON list of token ids", printable(path));
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_number_integer() || json[i].get<int64_t>() < 0 || json[i].get<int64_t>() > INT32_MAX)
      throw_error(ErrorCode::invalid_input, "{}: entry {} is no token id: {}", printable(path), i,
                  printable(json_text(json[i])));
    ids.push_back(json[i].get<int32_t>());
  }
  return ids;
}

}  // namespace kvasir::cli
