#include "models/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file_error.h"
#include "base/mapped_file.h"
#include "base/partial_files.h"
#include "base/topology.h"
#include "formats/gguf_writer.h"
#include "formats/random_rows.h"
#include "formats/safetensors_writer.h"
#include "models/config.h"
#include "models/dense_graph.h"
#include "models/gguf_config.h"
#include "models/weights.h"

namespace kvasir::models {
namespace {

using formats::ByteSink;
using formats::StorageFormat;
using nlohmann::json;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// What the graph of a configuration asks for, in its order.
std::vector<TensorRequest> requests_of(const ModelConfig& config, bool untied) {
  WeightStore store(config, untied);
  GraphOptions options;
  options.activations = Activations::f32;
  options.precision = ops::AttentionPrecision::f32;
  options.context = std::max<int64_t>(config.max_position, 16);
  options.kv.resize(static_cast<size_t>(config.layers));
  program::ProgramBuilder trunk, head;
  build_dense_graph(config, store, options, trunk, head);
  return store.requests();
}

// A value of the rule in synth.h, for an element of a tensor that is not a quantized matrix.
class Rule {
 public:
  Rule(const std::string& name, const std::vector<int64_t>& shape, TensorRequest::Kind kind, bool plus_one,
       uint64_t seed)
      : key_(synth_key(name, seed)) {
    if (kind == TensorRequest::Kind::matrix) {
      const int64_t cols = shape.back();
      while (scale_ * scale_ * static_cast<float>(cols) >= 4.0f) scale_ *= 0.5f;
    } else if (name.ends_with(".bias")) {
      scale_ = 0.25f;
    } else if (name.ends_with(".beta")) {
      scale_ = 0.0f;
      offset_ = 0.5f;
    } else if (name.ends_with(".eps")) {
      scale_ = 0.0f;
      offset_ = -1e-6f;
    } else if (kind == TensorRequest::Kind::scalar) {
      scale_ = 0.25f;
      offset_ = 0.5f;
    } else {
      scale_ = 0.25f;
      offset_ = plus_one ? 0.0f : 1.0f;
    }
  }
  float operator()(int64_t index) const {
    return offset_ + scale_ * synth_unit(key_, static_cast<uint64_t>(index));
  }

 private:
  uint64_t key_;
  float scale_ = 1.0f, offset_ = 0.0f;
};

void emit_row(StorageFormat format, std::span<const float> values, const ByteSink& sink) {
  const formats::StorageFormatInfo& info = formats::info(format);
  std::vector<std::byte> row(values.size() / static_cast<size_t>(info.block_elements) *
                             static_cast<size_t>(info.block_bytes));
  formats::encode_row(format, values, row);
  sink(row);
}

float deviation(int64_t cols) {
  return 0.58f / std::sqrt(static_cast<float>(cols));
}

void check_block(const std::string& name, int64_t cols, int64_t block, std::string_view format) {
  if (cols % block != 0)
    throw_error(
        ErrorCode::invalid_input,
        "{}: {} columns are no multiple of the {} elements of a {} block; choose another size or format",
        name, cols, block, format);
}

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  return count;
}

bool is_norm_gain(const TensorRequest& request) {
  return request.kind == TensorRequest::Kind::vector && request.name.ends_with(".weight");
}

bool plus_one(const ModelConfig& config) {
  return config.norm == NormKind::rms_plus_one || config.norm == NormKind::layer_norm_plus_one;
}

// Bytes of a whole tensor by the rule, in a plain format.
formats::TensorProducer plain_producer(const TensorRequest& request, StorageFormat format, bool plus_one_gain,
                                       uint64_t seed) {
  return [=](const ByteSink& sink) {
    const Rule rule(request.name, request.shape, request.kind, plus_one_gain, seed);
    const int64_t cols = request.shape.empty() ? 1 : request.shape.back();
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < request.shape.size(); ++i) rows *= request.shape[i];
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) row[static_cast<size_t>(c)] = rule(r * cols + c);
      emit_row(format, row, sink);
    }
  };
}

