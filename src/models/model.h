// An opened model: packed weights, the two recorded programs, and what the layers above must know to drive
// them.
//
//   MemoryPlan plan = Model::plan(path, options);           // from headers alone; no weight is read
//   std::unique_ptr<Model> model = Model::load(path, options);
//   kv pools from model->groups(); a StepState from rows and pages;
//   model->run_trunk(step, team);   // tokens -> keys, values, and the last layer's attention
//   model->run_head(step, team);    // rows step.logit_tokens of it -> logits [logits, vocab]
//
// A model has no sequences and no KV: the engine owns those. All errors of opening are kvasir::Error before
// anything is left behind: not_found (path, tensor), unsupported (family, setting), corrupt_file,
// invalid_input (option), resource_exhausted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/memory.h"
#include "base/thread_team.h"
#include "kv/cache_shape.h"
#include "kv/scheme.h"
#include "models/numerics_key.h"
#include "models/packed_source.h"
#include "models/profiles.h"
#include "ops/candidates/candidates.h"
#include "program/executor.h"
#include "program/program.h"
#include "program/step_state.h"

namespace kvasir::models {

// How the inputs of matrix products and of attention's products are rounded.
enum class Activations : uint8_t {
  automatic,  // per weight: int8 where it has an integer form, f32 for f32 weights, else bf16
  f32,
  bf16,
  int8,   // 8 bits; of the inputs that cost accuracy most for their time (linear.h) 16
  int16,  // 16 bits: two products of 8 bits, so decoding is as fast and a prompt takes nearly twice as long
};
std::string_view name(Activations mode);
// In the order of help texts: "auto", "f32", "bf16", "int8", "int16".
std::vector<std::string> activation_names();
// Throws Error{invalid_input}: `what` is not one of them.
Activations parse_activations(std::string_view text, std::string_view what);

struct ModelInfo;

struct LoadOptions {
  IsaLevel isa = best_isa_level();
  int threads = 1;  // size of the team that will run the programs: sizes per-thread scratch, never a result
  std::vector<int> cpus;  // where the packing and the running team sit (ThreadTeam); empty: anywhere
  Activations activations = Activations::automatic;
  int64_t context = 0;   // tokens a sequence may hold; 0: the model's own limit
  int rows = 1;          // most sequences in one step
  int chunk = 512;       // most tokens in one step (at least rows)
  int logits = 0;        // most rows of logits in one step; 0: rows
  int page_tokens = 64;  // of every KV layer group
  // Codecs of keys and values, and when rows convert (`--kv` and its companions). Empty: plain, f32 with f32
  // activations, else bf16. `default_plain` and `model_folder` are filled in by the model.
  kv::SchemeRequest kv;
  // Programs with the rewrites that join ops; never a result (tests compare the two).
  bool fuse = true;
  // A packed file to map instead of packing the weights again.
  PackChoice pack;
  // Told the facts of the headers by every plan and load, before any weight is read: what it throws ends
  // them. For checks of a request that need to know the model.
  std::function<void(const ModelInfo& info)> accept;
  // Told what a user should know of the load, such as a packed file that does not match.
  std::function<void(const std::string&)> note;
  bool layers_apart = false;  // a KV layer group of its own for every layer: to measure codecs layer by layer
  MemoryLedger* ledger = nullptr;  // not owned, must outlive the model
  std::vector<Profile> profiles;   // exact ones, beside the built-in families
  // Called while weights are packed, with bytes done and in all; returning false cancels (Error{cancelled}).
  std::function<bool(size_t done, size_t total)> progress;
};

// A layer group of the KV cache and what a token costs in it.
struct KvGroup {
  kv::GroupGeometry geometry;
  std::vector<int> layers;  // model layers, ascending: the i-th is layer i of the group's pages
  size_t page_bytes = 0;
  size_t bytes_per_token = 0;  // page_bytes / page_tokens, rounded up
};

// What a token may see: attention ops name a class by index, the engine fills StepState::key_ranges[class].
struct MaskClass {
  std::optional<int> window;  // keys seen, the token itself included; none: everything before it
};

struct MemoryPlan {
  size_t weights_bytes = 0;         // packed; what the ledger will hold
  size_t stored_bytes = 0;          // of the tensors that are packed, in the file
  size_t largest_weight_bytes = 0;  // packed, of one matrix or vector
  std::string pack_file;            // mapped in place of packing (weights_bytes are its pages); empty: none
  size_t workspace_bytes = 0;       // of both programs at the maxima
  std::vector<KvGroup> kv_groups;
  // Bytes of the pools for `rows` sequences of `context` tokens each (windows bounded, chunk in flight
  // included).
  size_t kv_bytes = 0;
  kv::CacheShape kv_shape;            // what KvCache is built from
  std::string kv_key;                 // scheme key (kv-cache.md 4.1)
  std::vector<std::string> kv_notes;  // what a uniform scheme left alone
};

// Facts about the opened model, fixed at load.
struct ModelInfo {
  std::string model_type;      // of the configuration, after remapping: "llama", "qwen3", "gemma3_text"
  std::string implementation;  // registry id that built it: "universal-dense", "qwen3", ...
  std::string profile;
  std::optional<std::string> artifact;         // "hf:<org>/<repo>@<revision>", where the path proves one
  std::string config_fingerprint;              // model-selection.md 3.2
  std::string specialization_fingerprint;      // 3.3
  std::string format;                          // "gguf", "safetensors", "mlx"
  std::string weight_formats;                  // "Q4_1 x 210, Q8_0 x 1, F32 x 61"
  Activations activations = Activations::f32;  // as asked for; `automatic` is resolved per weight
  IsaLevel isa = IsaLevel::generic;
  int layers = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t parameters = 0;
  int64_t model_context = 0;  // the limit that the checkpoint declares
  int64_t context = 0;        // the limit in force
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  std::vector<std::string> warnings;  // what the configuration says and is not done, a line each
};

// Throws Error{invalid_input} naming the first id outside the vocabulary and its position.
// `source`: what a refusal begins with, such as the file that holds them.
void check_tokens(std::span<const int32_t> ids, int64_t vocab, std::string_view source = {});

class Model {
 public:
  // `info`, when given, receives the facts that headers tell (the digest of weights is not among them).
  static MemoryPlan plan(const std::filesystem::path& path, const LoadOptions& options,
                         ModelInfo* info = nullptr);
  static std::unique_ptr<Model> load(const std::filesystem::path& path, const LoadOptions& options);
  // Packs the weights of the model at `path` into a file that later loads map (LoadOptions::pack), one after
  // the other: of memory it takes MemoryPlan::largest_weight_bytes. The file appears whole or not at all.
  // Returns its size.
  static size_t write_pack(const std::filesystem::path& path, const LoadOptions& options,
                           const std::filesystem::path& out);
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const { return info_; }
  const MemoryPlan& memory() const { return memory_; }
  std::span<const KvGroup> groups() const { return memory_.kv_groups; }
  std::span<const MaskClass> mask_classes() const { return mask_classes_; }
  const NumericsKey& numerics_key() const { return key_; }
  const NumericsParts& numerics_parts() const {
    return parts_;
  }  // to derive the key of a sequence with an adapter

