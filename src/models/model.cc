#include "models/model.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "formats/json.h"
#include "kv/cache_shape.h"
#include "models/config.h"
#include "models/dense_graph.h"
#include "models/gguf_config.h"
#include "models/profiles.h"
#include "models/weights.h"

namespace kvasir::models {
namespace {

using formats::Checkpoint;

// Everything that is decided before a weight is read.
struct Opened {
  Checkpoint checkpoint;
  ModelConfig config;
  CanonicalRecord record;
  Resolved resolved;
  std::string implementation;  // the registry's answer
};

Opened open_model(const std::filesystem::path& path, const LoadOptions& options) {
  Checkpoint checkpoint = Checkpoint::open(path);
  ModelConfig config;
  if (checkpoint.gguf() != nullptr)
    config = parse_gguf_config(*checkpoint.gguf());
  else
    config =
        parse_config(checkpoint.config(), checkpoint.generation_config(), (path / "config.json").string());
  CanonicalRecord record;
  if (config.gguf) {
    record = record_of(config);
  } else {
    nlohmann::json kv_config;
    if (checkpoint.files().kv_config) kv_config = formats::read_json_file(*checkpoint.files().kv_config);
    record =
        record_of(checkpoint.config(), kv_config, checkpoint.quantization(), (path / "config.json").string());
  }
  Resolved resolved = resolve_profile(
      config, record, {.profiles = options.profiles, .artifact = artifact_identity(checkpoint.path())});
  assert_resolved(config, record, resolved);
  const Implementation& implementation = Registry::built_in().select(resolved);
  checkpoint.read_headers();
  if (config.other_names && checkpoint.find(config.other_names->embed + ".weight") != nullptr)
    config.names = *config.other_names;
  return {std::move(checkpoint), std::move(config), std::move(record), std::move(resolved),
          implementation.id};
}

void check_options(const LoadOptions& options) {
  auto require = [](bool ok, std::string_view name, int64_t value, std::string_view expected) {
    if (!ok) throw_error(ErrorCode::invalid_input, "{} is {}, expected {}", name, value, expected);
  };
  require(options.threads >= 1, "threads", options.threads, "at least 1");
  require(options.rows >= 1, "batch", options.rows, "at least 1");
  require(options.chunk >= options.rows, "chunk", options.chunk, "at least the batch");
  require(options.logits >= 0 && options.logits <= options.chunk, "logits rows", options.logits,
          "0 to the chunk");
  require(options.context >= 0 && options.context <= 2147483647, "context", options.context,
          "a whole number of tokens");
}

int64_t context_limit(const ModelConfig& config, const LoadOptions& options, const std::string& path) {
  if (options.context > 0) return options.context;
  if (config.max_position > 0) return config.max_position;
  throw_error(ErrorCode::invalid_input,
              "{}: the model declares no context limit (max_position_embeddings); give one with --context",
              path);
}

// What `automatic` comes to for this model: the mode of its first projection's format. Other weights may
// differ (a bf16 head beside int8 layers); attention's operands and what is reported follow this one.
Activations resolved_mode(const ModelConfig& config, WeightStore& weights, const LoadOptions& options) {
  if (options.activations != Activations::automatic) return options.activations;
  std::string path =
      config.names.layer + (config.fused_qkv == FusedQkv::none ? config.names.q : config.names.qkv);
  path.replace(path.find("{i}"), 3, "0");
  switch (ops::automatic_mode(weights.format(path))) {
    case ops::ActivationMode::f32:
      return Activations::f32;
    case ops::ActivationMode::bf16:
      return Activations::bf16;
    case ops::ActivationMode::int8:
      return Activations::int8;
    case ops::ActivationMode::int16:
      return Activations::int16;
  }
  return Activations::f32;
}

struct Layers {
  std::vector<KvGroup> groups;
  std::vector<MaskClass> masks;
  std::vector<LayerKv> kv;
  size_t kv_bytes = 0;
  kv::CacheShape shape;
  kv::Scheme scheme;
};

Layers plan_layers(const ModelConfig& config, const LoadOptions& options, const std::filesystem::path& path,
                   int64_t context, bool f32) {
  Layers out;
  std::vector<kv::SchemeLayer> layers;
  for (int64_t i = 0; i < config.layers; ++i) {
    kv::SchemeLayer layer;
    layer.geometry.layer = static_cast<int>(i);
    layer.geometry.kv_heads = static_cast<int>(config.kv_heads);
    layer.geometry.head_dim_k = layer.geometry.head_dim_v = static_cast<int>(config.head_dim);
    layer.geometry.window = config.layer[static_cast<size_t>(i)].window;
    layers.push_back(layer);
  }
  kv::SchemeRequest request = options.kv;
  request.default_plain = f32 ? Dtype::f32 : Dtype::bf16;
  if (request.model_folder.empty())
    request.model_folder = std::filesystem::is_directory(path) ? path : path.parent_path();
  out.scheme = kv::resolve_scheme(request, layers);
  if (out.scheme.start > 0 && out.scheme.start >= context)
    throw_error(ErrorCode::invalid_input,
                "--kv-start {}: a sequence holds {} tokens (--context), so none would ever be encoded; leave "
                "--kv out for a plain cache",
                out.scheme.start, context);
  const std::vector<kv::LayerGeometry>& owners = out.scheme.owners;
  out.shape = out.scheme.shape(options.page_tokens, 0, options.layers_apart);
  const kv::CacheShape& shape = out.shape;
  out.kv.resize(owners.size());
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    KvGroup group;
    group.geometry = shape.groups[g].geometry;
    for (int owner : shape.groups[g].owners) group.layers.push_back(owners[static_cast<size_t>(owner)].layer);
    const auto layout = kv::PageLayout::make(group.geometry, options.isa);
    group.page_bytes = layout->page_bytes();
    group.bytes_per_token = (group.page_bytes + static_cast<size_t>(options.page_tokens) - 1) /
                            static_cast<size_t>(options.page_tokens);
    // Layers of one group see the same keys.
    const auto same = std::find_if(out.masks.begin(), out.masks.end(), [&](const MaskClass& mask) {
      return mask.window == group.geometry.window;
    });
    const auto mask = static_cast<int>(same - out.masks.begin());
    if (same == out.masks.end()) out.masks.push_back({group.geometry.window});
    for (size_t i = 0; i < group.layers.size(); ++i)
      out.kv[static_cast<size_t>(group.layers[i])] = {static_cast<int>(g), static_cast<int>(i), mask};
    out.groups.push_back(std::move(group));
  }
  const kv::Workload workload{.context = context, .batch = options.rows, .chunk = options.chunk};
  const auto layouts = kv::layouts_for(options.isa);
  out.kv_bytes = kv::plan_bytes(shape, layouts, kv::plan_capacity(shape, layouts, workload)).bytes;
  return out;
}

struct Recorded {
  program::Program trunk, head;
  std::set<ops::ActivationMode> modes;  // of products
};

Recorded record(const ModelConfig& config, WeightStore& weights, const GraphOptions& graph,
                const LoadOptions& options) {
  program::ProgramBuilder trunk, head;
  std::set<ops::ActivationMode> modes = build_dense_graph(config, weights, graph, trunk, head);
  weights.audit();
  const int logits = options.logits > 0 ? options.logits : options.rows;
  const program::Counts maxima{options.chunk, options.rows, logits};
  return {std::move(trunk).plan(maxima, options.threads), std::move(head).plan(maxima, options.threads),
          std::move(modes)};
}

// What both programs take from one arena.
size_t workspace_bytes(const Recorded& programs) {
  return Arena::planned(Arena::planned(0, programs.trunk.workspace_bytes()), programs.head.workspace_bytes());
}

// The result of planning, and what loading goes on with.
struct Planned {
  GraphOptions graph;
  Layers layers;
  MemoryPlan memory;
  ModelInfo info;
  std::optional<formats::PackFile> pack;    // to be mapped in place of packing
  std::string note;                         // why a pack file that is there is not used
  std::vector<formats::PackEntry> entries;  // of packed weights, without digests
};

Planned plan_model(Opened& opened, const LoadOptions& options, const std::filesystem::path& path) {
  check_options(options);
  Planned planned;
  const ModelConfig& config = opened.config;
  WeightStore weights(opened.checkpoint, config);
  const int64_t context = context_limit(config, options, path.string());
  const Activations mode = resolved_mode(config, weights, options);
  const bool f32 = mode == Activations::f32;
  planned.layers = plan_layers(config, options, path, context, f32);
  planned.graph.isa = options.isa;
  planned.graph.activations = options.activations;
  planned.graph.precision = f32 ? ops::AttentionPrecision::f32 : ops::AttentionPrecision::bf16;
  planned.graph.context = context;
  planned.graph.fuse = options.fuse;
  planned.graph.kv = planned.layers.kv;
  const Recorded programs = record(config, weights, planned.graph, options);

  planned.memory.weights_bytes = weights.bytes();
  planned.memory.stored_bytes = weights.stored_bytes();
  planned.memory.largest_weight_bytes = weights.largest();
  planned.entries = weights.entries();
  planned.pack =
      find_pack(options.pack, opened.checkpoint, config, planned.memory.weights_bytes, planned.note);
  if (planned.pack) planned.memory.pack_file = planned.pack->path();
  planned.memory.workspace_bytes = workspace_bytes(programs);
  planned.memory.kv_groups = planned.layers.groups;
  planned.memory.kv_bytes = planned.layers.kv_bytes;
  planned.memory.kv_shape = planned.layers.shape;
  planned.memory.kv_key = planned.layers.scheme.key;
  planned.memory.kv_notes = planned.layers.scheme.notes;

  ModelInfo& info = planned.info;
  info.model_type = config.model_type;
  info.implementation = opened.implementation;
  info.profile = opened.resolved.profile.id;
  info.artifact = opened.resolved.artifact;
  info.config_fingerprint = opened.resolved.config_fingerprint;
  info.specialization_fingerprint = specialization_fingerprint(opened.record);
  info.format = std::string(formats::name(opened.checkpoint.kind()));
  info.weight_formats = weights.formats_text();
  info.activations = mode;
  info.isa = options.isa;
  info.layers = static_cast<int>(config.layers);
  info.hidden = config.hidden;
  info.vocab = config.vocab;
  info.parameters = weights.parameters();
  info.model_context = config.max_position > 0 ? config.max_position : context;
  info.context = context;
  info.eos_ids = config.eos_ids;
  info.bos_id = config.bos_id;
  const auto found = opened.checkpoint.warnings();  // of the plan's look at the shapes, too
  info.warnings.assign(found.begin(), found.end());
  info.warnings.insert(info.warnings.end(), config.warnings.begin(), config.warnings.end());
  if (options.accept) options.accept(info);
  return planned;
}

class PackedModel final : public Model {
 public:
  PackedModel(Opened& opened, Planned&& planned, const LoadOptions& options)
      : pack_(std::move(planned.pack)) {
    info_ = planned.info;
    memory_ = planned.memory;
    mask_classes_ = planned.layers.masks;

    weights_ = std::make_unique<WeightStore>(opened.checkpoint, opened.config);
    ThreadTeam team(options.threads, options.cpus);
    if (options.note) {
      for (const std::string& warning : info_.warnings) options.note(warning);
      if (!planned.note.empty()) options.note(planned.note);
    }
    Recorded programs;
    if (pack_) {
      try {
        programs = record_mapped(opened, planned, options, team);
      } catch (const Error& error) {
        // Found only now, since a plan reads no weights.
        if (options.pack.use != PackChoice::Use::automatic || error.code() != ErrorCode::corrupt_file) throw;
        if (options.note) options.note(packed_in_memory(error.what()));
        weights_ = std::make_unique<WeightStore>(opened.checkpoint, opened.config);
        pack_.reset();
        memory_.pack_file.clear();
      }
    }
    if (!pack_) {
      weights_arena_ = Arena(memory_.weights_bytes, options.ledger, MemoryCategory::weights);
      weights_->load_into(weights_arena_, team, memory_.weights_bytes, options.progress);
      programs = record(opened.config, *weights_, planned.graph, options);
      KVASIR_CHECK_MSG(weights_arena_.used() == memory_.weights_bytes, "weights took {} bytes, planned {}",
                       weights_arena_.used(), memory_.weights_bytes);
    }
    trunk_ = std::move(programs.trunk);
    head_ = std::move(programs.head);
    workspace_ = Arena(memory_.workspace_bytes, options.ledger, MemoryCategory::workspace);
    trunk_.allocate(workspace_);
    head_.allocate(workspace_);
    KVASIR_CHECK(workspace_.used() == memory_.workspace_bytes);
    hidden_ = head_.output("hidden");
    logits_ = head_.output("logits");
    candidates_ = head_.output("candidates");
    for (const auto& [input, value] : head_.inputs()) head_.bind(value, trunk_.data(trunk_.output(input)));

    parts_.weights = weights_->digest();
    parts_.config = opened.config.canonical_text();
    // Equal bits, equal keys: `auto` is one of the others where all products agree.
    parts_.activations =
        programs.modes.size() == 1 ? ops::name(*programs.modes.begin()) : name(options.activations);
    for (const KvGroup& group : memory_.kv_groups) parts_.kv.push_back(group.geometry);
    parts_.kv_start = memory_.kv_shape.start;
    parts_.isa = options.isa;
    parts_.rope = regime(opened.config, info_.context);
    key_ = NumericsKey(parts_);
    weights_->release_source();
  }