formats::SafetensorsDtype plain_dtype(StorageFormat format) {
  const auto dtype = formats::safetensors_dtype_of(format);
  if (!dtype || !formats::can_encode(format))
    throw_error(ErrorCode::invalid_input,
                "safetensors checkpoints are written in f32, f16 or bf16, not in {}", formats::name(format));
  return *dtype;
}

// Refuses, before a list is made of its tensors, a checkpoint of which one embedding and the matrices of the
// layers are more than the disk has left, or whose rows and lists of rows are more than memory.
void check_size(const ModelConfig& m, const SynthFormat& format, const std::filesystem::path& out) {
  const auto hidden = static_cast<double>(m.hidden);
  const double heads = static_cast<double>(m.heads) * static_cast<double>(m.head_dim);
  const double wide = heads + static_cast<double>(m.intermediate);
  const double elements = hidden * (static_cast<double>(m.vocab) + 2 * static_cast<double>(m.layers) * wide);
  const formats::StorageFormatInfo& storage = formats::info(format.matrices);
  const double bytes = format.bits > 0
                           ? elements * format.bits / 8
                           : elements * storage.block_bytes / static_cast<double>(storage.block_elements);
  const auto refuse = [&](std::string_view what, double needed, uint64_t available) {
    throw_error(ErrorCode::resource_exhausted, "{}: at least {:.1f} GB of {} needed, {:.1f} GB available",
                printable(out.string()), needed / 1e9, what, static_cast<double>(available) / 1e9);
  };
  if (const auto disk = free_disk_bytes(out); disk && bytes > static_cast<double>(*disk))
    refuse("disk", bytes, *disk);
  // 16 bytes an entry of Assembled::rows, with norms of the hidden size in each layer.
  const double rows =
      16 * (4 * static_cast<double>(m.layers) * (hidden + wide) + static_cast<double>(m.vocab));
  if (const size_t memory = discover_topology().available_bytes; rows > static_cast<double>(memory))
    refuse("memory", rows, memory);
}

// One part of an MLX triplet: all rows' codes, scales or biases.
enum class MlxField { codes, scales, biases };

// The triplet of a quantized module, its last axis packed.
void add_mlx(const std::string& path, std::vector<int64_t> shape, const formats::MlxQuantization& q,
             Dtype scale_dtype, uint64_t seed, std::vector<formats::SafetensorsToWrite>& tensors) {
  const int64_t cols = shape.back();
  const int64_t rows = elements(shape) / cols;
  const bool affine = q.mode == StorageFormat::mlx_affine;
  const Dtype scales = affine ? scale_dtype : Dtype::u8;
  check_block(path + ".weight", cols, q.group_size, formats::name(q.mode));
  const formats::RandomRows random(q.mode, deviation(cols), synth_key(path + ".weight", seed));
  auto produce = [=](MlxField field) -> formats::TensorProducer {
    return [=](const ByteSink& sink) {
      const auto n = static_cast<size_t>(cols);
      std::vector<std::byte> codes(n * static_cast<size_t>(q.bits) / 8),
          s(n / static_cast<size_t>(q.group_size) * size_of(scales)), b(s.size());
      for (int64_t r = 0; r < rows; ++r) {
        random.fill_mlx(r, cols, q.bits, q.group_size, scales,
                        {codes, s, affine ? std::span<std::byte>(b) : std::span<std::byte>()});
        sink(field == MlxField::codes ? codes : field == MlxField::scales ? s : b);
      }
    };
  };
  const auto stored = affine ? *formats::safetensors_dtype_from_name(scales == Dtype::f32   ? "F32"
                                                                     : scales == Dtype::f16 ? "F16"
                                                                                            : "BF16")
                             : formats::SafetensorsDtype::u8;
  shape.back() = cols * q.bits / 32;
  tensors.push_back({path + ".weight", formats::SafetensorsDtype::u32, shape, produce(MlxField::codes)});
  shape.back() = cols / q.group_size;
  tensors.push_back({path + ".scales", stored, shape, produce(MlxField::scales)});
  if (affine) tensors.push_back({path + ".biases", stored, shape, produce(MlxField::biases)});
}

