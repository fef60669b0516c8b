// Flags that several verbs share, defined once: how a model is loaded, how tokens are drawn.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/text_model.h"

namespace kvasir::cli {

struct LoadFlags {
  std::string model;
  std::string activations = "auto";
  std::string isa = "auto";
  int threads = 0;
  int64_t context = 0;
  int batch = 1;
  int chunk = 512;
  std::string kv;
  std::vector<std::string> kv_layer;
  int64_t kv_start = -1;  // -1: not given
  std::string kv_plain;
  int kv_page = 64;
  std::string memory;
  std::string pack = "auto";
  const CLI::Option* batch_option = nullptr;  // owned by the command

  void add_to(CLI::App& command, bool with_batch = true);
  engine::EngineOptions options() const;  // throws Error naming the flag
  bool has_batch() const { return batch_option != nullptr && batch_option->count() > 0; }
};

// What is kept of prompts, for those that begin alike.
struct PrefixFlags {
  std::string size;
  int64_t interval = 1024;
  const CLI::Option* interval_option = nullptr;  // owned by the command
  bool off = false;
  std::string folder;  // --prompt-cache-dir
  std::string disk;    // --prompt-cache-disk
  bool verify = false;

  void add_to(CLI::App& command);
  // Of verbs that compute, after add_to: where prompts are kept on disk, beside conversations.
  void add_disk_to(CLI::App& command);
  // Why --state-snapshot-interval, if it was given, does nothing; empty: it was not, or does something.
  // `kept`: prompts are kept; `points`: the model comes back to certain tokens of a prompt only.
  std::string unused_interval(bool kept, bool points) const;
  // The same of a model that is loaded; on standard error.
  void note_unused(engine::Engine& engine) const;
  std::filesystem::path store_folder() const;                         // --prompt-cache-dir or its default
  void apply(engine::EngineOptions& options, bool by_default) const;  // throws Error naming the flag
};

struct SamplingFlags {
  double temperature = -1;  // -1: the verb's default
  int top_k = 0;
  double top_p = 0, min_p = 0, typical_p = 0, top_n_sigma = 0;
  int min_keep = 1;
  double xtc_probability = 0, xtc_threshold = 0.1;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int repetition_context = 20, presence_context = 20, frequency_context = 20;
  double dry_multiplier = 0, dry_base = 1.75;
  int dry_allowed_length = 2, dry_context = 0;
  std::vector<std::string> dry_breakers;
  int mirostat = 0;
  double mirostat_tau = 5, mirostat_eta = 0.1;
  std::vector<std::string> logit_bias;  // ID=VALUE
  std::string order;
  std::optional<uint64_t> seed;  // none: a fresh one

  void add_to(CLI::App& command);
  engine::SamplingOptions options(double default_temperature) const;
};

// A size with a suffix: 12G, 512Mi, 1.5GB. Throws Error{invalid_input} naming the flag.
size_t parse_size(const std::string& text, const std::string& flag);

// The text side of a checkpoint; what of its files is left out is told on standard error.
engine::TextSide open_text(const std::filesystem::path& path);

// Says on standard error which variables (and tools, if there are any) the chat template never reads.
void note_unread_variables(const engine::TextSide& text, const nlohmann::ordered_json& variables,
                           bool with_tools);

// A JSON file holding a list of token ids.
std::vector<int32_t> read_token_file(const std::string& path);

}  // namespace kvasir::cli
