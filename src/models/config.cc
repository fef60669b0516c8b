#include "models/config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/descriptors.h"
#include "models/profiles.h"

namespace kvasir::models {
namespace {

using ops::ActivationFunction;

constexpr char kEos[] = "eos_token_id", kBos[] = "bos_token_id";

// Older or private spellings of fields, rewritten to the common ones, and defaults of classes whose published
// checkpoints rely on them.
void complete_fields(std::string_view model_type, nlohmann::json& t) {
  auto move = [&](const char* from, const char* to) {
    if (t.contains(from) && !t.contains(to)) t[to] = t[from];
  };
  if (model_type == "exaone") {
    move("num_layers", "num_hidden_layers");
    move("activation_function", "hidden_act");
  } else if (model_type == "lille-130m") {
    move("n_embd", "hidden_size");
    move("n_head", "num_attention_heads");
    move("n_kv_heads", "num_key_value_heads");
    move("n_layer", "num_hidden_layers");
    if (t.contains("hidden_size") && t["hidden_size"].is_number_integer() &&
        !t.contains("intermediate_size")) {
      // 256 round(floor(8 H / 3) / 256), halves to even as Python rounds.
      const double blocks = std::floor(8.0 * t["hidden_size"].get<double>() / 3.0) / 256.0;
      t["intermediate_size"] = static_cast<int64_t>(256.0 * std::nearbyint(blocks));
    }
  } else if (model_type == "olmo" && t.contains("d_model")) {
    move("d_model", "hidden_size");
    move("n_heads", "num_attention_heads");
    move("n_layers", "num_hidden_layers");
    move("max_sequence_length", "max_position_embeddings");
    move("embedding_size", "vocab_size");
    if (!t.contains("intermediate_size")) {
      // The size counts both halves of the fused matrix.
      const nlohmann::json size = t.value("mlp_hidden_size", nlohmann::json()),
                           ratio = t.value("mlp_ratio", nlohmann::json(4));
      if (size.is_number())
        t["intermediate_size"] = size.get<double>() / 2;
      else if (size.is_null() && t["d_model"].is_number() && ratio.is_number())
        t["intermediate_size"] = ratio.get<double>() * t["d_model"].get<double>() / 2;
    }
  } else if (model_type == "starcoder2" && !t.contains("vocab_size")) {
    t["vocab_size"] = 49152;
  } else if (model_type == "gemma3_text") {
    const std::pair<const char*, nlohmann::json> defaults[] = {
        {"vocab_size", 262208},      {"hidden_size", 2304},
        {"intermediate_size", 9216}, {"num_hidden_layers", 26},
        {"num_attention_heads", 8},  {"num_key_value_heads", 4},
        {"head_dim", 256},           {"max_position_embeddings", 131072}};
    for (const auto& [key, value] : defaults)
      if (t.value(key, nlohmann::json()).is_null()) t[key] = value;
  }
}

std::optional<ActivationFunction> activation_from_name(std::string_view text) {
  if (text == "silu" || text == "swish") return ActivationFunction::silu;
  if (text == "gelu") return ActivationFunction::gelu_erf;
  if (text == "gelu_pytorch_tanh" || text == "gelu_tanh" || text == "gelu_new" || text == "gelu_fast")
    return ActivationFunction::gelu_tanh;
  if (text == "relu2") return ActivationFunction::relu2;
  if (text == "xielu") return ActivationFunction::xielu;
  return std::nullopt;
}

// hidden_activation, else hidden_act, must name the row's function. Gemma's class reads hidden_act, its
// configurations state either or both: there both must.
void check_activation(const ConfigFields& f, const FamilyTraits& traits, const ModelConfig& m) {
  for (const char* key : {"hidden_activation", "hidden_act"}) {
    const std::string given = f.text(key, "");
    if (given.empty()) continue;
    if (activation_from_name(given) != m.activation && !(traits.gelu_is_tanh && given == "gelu"))
      throw_error(ErrorCode::unsupported, "{}: {} is {}, but {} models use {}", f.where(), key,
                  printable(given), m.model_type, ops::name(m.activation));
    if (!traits.gelu_is_tanh) return;
  }
}

// Once each: a field may be read in more than one place.
void warn(ModelConfig& m, std::string text) {
  if (std::ranges::find(m.warnings, text) == m.warnings.end()) m.warnings.push_back(std::move(text));
}

// The first of the sources that has any: generation_config.json's replace the others. Those of config.json
// are read whether they count or not, so that a bad one is refused with and without the other file.
void read_special_ids(const ConfigFields& top, const ConfigFields& f, const nlohmann::json& generation,
                      ModelConfig& m) {
  // No token is ever one beyond the logits, and configurations of tiny or cut models keep those of the whole
  // one: nothing would be lost with the file.
  auto take = [&](const ConfigFields& source, const char* key) {
    std::vector<int32_t> ids;
    for (const int32_t id : source.token_ids(key))
      if (id < m.vocab)
        ids.push_back(id);
      else
        warn(m, fmt::format("{}: {} {} is no token of a vocabulary of {}: ignored", source.where(), key, id,
                            m.vocab));
    return ids;
  };
  if (generation.is_object()) m.eos_ids = take(ConfigFields(generation, "generation_config.json"), kEos);
  for (const ConfigFields* source : {&top, &f}) {
    if (std::vector<int32_t> ids = take(*source, kEos); m.eos_ids.empty()) m.eos_ids = std::move(ids);
    if (source->token_ids(kBos).size() > 1) source->reject(kBos, "one token id");
    if (const std::vector<int32_t> ids = take(*source, kBos); !m.bos_id && !ids.empty())
      m.bos_id = ids.front();
  }
}

// Layer kinds, windows and ropes from the row's traits and the config's own list.
void finish_layers(const ConfigFields& f, const FamilyTraits& traits, ModelConfig& m) {
  const auto kinds = f.find_texts("layer_types");
  if (kinds && !kinds->empty() && static_cast<int64_t>(kinds->size()) != m.layers)
    throw_error(ErrorCode::corrupt_file, "{}: {} has {} entries, expected {}", f.where(),
                f.name("layer_types"), kinds->size(), m.layers);
  const int64_t width = f.size("sliding_window", traits.window);

  auto rope_index = [&](const RopeConfig& rope) {
    const auto found = std::find(m.ropes.begin(), m.ropes.end(), rope);
    if (found != m.ropes.end()) return static_cast<int>(found - m.ropes.begin());
    m.ropes.push_back(rope);
    return static_cast<int>(m.ropes.size() - 1);
  };
  bool nested = false;
  if (const auto parameters = f.find_object("rope_parameters"))
    for (const auto& [key, value] : parameters->object().items()) nested = nested || value.is_object();

  for (int64_t i = 0; i < m.layers; ++i) {
    LayerConfig& layer = m.layer[static_cast<size_t>(i)];
    bool sliding = traits.slides && traits.slides(i);
    if (kinds && !kinds->empty()) {
      const std::string& kind = (*kinds)[static_cast<size_t>(i)];
      if (kind != "full_attention" && kind != "sliding_attention")
        throw_error(ErrorCode::unsupported,
                    "{}: layer_types[{}] is {}; supported: full_attention, sliding_attention", f.where(), i,
                    printable(kind));
      sliding = kind == "sliding_attention";
    }
    if (sliding && width == 0)
      throw_error(ErrorCode::corrupt_file, "{}: layer {} slides, but {} is {}", f.where(), i,
                  f.name("sliding_window"), f.has("sliding_window") ? "0" : "missing");
    if (sliding) layer.window = static_cast<int>(width);
    if (traits.has_rope && !traits.has_rope(i, sliding)) {
      layer.rope = -1;
      continue;
    }
    RopeConfig rope;
    std::vector<std::string> notes;
    if (sliding && traits.local_rope && !nested) {
      RopeDefaults plain = traits.rope;
      plain.scaling_allowed = false;
      rope = parse_rope(f, "sliding_attention", m.head_dim, plain, &notes);
      if (traits.local_theta > 0) rope.theta = f.positive("rope_local_base_freq", traits.local_theta);
    } else {
      rope = parse_rope(f, sliding ? "sliding_attention" : "full_attention", m.head_dim, traits.rope, &notes);
    }
    for (std::string& note : notes) warn(m, std::move(note));
    rope.negative = m.model_type == "nanochat";  // it turns by minus the angle
    layer.rope = rope_index(rope);
  }
}

}  // namespace

ModelConfig parse_config(const nlohmann::json& raw, const nlohmann::json& generation,
                         const std::string& where, std::set<std::string>* read, const FieldNames* names) {
  const ConfigFields top(raw, where, read, names);
  if (const nlohmann::json* type = top.find("model_type"); type != nullptr && !type->is_string())
    unsupported_model(where, shown(*type), "expected a string");
  const auto declared = top.find_text("model_type");
  if (!declared || declared->empty()) unsupported_model(where, "", "model_type is missing");
  if (declared->ends_with("_assistant"))
    unsupported_model(where, *declared, "it is a drafter: load it as a draft model");

  ModelConfig m;
  m.model_type = remapped(*declared);
  const Descriptor* row = find_descriptor(m.model_type);
  if (row == nullptr)
    unsupported_model(where, *declared, raw.contains("auto_map") ? "its own code is not run" : "");

  nlohmann::json t = raw;
  if (const auto text = top.find_object("text_config")) {
    t = text->object();
    // A wrapper's text part has defaults of its own class; what the wrapper says at the top fills the gaps.
    for (const char* key : {"tie_word_embeddings", "vocab_size", "bos_token_id"})
      if (!t.contains(key) && raw.contains(key)) t[key] = raw[key];
    // It may be of another family than the wrapper's usual one: mistral3 wraps mistral and ministral3.
    if (const auto own = text->find_text("model_type")) {
      m.model_type = remapped(*own);
      row = find_descriptor(m.model_type);
      if (row == nullptr)
        unsupported_model(where, *own, "it is the text_config of a " + *declared + " model");
    }
  }
  complete_fields(m.model_type, t);
  if (read != nullptr)
    for (const auto& [key, value] : raw.items())
      if (!t.contains(key)) read->insert(key);  // renamed
  const ConfigFields f(t, where, read, names);

  m.hidden = f.count("hidden_size");
  m.layers = f.count("num_hidden_layers");
  m.heads = f.count("num_attention_heads");
  m.kv_heads = f.count("num_key_value_heads", m.heads);
  m.vocab = f.count("vocab_size");
  m.head_dim = f.count("head_dim", std::max<int64_t>(1, m.hidden / m.heads));
  m.max_position = f.count("max_position_embeddings", 0);
  if (f.flag("rope_traditional", false)) m.rope_layout = ops::RopeLayout::interleaved;
  if (m.layers > 10000) f.reject("num_hidden_layers", "at most 10000");
  m.layer.resize(static_cast<size_t>(m.layers));
  if (const int64_t shared = f.size("num_kv_shared_layers", 0); shared >= m.layers)
    throw_error(ErrorCode::corrupt_file, "{}: {} is {}, expected less than the {} layers that {} says", where,
                f.name("num_kv_shared_layers"), shared, m.layers, f.name("num_hidden_layers"));
  else if (shared > 0)
    throw_error(ErrorCode::unsupported,
                "{}: {} is {}: no layer of {} models reads another's keys and values here", where,
                f.name("num_kv_shared_layers"), shared, m.model_type);
  m.drop = {R"(rotary_emb\.inv_freq$)",
            R"(^(model\.)?(vision_tower|multi_modal_projector|visual|vision_model|audio_tower)\.)"};

  FamilyTraits traits;
  row->read(f, m, traits);

  const std::optional<double> epsilon = norm_epsilon(row->epsilon, f);
  m.epsilon = static_cast<float>(epsilon ? *epsilon : f.positive(row->epsilon.keys.front()));
  if (!(m.epsilon > 0))
    throw_error(ErrorCode::corrupt_file, "{}: the epsilon of its norms is too small for a 32-bit number",
                f.where());
  const bool dense =
      std::any_of(m.layer.begin(), m.layer.end(), [](const LayerConfig& l) { return !l.experts; });
  if (dense) m.intermediate = f.count("intermediate_size");
  if (m.heads % m.kv_heads != 0)
    throw_error(ErrorCode::corrupt_file,
                "{}: {} attention heads cannot be shared by {} key-value heads; expected a multiple", where,
                m.heads, m.kv_heads);
  if (m.attention_scale == 0) m.attention_scale = 1 / std::sqrt(static_cast<double>(m.head_dim));
  if (m.norm == NormKind::rms_plus_one || m.norm == NormKind::layer_norm_plus_one) m.gain_offset = 1;
  check_activation(f, traits, m);
  if (m.tie == TieRule::from_checkpoint && f.has("tie_word_embeddings"))
    m.tie = f.flag("tie_word_embeddings", false) ? TieRule::always
            : traits.head_may_be_missing         ? TieRule::from_checkpoint
                                                 : TieRule::never;
  if (m.tie == TieRule::always) m.drop.push_back(R"(^lm_head\.weight$)");
  finish_layers(f, traits, m);
  read_special_ids(top, f, generation, m);
  return m;
}

std::string ModelConfig::canonical_text() const {
  std::string out = fmt::format(
      "{} hidden={} layers={} heads={} kv={} head_dim={} intermediate={} vocab={} block={} norm={}{} "
      "eps={:a} offset={:a} bias={}{}{}{} "
      "qk_norm={} tiled={} clip={:a} scale={:a} softcap={:a} query={:a}/{:a} rope={} act={}{} "
      "experts={}/{}/{}/{} embed={:a}/{}/{} "
      "residual={:a} logits={:a}/{:a}/{:a}/{:a}",
      model_type, hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, static_cast<int>(block),
      static_cast<int>(norm), norm_bias ? "+bias" : "", epsilon, gain_offset, qkv_bias ? 1 : 0,
      o_bias ? 1 : 0, mlp_bias ? 1 : 0, head_bias ? 1 : 0, static_cast<int>(qk_norm), kv_heads_tiled,
      clip_qkv.value_or(0), attention_scale, attention_softcap.value_or(0), query_scale_beta,
      query_scale_original, static_cast<int>(rope_layout), ops::name(activation), gated ? "*up" : "",
      experts.count, experts.used, experts.intermediate, experts.normalize, embed_multiplier.value_or(1),
      embed_multiplier_rounded, embed_norm, residual_multiplier.value_or(1), logits_multiplier.value_or(1),
      logits_divisor.value_or(1), head_input_divisor.value_or(1), final_softcap.value_or(0));
  for (const RopeConfig& r : ropes) {
    out += fmt::format(" rope:{}:{:a}:{}:{:a}:{:a}:{:a}:{:a}:{:a}:{:a}:{:a}:{:a}:{}:{:a}:{:a}:{}",
                       name(r.kind), r.theta, r.dims, r.factor, r.alpha, r.low_freq_factor,
                       r.high_freq_factor, r.original_max_position, r.max_position, r.beta_fast, r.beta_slow,
                       r.truncate, r.attention_factor, r.partial, r.negative);
    for (const auto* list : {&r.short_factor, &r.long_factor, &r.divisor_factors})
      for (double v : *list) out += fmt::format(",{:a}", v);
  }
  for (const XieluScalars& x : xielu)
    out += fmt::format(" xielu:{:a}:{:a}:{:a}:{:a}", x.alpha_p, x.alpha_n, x.beta, x.eps);
  for (const LayerConfig& l : layer)
    out += fmt::format(" {}:{}:{}", l.window.value_or(0), l.rope, l.experts ? "e" : "d");
  return out;
}

}  // namespace kvasir::models