// The modules that mlx-lm makes of a matrix: of fused experts three stacks.
std::vector<std::pair<std::string, std::vector<int64_t>>> mlx_modules(const TensorRequest& request,
                                                                      const ModelConfig& m) {
  const std::string fused = m.names.experts + ".gate_up_proj", down = m.names.experts + ".down_proj";
  const std::vector<int64_t>& shape = request.shape;
  const auto stacks = [&](const std::string& suffix) {
    return request.name.substr(0, request.name.size() - suffix.size()) + m.names.stacked_experts;
  };
  if (request.name.ends_with(fused)) {
    const std::vector<int64_t> half = {shape.at(0), shape.at(1) / 2, shape.at(2)};
    return {{stacks(fused) + ".gate_proj", half}, {stacks(fused) + ".up_proj", half}};
  }
  if (request.name.ends_with(down)) return {{stacks(down) + ".down_proj", shape}};
  KVASIR_CHECK(request.name.ends_with(".weight"));
  return {{request.name.substr(0, request.name.size() - 7), shape}};
}

void synthesize_folder(json config, const SynthFormat& format, uint64_t seed,
                       const std::filesystem::path& out) {
  const ModelConfig m = parse_config(config, nullptr, "synthetic configuration");
  check_size(m, format, out);
  const bool untied = m.tie != TieRule::always;
  const bool mlx = format.container == SynthFormat::Container::mlx;
  std::vector<formats::SafetensorsToWrite> tensors;
  std::set<std::string> done;
  const StorageFormat plain = mlx ? StorageFormat::f16 : format.matrices;
  // mlx-lm keeps routers in 8 bits, whatever the mode of the rest.
  constexpr formats::MlxQuantization kRouter = {StorageFormat::mlx_affine, 8, 64};
  const formats::MlxQuantization sizes = {format.matrices, format.bits, format.group_size};
  std::vector<std::string> routers;
  for (const TensorRequest& request : requests_of(m, untied)) {
    if (!done.insert(request.name).second) continue;
    if (!mlx || request.kind != TensorRequest::Kind::matrix) {
      tensors.push_back({request.name, plain_dtype(plain), request.shape,
                         plain_producer(request, plain, is_norm_gain(request) && plus_one(m), seed)});
      continue;
    }
    for (const auto& [path, shape] : mlx_modules(request, m)) {
      const bool router = path.ends_with("." + m.names.router);
      if (router) routers.push_back(path);
      add_mlx(path, shape, router ? kRouter : sizes, format.scales, seed, tensors);
    }
  }
  if (mlx) {
    json& section = config["quantization"];
    section = {{"bits", sizes.bits},
               {"group_size", sizes.group_size},
               {"mode", std::string(formats::name(sizes.mode)).substr(4)}};
    // Without a mode, as mlx-lm writes it.
    for (const std::string& path : routers)
      section[path] = {{"group_size", kRouter.group_size}, {"bits", kRouter.bits}};
  }
  config["torch_dtype"] = plain == StorageFormat::f32   ? "float32"
                          : plain == StorageFormat::f16 ? "float16"
                                                        : "bfloat16";
  PartialFile made, weights;  // until the checkpoint is whole
  if (!std::filesystem::exists(out)) {
    made.watch(out);
    weights.watch(out / "model.safetensors");
  }
  std::filesystem::create_directories(out);
  formats::write_safetensors_model(out, std::move(tensors), {{"format", mlx ? "mlx" : "pt"}});
  write_file_atomically(out / "config.json", config.dump(2) + "\n");
}