  ~PackedModel() override {
    if (mapped_ledger_ != nullptr) mapped_ledger_->remove(MemoryCategory::weights, memory_.weights_bytes);
  }

 private:
  // Mapped pages are memory that the model needs, shared or not: the ledger holds them like packed ones.
  Recorded record_mapped(Opened& opened, const Planned& planned, const LoadOptions& options,
                         ThreadTeam& team) {
    weights_->map_from(*pack_, team, memory_.weights_bytes, options.progress);
    Recorded programs = record(opened.config, *weights_, planned.graph, options);
    KVASIR_CHECK(weights_->bytes() == memory_.weights_bytes);
    if (options.ledger != nullptr) options.ledger->add(MemoryCategory::weights, memory_.weights_bytes);
    mapped_ledger_ = options.ledger;
    return programs;
  }

  static std::string regime(const ModelConfig& config, int64_t context) {
    std::string text;
    for (const RopeConfig& rope : config.ropes)
      text += (text.empty() ? "" : ",") + rope_regime(rope, context);
    return text;
  }

  Arena weights_arena_;
  std::optional<formats::PackFile> pack_;  // in place of the arena
  MemoryLedger* mapped_ledger_ = nullptr;
  std::unique_ptr<WeightStore> weights_;  // owns the packed matrices that the programs' ops point to
  Arena workspace_;
};

}  // namespace