  // Largest counts of one step: {chunk, rows, logits}.
  const program::Counts& maxima() const { return trunk_.maxima(); }

  // One step. The executor's team must have the size given at load. Token ids must be in [0, vocab) (checked
  // by the caller: check_tokens). Results stay valid until the next run of the same program.
  void run_trunk(const program::StepState& step, program::CpuExecutor& executor);
  void run_head(const program::StepState& step, program::CpuExecutor& executor);
  void run(const program::StepState& step,
           program::CpuExecutor& executor);  // trunk, then head when step.logits > 0

  // [vocab], index < step.logits. Not after a step that asked for candidates: those need not write whole
  // rows.
  const float* logits(int64_t index) const;
  // The `most` largest logits of a row, by value descending, then by id, after a step whose
  // StepState.candidates was `most` or more. Returns false when a logit is not a number.
  bool candidates(int64_t index, int most, std::vector<ops::Candidate>& out) const;
  // [hidden]: residual stream after the last layer, before the final norm, of the row of logits(index).
  const float* hidden(int64_t index) const;

  void check_tokens(std::span<const int32_t> ids) const;  // models::check_tokens of this vocabulary

  const program::Program& trunk() const { return trunk_; }  // for `inspect --program` and profiles
  const program::Program& head() const { return head_; }

 protected:
  Model() = default;
  ModelInfo info_;
  MemoryPlan memory_;
  std::vector<MaskClass> mask_classes_;
  NumericsParts parts_;
  NumericsKey key_;
  program::Program trunk_;
  program::Program head_;
  program::ValueId hidden_;
  program::ValueId logits_;
  program::ValueId candidates_;
  int32_t last_candidates_ = 0;  // of the last run of the head
};

}  // namespace kvasir::models