void add_vector(formats::GgufWriter& writer, const std::string& name, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  writer.add_tensor(name, StorageFormat::f32, {static_cast<int64_t>(values.size())},
                    formats::produce_bytes(std::move(bytes)));
}

// config.json as GGUF metadata.
void write_metadata(const ModelConfig& m, const json& t, std::string_view architecture,
                    formats::GgufWriter& writer) {
  const std::string a(architecture);
  auto u32 = [&](const std::string& key, int64_t value) {
    writer.set_u32(a + "." + key, static_cast<uint32_t>(value));
  };
  auto f32 = [&](const std::string& key, double value) {
    writer.set_f32(a + "." + key, static_cast<float>(value));
  };
  writer.set_string("general.architecture", a);
  writer.set_string("general.name", "synthetic " + m.model_type);
  u32("block_count", m.layers);
  u32("context_length", m.max_position);
  u32("embedding_length", m.hidden);
  u32("feed_forward_length", m.intermediate);
  u32("attention.head_count", m.heads);
  u32("attention.head_count_kv", m.kv_heads);
  u32("attention.key_length", m.head_dim);
  u32("attention.value_length", m.head_dim);
  u32("vocab_size", m.vocab);
  const bool layer_norm = m.norm == NormKind::layer_norm || m.norm == NormKind::layer_norm_plus_one ||
                          m.norm == NormKind::layer_norm_no_affine;
  f32(layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", m.epsilon);
  if (!m.ropes.empty()) {
    const RopeConfig& rope = m.ropes.front();
    const LayerConfig* full = nullptr;
    for (const LayerConfig& layer : m.layer)
      if (!layer.window && layer.rope >= 0 && full == nullptr) full = &layer;
    const RopeConfig& main = full != nullptr ? m.ropes[static_cast<size_t>(full->rope)] : rope;
    f32("rope.freq_base", main.theta);
    u32("rope.dimension_count", main.dims);
    if (main.kind == RopeKind::linear || main.kind == RopeKind::yarn) {
      writer.set_string(a + ".rope.scaling.type", main.kind == RopeKind::linear ? "linear" : "yarn");
      f32("rope.scaling.factor", main.factor);
      if (main.kind == RopeKind::yarn) {
        u32("rope.scaling.original_context_length", static_cast<int64_t>(main.original_max_position));
        f32("rope.scaling.yarn_beta_fast", main.beta_fast);
        f32("rope.scaling.yarn_beta_slow", main.beta_slow);
        // Of this family alone the converter keeps mscale_all_dim.
        const double all =
            m.model_type == "ministral3" ? t["rope_parameters"].value("mscale_all_dim", 0.0) : 0.0;
        if (all != 0) f32("rope.scaling.yarn_log_multiplier", all);
        const double own = yarn_magnitude(main.factor, 1) / yarn_magnitude(main.factor, all);
        if (main.attention_factor != own) f32("rope.scaling.attn_factor", main.attention_factor / own);
      }
    } else if (main.kind == RopeKind::llama3) {
      // The converter stores the factors of the divisors.
      std::vector<float> factors;
      const std::vector<double> divisors = rope_divisors(main, m.max_position);
      for (size_t i = 0; i < divisors.size(); ++i)
        factors.push_back(
            static_cast<float>(divisors[i] / std::pow(main.theta, 2.0 * static_cast<double>(i) /
                                                                      static_cast<double>(main.dims))));
      add_vector(writer, "rope_freqs.weight", factors);
    } else if (main.kind == RopeKind::longrope) {
      writer.set_string(a + ".rope.scaling.type", "longrope");
      u32("rope.scaling.original_context_length", static_cast<int64_t>(main.original_max_position));
      f32("rope.scaling.attn_factor", main.attention_factor);
      add_vector(writer, "rope_factors_long.weight", {main.long_factor.begin(), main.long_factor.end()});
      add_vector(writer, "rope_factors_short.weight", {main.short_factor.begin(), main.short_factor.end()});
    } else if (main.kind != RopeKind::standard) {
      throw_error(ErrorCode::unsupported,
                  "rope type {} has no GGUF form that synth writes; choose safetensors", name(main.kind));
    }
  }
  std::vector<bool> slides;
  int window = 0;
  for (const LayerConfig& layer : m.layer) {
    slides.push_back(layer.window.has_value());
    if (layer.window) window = *layer.window;
  }
  if (window > 0) {
    u32("attention.sliding_window", window);
    if (m.model_type != "gemma3_text") writer.set_bools(a + ".attention.sliding_window_pattern", slides);
  }
  if (m.attention_softcap) f32("attn_logit_softcapping", *m.attention_softcap);
  if (m.final_softcap) f32("final_logit_softcapping", *m.final_softcap);
  if (m.experts.count > 0) {
    u32("expert_count", m.experts.count);
    u32("expert_used_count", m.experts.used);
    u32("expert_feed_forward_length", m.experts.intermediate);
  }
  if (m.model_type == "gemma3_text") {
    u32("attention.sliding_window_pattern", t.value("sliding_window_pattern", 6));
    f32("rope.freq_base_swa", t.value("rope_local_base_freq", 10000.0));
  } else if (m.model_type == "granite") {
    f32("attention.scale", m.attention_scale);
    f32("embedding_scale", *m.embed_multiplier);
    f32("residual_scale", *m.residual_multiplier);
    f32("logit_scale", *m.logits_divisor);
  } else if (m.model_type == "ministral3") {
    f32("attention.temperature_scale", m.query_scale_beta);
    if (m.ropes.front().kind != RopeKind::yarn)
      u32("rope.scaling.original_context_length", static_cast<int64_t>(m.query_scale_original));
  } else if (m.model_type == "minicpm") {
    f32("embedding_scale", *m.embed_multiplier);
    f32("residual_scale", *m.residual_multiplier);
    f32("logit_scale", *m.head_input_divisor);
  } else if (m.logits_multiplier) {
    f32("logit_scale", *m.logits_multiplier);
  }
  if (m.clip_qkv) f32("attention.clamp_kqv", *m.clip_qkv);
  writer.set_string("tokenizer.ggml.model", "no_vocab");
}

// The publisher's tensor and the rows of it that make up a GGUF tensor.
struct Assembled {
  std::vector<int64_t> shape;
  TensorRequest::Kind kind = TensorRequest::Kind::matrix;
  bool add_one = false;
  bool name_has_experts = false;  // stored as [experts, rows, cols]
  std::vector<std::pair<size_t, int64_t>>
      rows;  // of each stored row (element of a vector): publisher's request, row
};

void synthesize_gguf(const json& config, const SynthFormat& format, uint64_t seed,
                     const std::filesystem::path& out) {
  const ModelConfig m = parse_config(config, nullptr, "synthetic configuration");
  check_size(m, format, out);
  const GgufArchitecture* architecture = gguf_architecture_of(m.model_type);
  if (architecture == nullptr)
    throw_error(ErrorCode::unsupported, "{} has no GGUF architecture; choose safetensors", m.model_type);
  // Readers of this architecture know of no windows, and would attend to everything.
  for (const LayerConfig& layer : m.layer)
    if (layer.window && architecture->name == "llama")
      throw_error(
          ErrorCode::unsupported,
          "{} is stored as GGUF's architecture llama, which has no sliding windows, and sliding_window is "
          "{}; set it to null, or choose safetensors",
          m.model_type, *layer.window);
  const bool untied = m.tie != TieRule::always;
  const ModelConfig g = as_gguf(m, architecture->permuted_qk);
  const std::vector<TensorRequest> theirs = requests_of(m, untied), ours = requests_of(g, untied);

  // Both lists walk the same graph: packed row p of a request is row map[p] of either side's tensor. Where
  // theirs are a tensor a head, ours is their stack.
  std::map<std::string, Assembled> tensors;
  std::map<std::string, std::vector<float>> scalars;  // metadata, one a layer
  std::vector<std::string> order;
  auto parts_of = [](const TensorRequest& r) {
    return r.kind == TensorRequest::Kind::matrix ? r.shape[0] : elements(r.shape);
  };
  auto asked = [&](const TensorRequest& r) {
    return r.map.empty() ? parts_of(r) : static_cast<int64_t>(r.map.size());
  };
  size_t next = 0;  // of theirs
  for (const TensorRequest& to : ours) {
    const TensorRequest& from = theirs.at(next);
    if (to.kind == TensorRequest::Kind::scalar) {
      const Rule rule(from.name, from.shape, from.kind, false, seed);
      scalars["xielu" + to.name.substr(to.name.rfind('.'))].push_back(rule(0));
      ++next;
      continue;
    }
    auto [found, fresh] = tensors.try_emplace(to.name);
    Assembled& tensor = found->second;
    if (fresh) {
      order.push_back(to.name);
      tensor.shape = to.shape;
      tensor.kind = to.kind;
      tensor.name_has_experts = to.name.ends_with("_exps.weight");
      tensor.add_one = is_norm_gain(from) && plus_one(m);
      tensor.rows.resize(static_cast<size_t>(parts_of(to)), {0, -1});
    }
    for (int64_t p = 0; p < asked(to); ++next) {
      const TensorRequest& part = theirs.at(next);
      for (int64_t r = 0; r < asked(part); ++r, ++p) {
        const int64_t at = to.map.empty() ? p : to.map.at(static_cast<size_t>(p));
        tensor.rows.at(static_cast<size_t>(at)) = {next,
                                                   part.map.empty() ? r : part.map[static_cast<size_t>(r)]};
      }
    }
  }
  KVASIR_CHECK(next == theirs.size());

  formats::GgufWriter writer;
  write_metadata(m, config, architecture->name, writer);
  for (const auto& [key, values] : scalars) writer.set_f32s(key, values);
  for (const std::string& name : order) {
    const Assembled& tensor = tensors[name];
    const bool matrix = tensor.kind == TensorRequest::Kind::matrix;
    const int64_t cols = matrix ? tensor.shape.back() : static_cast<int64_t>(tensor.rows.size());
    const StorageFormat storage = matrix ? format.matrices : StorageFormat::f32;
    const int block = formats::info(storage).block_elements;
    if (block <= 0)
      throw_error(ErrorCode::invalid_input, "{} is no format of GGUF files", formats::name(storage));
    check_block(name, cols, block, formats::name(storage));
    const bool by_rule = block == 1;
    const auto produce = [&theirs, tensor, cols, storage, seed, matrix, by_rule](const ByteSink& sink) {
      const auto rows = static_cast<int64_t>(matrix ? tensor.rows.size() : 1);
      const formats::StorageFormatInfo& info = formats::info(storage);
      std::vector<std::byte> bytes(static_cast<size_t>(cols / info.block_elements) *
                                   static_cast<size_t>(info.block_bytes));
      std::vector<float> values(static_cast<size_t>(cols));
      // Of the publisher's tensors that the rows come from, by request.
      std::map<size_t, formats::RandomRows> random;
      std::map<size_t, Rule> rules;
      const auto rule_of = [&](size_t request) -> const Rule& {
        const TensorRequest& from = theirs[request];
        const auto found = rules.find(request);
        if (found != rules.end()) return found->second;
        return rules.try_emplace(request, from.name, from.shape, from.kind, tensor.add_one, seed)
            .first->second;
      };
      for (int64_t r = 0; r < rows; ++r) {
        if (matrix && !by_rule) {
          const auto& [request, row] = tensor.rows[static_cast<size_t>(r)];
          auto found = random.find(request);
          if (found == random.end())
            found =
                random.try_emplace(request, storage, deviation(cols), synth_key(theirs[request].name, seed))
                    .first;
          found->second.fill(row, cols, bytes);
          sink(bytes);
          continue;
        }
        for (int64_t c = 0; c < cols; ++c) {
          const auto& [request, row] = tensor.rows[static_cast<size_t>(matrix ? r : c)];
          values[static_cast<size_t>(c)] =
              rule_of(request)(matrix ? row * cols + c : row) + (tensor.add_one ? 1.0f : 0.0f);
        }
        emit_row(storage, values, sink);
      }
    };
    std::vector<int64_t> ne = {cols};
    if (!matrix)
      ne.assign(tensor.shape.rbegin(), tensor.shape.rend());
    else if (tensor.name_has_experts)
      ne.insert(ne.end(), {elements(tensor.shape) / cols / m.experts.count, m.experts.count});
    else
      ne.push_back(tensor.shape[0]);
    writer.add_tensor(name, storage, ne, produce);
  }
  writer.write(out);
}

}  // namespace