std::string_view name(Activations mode) {
  switch (mode) {
    case Activations::automatic:
      return "auto";
    case Activations::f32:
      return "f32";
    case Activations::bf16:
      return "bf16";
    case Activations::int8:
      return "int8";
    case Activations::int16:
      return "int16";
  }
  return "?";
}

namespace {
constexpr std::array kActivations = {Activations::automatic, Activations::f32, Activations::bf16,
                                     Activations::int8, Activations::int16};
}  // namespace

std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const Activations mode : kActivations) names.emplace_back(name(mode));
  return names;
}

Activations parse_activations(std::string_view text, std::string_view what) {
  for (const Activations mode : kActivations)
    if (name(mode) == text) return mode;
  throw_error(ErrorCode::invalid_input, "{}: '{}' is not one of {}", what, printable(text),
              fmt::join(activation_names(), ", "));
}

MemoryPlan Model::plan(const std::filesystem::path& path, const LoadOptions& options, ModelInfo* info) {
  Opened opened = open_model(path, options);
  Planned planned = plan_model(opened, options, path);
  if (info != nullptr) *info = planned.info;
  return planned.memory;
}

std::unique_ptr<Model> Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  Opened opened = open_model(path, options);
  Planned planned = plan_model(opened, options, path);
  return std::make_unique<PackedModel>(opened, std::move(planned), options);
}