float synth_unit(uint64_t key, uint64_t index) {
  const uint64_t bits = mix((key + index + 1) * 0x9E3779B97F4A7C15u) >> 40;
  return static_cast<float>(static_cast<int64_t>(bits) - (int64_t{1} << 23)) * 0x1p-23f;
}

uint64_t synth_key(std::string_view name, uint64_t seed) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash ^ (seed * 0x9E3779B97F4A7C15u);
}

SynthFormat synth_format(std::string_view text) {
  auto unknown = [&]() {
    throw_error(ErrorCode::invalid_input,
                "synth format {} is unknown; known: f32, f16, bf16, mlx-affine-BITS-GROUP, mlx-mxfp4, "
                "mlx-mxfp8, mlx-nvfp4, "
                "gguf-FORMAT (gguf-q4_0, gguf-q4_K, ...)",
                printable(text));
  };
  SynthFormat format;
  if (text == "f32" || text == "f16" || text == "bf16") {
    format.matrices = *formats::storage_format_from_name(text);
  } else if (text.starts_with("gguf-")) {
    const auto storage = formats::storage_format_from_name(text.substr(5));
    if (!storage || formats::info(*storage).block_elements == 0) unknown();
    format.container = SynthFormat::Container::gguf;
    format.matrices = *storage;
  } else if (text == "mlx-mxfp4" || text == "mlx-mxfp8" || text == "mlx-nvfp4") {
    format.container = SynthFormat::Container::mlx;
    format.matrices = *formats::storage_format_from_name(text);
    const formats::MlxQuantization sizes = formats::mode_defaults(format.matrices);
    format.bits = sizes.bits;
    format.group_size = sizes.group_size;
  } else if (text.starts_with("mlx-affine-")) {
    const std::string_view sizes = text.substr(11);
    const size_t dash = sizes.find('-');
    auto number = [](std::string_view digits) {
      int value = 0;
      for (const char c : digits)
        value = c >= '0' && c <= '9' && value < 1000 ? value * 10 + (c - '0') : 100000;
      return digits.empty() ? 100000 : value;
    };
    if (dash == std::string_view::npos) unknown();
    format.container = SynthFormat::Container::mlx;
    format.matrices = StorageFormat::mlx_affine;
    format.bits = number(sizes.substr(0, dash));
    format.group_size = number(sizes.substr(dash + 1));
    constexpr int kBits[] = {2, 3, 4, 5, 6, 8}, kGroups[] = {32, 64, 128};
    if (std::find(std::begin(kBits), std::end(kBits), format.bits) == std::end(kBits) ||
        std::find(std::begin(kGroups), std::end(kGroups), format.group_size) == std::end(kGroups))
      unknown();
  } else {
    unknown();
  }
  return format;
}

void synthesize(const json& config, const SynthFormat& format, uint64_t seed,
                const std::filesystem::path& out) {
  if (format.container == SynthFormat::Container::gguf)
    synthesize_gguf(config, format, seed, out);
  else
    synthesize_folder(config, format, seed, out);
}

}  // namespace kvasir::models