size_t Model::write_pack(const std::filesystem::path& path, const LoadOptions& options,
                         const std::filesystem::path& out) {
  Opened opened = open_model(path, options);
  LoadOptions plain = options;
  plain.pack = {};
  const Planned planned = plan_model(opened, plain, path);
  // Taken before any tensor is read: a checkpoint that changes meanwhile gives a file that does not match.
  formats::PackContents contents;
  contents.layout_version = ops::kComputeLayoutVersion;
  contents.source = source_identity(opened.checkpoint, opened.config);
  contents.data_bytes = planned.memory.weights_bytes;
  contents.entries = planned.entries;
  formats::PackWriter writer(out, std::move(contents));
  WeightStore weights(opened.checkpoint, opened.config);
  ThreadTeam team(options.threads, options.cpus);
  weights.stream_to([&](size_t offset, std::span<const std::byte> bytes) { writer.write(offset, bytes); },
                    planned.memory.largest_weight_bytes, options.ledger, team, planned.memory.weights_bytes,
                    options.progress);
  record(opened.config, weights, planned.graph, plain);
  KVASIR_CHECK(weights.bytes() == planned.memory.weights_bytes);
  return writer.finish(weights.entries());
}

void Model::run_trunk(const program::StepState& step, program::CpuExecutor& executor) {
  executor.run(trunk_, step);
}

void Model::run_head(const program::StepState& step, program::CpuExecutor& executor) {
  executor.run(head_, step);
  last_candidates_ = step.candidates;
}

void Model::run(const program::StepState& step, program::CpuExecutor& executor) {
  run_trunk(step, executor);
  if (step.logits > 0) run_head(step, executor);
}

const float* Model::logits(int64_t index) const {
  KVASIR_CHECK(last_candidates_ == 0);
  const program::Value& value = head_.values()[static_cast<size_t>(logits_.index)];
  return reinterpret_cast<const float*>(head_.data(logits_) + static_cast<size_t>(index) * value.stride);
}

bool Model::candidates(int64_t index, int most, std::vector<ops::Candidate>& out) const {
  KVASIR_CHECK(most > 0 && most <= last_candidates_);
  const program::Value& value = head_.values()[static_cast<size_t>(candidates_.index)];
  bool not_a_number = false;
  ops::merge_candidates(ops::CandidateSegments(info_.vocab),
                        head_.data(candidates_) + static_cast<size_t>(index) * value.stride, most, out,
                        not_a_number);
  return !not_a_number;
}

const float* Model::hidden(int64_t index) const {
  const program::Value& value = head_.values()[static_cast<size_t>(hidden_.index)];
  return reinterpret_cast<const float*>(head_.data(hidden_) + static_cast<size_t>(index) * value.stride);
}

void check_tokens(std::span<const int32_t> ids, int64_t vocab, std::string_view source) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw_error(ErrorCode::invalid_input, "{}{}token {} at position {} is outside the vocabulary of {}",
                  printable(source), source.empty() ? "" : ": ", ids[i], i, vocab);
}

void Model::check_tokens(std::span<const int32_t> ids) const {
  models::check_tokens(ids, info_.vocab);
}

}  // namespace kvasir::models
