#include "kv/scheme.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "formats/json.h"
#include "kv/planes.h"

namespace kvasir::kv {
namespace {

// What a refusal expects: of a whole `--kv`, of a layer, of a plane.
constexpr std::string_view kPlaneGrammar =
    "f32, f16, bf16, q8_0 (or 6, 5, 4, 3 bits), affine:BITS[:GROUP], rot:BITS, rot:q8_0 (...), turbokey:BITS";
constexpr std::string_view kLayerGrammar =
    "f32, f16, bf16, q8_0 (or 6, 5, 4, 3 bits), affine:BITS[:GROUP], turbo[:K,V], rot:BITS, rot:q8_0 (...), "
    "KPLANE/VPLANE";

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || text.empty())
    return std::nullopt;
  return value;
}

// `source`, here and below: what a refusal begins with.
int bits_of(std::string_view text, std::string_view source) {
  const auto value = number(text);
  if (!value || *value > 64)
    throw_error(ErrorCode::invalid_input, "{}: '{}' is no number of bits", source, printable(text));
  return static_cast<int>(*value);
}

std::optional<Dtype> plain_dtype(std::string_view text) {
  if (text == "f32") return Dtype::f32;
  if (text == "f16") return Dtype::f16;
  if (text == "bf16") return Dtype::bf16;
  return std::nullopt;
}

PlaneCodec parse_plane(std::string_view text, Dtype plain, std::string_view source,
                       const std::string& expected) {
  const auto parts = split(text, ':');
  if (const auto dtype = plain_dtype(parts[0]); dtype && parts.size() == 1)
    return {.kind = PlaneCodec::Kind::plain, .plain = *dtype};
  PlaneCodec plane{.kind = PlaneCodec::Kind::plain, .plain = plain};
  if (parts[0] == "affine" && parts.size() >= 2 && parts.size() <= 4) {
    plane.kind = PlaneCodec::Kind::affine;
    plane.bits = bits_of(parts[1], source);
    plane.group = 64;
    plane.scale_dtype = plain == Dtype::f32 ? Dtype::f32 : Dtype::f16;
    size_t next = 2;
    if (next < parts.size() && !plain_dtype(parts[next])) {
      const auto group = number(parts[next]);
      if (!group || *group > 1 << 20)
        throw_error(ErrorCode::invalid_input, "{}: '{}' is no group size (32, 64, 128)", source,
                    printable(parts[next]));
      plane.group = static_cast<int>(*group);
      ++next;
    }
    if (next < parts.size()) {
      const auto scales = plain_dtype(parts[next]);
      if (!scales || next + 1 != parts.size())
        throw_error(ErrorCode::invalid_input, "{}: '{}' is no dtype of scales (f16, bf16, f32)", source,
                    printable(parts[next]));
      plane.scale_dtype = *scales;
    }
    return plane;
  }
  const bool turned = text.starts_with("rot:q");
  const std::string_view form = turned ? text.substr(4) : text;
  if (form.size() == 4 && form.front() == 'q' && form.ends_with("_0")) {
    plane.kind = turned ? PlaneCodec::Kind::rotated_q_0 : PlaneCodec::Kind::q_0;
    plane.bits = bits_of(form.substr(1, 1), source);
    plane.group = 32;
    return plane;
  }
  if ((parts[0] == "rot" || parts[0] == "turbokey") && parts.size() == 2) {
    plane.kind = parts[0] == "rot" ? PlaneCodec::Kind::rotated : PlaneCodec::Kind::turbo_key;
    plane.bits = bits_of(parts[1], source);
    plane.group = 32;
    return plane;
  }
  throw_error(ErrorCode::invalid_input, "{}: '{}' is no KV codec; expected one of {}", source,
              printable(text), expected);
}

void check_codec(const CodecPair& codec, const LayerGeometry& layer, std::string_view source) {
  std::string reason = why_invalid(codec.k, layer.head_dim_k);
  std::string_view side = "keys";
  if (reason.empty()) {
    reason = why_invalid(codec.v, layer.head_dim_v);
    side = "values";
  }
  if (!reason.empty())
    throw_error(ErrorCode::unsupported, "{}: layer {} cannot store its {} as {}: {}", source, layer.layer,
                side, describe(codec), reason);
}

std::string_view kind_name(SchemeLayer::Kind kind) {
  switch (kind) {
    case SchemeLayer::Kind::shares:
      return "reads another layer's KV and stores none";
    case SchemeLayer::Kind::recurrent:
      return "is recurrent and has no KV";
    case SchemeLayer::Kind::mla:
      return "stores MLA latents, which are never quantized";
    default:
      return "has KV";
  }
}

struct Choice {
  CodecPair codec;
  std::string source;
};

// The chosen codec per model layer; layers absent are plain.
using Choices = std::map<int, Choice>;

const SchemeLayer& find_layer(std::span<const SchemeLayer> layers, int64_t index, std::string_view source) {
  for (const SchemeLayer& layer : layers)
    if (layer.geometry.layer == index) {
      if (layer.kind != SchemeLayer::Kind::attention)
        throw_error(ErrorCode::unsupported, "{}: layer {} {}; name attention layers only", source, index,
                    kind_name(layer.kind));
      return layer;
    }
  throw_error(ErrorCode::invalid_input, "{}: there is no layer {} (the model has {})", source, index,
              layers.size());
}

void check_members(const nlohmann::json& entry, const std::vector<std::string>& known,
                   const std::string& source) {
  for (const auto& [key, value] : entry.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw_error(ErrorCode::corrupt_file, "{}: unknown member \"{}\" (known: {})", source, printable(key),
                  fmt::join(known, ", "));
}

// Of an entry for a layer. The last three are what `kvasir eval kv-sensitivity` adds. `plain`: T here.
void check_entry(const nlohmann::json& entry, const std::string& source, Dtype plain) {
  static const std::vector<std::string> known = {"layer_idx", "bits",  "group_size", "codec",
                                                 "measured",  "plain", "planes"};
  check_members(entry, known, source);
  if (!entry.contains("plain")) return;
  if (!entry["plain"].is_string() || !plain_dtype(entry["plain"].get<std::string>()))
    throw_error(ErrorCode::corrupt_file, "{}: \"plain\" is none of f32, f16, bf16", source);
  if (const std::string stated = entry["plain"].get<std::string>(); stated != name(plain))
    throw_error(
        ErrorCode::invalid_input,
        "{}: measured with keys and values in {}, and here they are {}: give --kv-plain {}, or measure "
        "anew",
        source, stated, name(plain), stated);
}

// As the file says it: a number that no layer has must not become one by wrapping.
int64_t layer_index(const nlohmann::json& entry, const std::string& source) {
  if (!entry.is_object() || !entry.contains("layer_idx") || !entry["layer_idx"].is_number_integer())
    throw_error(ErrorCode::corrupt_file, "{}: no integer \"layer_idx\"", source);
  const nlohmann::json& index = entry["layer_idx"];
  if (index.is_number_unsigned() && index.get<uint64_t>() > INT32_MAX)
    throw_error(ErrorCode::invalid_input, "{}: there is no layer {}", source, index.get<uint64_t>());
  return index.get<int64_t>();
}

Choices read_config(const std::filesystem::path& path, std::span<const SchemeLayer> layers, Dtype plain) {
  const std::string file = path.string();
  const nlohmann::json config = formats::read_json_file(path, size_t{4} << 20);
  if (!config.is_array())
    throw_error(
        ErrorCode::corrupt_file,
        "{}: expected a list of {{\"layer_idx\", \"bits\", \"group_size\"}} or {{\"layer_idx\", \"codec\"}}",
        file);
  Choices choices;
  for (size_t i = 0; i < config.size(); ++i) {
    const auto& entry = config[i];
    const std::string source = fmt::format("{}: entry {}", file, i);
    const int64_t index = layer_index(entry, source);
    check_entry(entry, source, plain);
    const SchemeLayer& layer = find_layer(layers, index, source);
    CodecPair codec;
    if (entry.contains("codec")) {
      if (!entry["codec"].is_string())
        throw_error(ErrorCode::corrupt_file, "{}: \"codec\" is no string", source);
      if (entry.contains("bits") || entry.contains("group_size"))
        throw_error(ErrorCode::corrupt_file, "{}: has \"codec\" and also \"bits\" or \"group_size\"", source);
      codec = parse_codec(entry["codec"].get<std::string>(), plain, source);
    } else {
      if (!entry.contains("bits") || !entry["bits"].is_number_integer() ||
          (entry.contains("group_size") && !entry["group_size"].is_number_integer()))
        throw_error(ErrorCode::corrupt_file, "{}: expected integer \"bits\" and \"group_size\", or \"codec\"",
                    source);
      codec = parse_codec(fmt::format("affine:{}:{}", entry["bits"].dump(),
                                      entry.contains("group_size") ? entry["group_size"].dump() : "64"),
                          plain, source);
    }
    check_codec(codec, layer.geometry, source);
    if (!choices.emplace(static_cast<int>(index), Choice{codec, source}).second)
      throw_error(ErrorCode::invalid_input, "{}: layer {} is listed twice", source, index);
  }
  return choices;
}

size_t layer_bytes(const CodecPair& codec, const LayerGeometry& layer) {
  const size_t index = layer.mla ? static_cast<size_t>(layer.mla->dsa_dim) * size_of(Dtype::f32) : 0;
  return static_cast<size_t>(layer.kv_heads) *
         (plane_bytes(codec.k, layer.head_dim_k) + plane_bytes(codec.v, layer.head_dim_v) + index);
}

// The entries of a kv_config.json that `kvasir eval kv-sensitivity` wrote carry what was measured:
// {"layer_idx": 0, "codec": SPEC, "measured": [{"codec": SPEC, "bytes": a token, "kl": mean KL to the f32
// cache when only this layer uses it}, ...]}. Layers that are `named` already count with what they take.
Choices resolve_auto(int64_t budget, const std::filesystem::path& path, std::span<const SchemeLayer> layers,
                     Dtype plain, const Choices& named) {
  struct Option {
    CodecPair codec;
    SizeAndLoss cost;
  };
  const std::string file = path.string();
  const nlohmann::json table = formats::read_json_file(path, size_t{16} << 20);
  std::map<int, std::vector<Option>> options;
  if (!table.is_array())
    throw_error(ErrorCode::corrupt_file,
                "{}: expected a list of layers as written by `kvasir eval kv-sensitivity`", file);
  for (const auto& entry : table) {
    const int64_t index = layer_index(entry, file);
    check_entry(entry, fmt::format("{}: layer {}", file, index), plain);
    const LayerGeometry& layer = find_layer(layers, index, file).geometry;
    if (options.contains(layer.layer))
      throw_error(ErrorCode::invalid_input, "{}: layer {} is listed twice", file, layer.layer);
    if (!entry.contains("measured")) continue;
    if (!entry["measured"].is_array())
      throw_error(ErrorCode::corrupt_file, "{}: layer {}: \"measured\" is no list", file, layer.layer);
    for (const auto& codec : entry["measured"]) {
      if (!codec.is_object() || !codec.contains("codec") || !codec["codec"].is_string() ||
          !codec.contains("kl") || !codec["kl"].is_number() || !codec.contains("bytes") ||
          !codec["bytes"].is_number_integer())
        throw_error(ErrorCode::corrupt_file,
                    "{}: layer {}: each measured codec needs \"codec\", \"bytes\" and \"kl\"", file,
                    layer.layer);
      check_members(codec, {"codec", "bytes", "kl"}, fmt::format("{}: layer {}", file, layer.layer));
      Option option{parse_codec(codec["codec"].get<std::string>(), plain,
                                fmt::format("{}: layer {}", file, layer.layer)),
                    {0, codec["kl"].get<double>()}};
      if (!(option.cost.loss >= 0 && option.cost.loss < std::numeric_limits<double>::infinity()))
        throw_error(ErrorCode::corrupt_file, "{}: layer {}: a KL of {} is not possible", file, layer.layer,
                    option.cost.loss);
      check_codec(option.codec, layer, file);
      option.cost.bytes = layer_bytes(option.codec, layer);
      if (const auto stated = codec["bytes"].get<int64_t>();
          stated != static_cast<int64_t>(option.cost.bytes))
        throw_error(
            ErrorCode::invalid_input,
            "{}: layer {}: {} is said to take {} bytes a token and takes {}: the table was measured on "
            "another model, or with another --kv-plain",
            file, layer.layer, describe(option.codec), stated, option.cost.bytes);
      options[layer.layer].push_back(option);
    }
  }
  size_t least = 0;
  std::vector<int> indices;
  std::vector<std::vector<SizeAndLoss>> costs;
  for (const SchemeLayer& layer : layers) {
    if (layer.kind != SchemeLayer::Kind::attention) continue;
    const int index = layer.geometry.layer;
    std::vector<Option>& list = options[index];
    if (const auto fixed = named.find(index); fixed != named.end())
      list = {{fixed->second.codec, {layer_bytes(fixed->second.codec, layer.geometry), 0}}};
    if (list.empty())
      throw_error(ErrorCode::not_found,
                  "{}: it has no measured table for layer {}; write one with `kvasir eval kv-sensitivity`",
                  file, index);
    indices.push_back(index);
    std::vector<SizeAndLoss>& cost = costs.emplace_back();
    for (const Option& option : list) cost.push_back(option.cost);
    least += smallest_bytes(cost);
  }
  if (static_cast<uint64_t>(budget) < least)
    throw_error(ErrorCode::invalid_input,
                "--kv auto:{}: the smallest measured codecs{} take {} bytes per token; allow at least that",
                budget, named.empty() ? "" : ", and those of --kv-layer,", least);
  const std::vector<size_t> chosen = least_loss(costs, static_cast<size_t>(budget), file);
  Choices choices;
  for (size_t i = 0; i < indices.size(); ++i)
    choices[indices[i]] = {options[indices[i]][chosen[i]].codec, file};
  return choices;
}

Choices read_overrides(const SchemeRequest& request, std::span<const SchemeLayer> layers, Dtype plain) {
  Choices choices;
  std::map<int64_t, std::string> named;
  for (const std::string& text : request.layers) {
    const std::string source = fmt::format("--kv-layer {}", printable(text));
    const size_t equals = text.find('=');
    if (equals == std::string::npos)
      throw_error(ErrorCode::invalid_input, "{}: expected A[-B]=SPEC, for example 0-3=affine:8", source);
    const auto range = split(std::string_view(text).substr(0, equals), '-');
    const auto first = number(range[0]);
    const auto last = range.size() == 2 ? number(range[1]) : first;
    if (range.size() > 2 || !first || !last || *last < *first || *last > 1 << 20)
      throw_error(ErrorCode::invalid_input, "{}: expected A[-B]=SPEC with layers A <= B", source);
    const CodecPair codec = parse_codec(std::string_view(text).substr(equals + 1), plain, source);
    for (int64_t index = *first; index <= *last; ++index) {
      const SchemeLayer& layer = find_layer(layers, index, source);
      check_codec(codec, layer.geometry, source);
      if (const auto [other, fresh] = named.emplace(index, text); !fresh)
        throw_error(ErrorCode::invalid_input, "{}: layer {} is also named by --kv-layer {}", source, index,
                    printable(other->second));
      choices[static_cast<int>(index)] = {codec, source};
    }
  }
  return choices;
}

}  // namespace

size_t smallest_bytes(std::span<const SizeAndLoss> choices) {
  return std::min_element(choices.begin(), choices.end(),
                          [](const SizeAndLoss& a, const SizeAndLoss& b) { return a.bytes < b.bytes; })
      ->bytes;
}

std::vector<size_t> least_loss(std::span<const std::vector<SizeAndLoss>> layers, size_t budget,
                               std::string_view source) {
  if (layers.empty()) return {};
  size_t most = 0, unit = 0;
  for (const std::vector<SizeAndLoss>& list : layers) {
    size_t largest = 0;
    for (const SizeAndLoss& choice : list) {
      largest = std::max(largest, choice.bytes);
      unit = std::gcd(unit, choice.bytes);
    }
    most += largest;
    if (list.size() > 200)
      throw_error(ErrorCode::unsupported, "{}: {} codecs for one layer, more than 200", source, list.size());
  }
  const size_t steps = std::min(budget, most) / unit;
  if (steps > size_t{1} << 22)
    throw_error(ErrorCode::unsupported,
                "{}: codecs whose sizes differ by {} bytes in {} are too fine to choose from", source, unit,
                most);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> cost(steps + 1, 0.0);
  std::vector<std::vector<uint8_t>> taken;
  for (const std::vector<SizeAndLoss>& list : layers) {
    std::vector<double> next(steps + 1, kNever);
    auto& choice = taken.emplace_back(steps + 1, uint8_t{0});
    for (size_t o = 0; o < list.size(); ++o) {
      const size_t size = list[o].bytes / unit;
      for (size_t b = size; b <= steps; ++b)
        if (const double total = cost[b - size] + list[o].loss; total < next[b]) {
          next[b] = total;
          choice[b] = static_cast<uint8_t>(o);
        }
    }
    cost = std::move(next);
  }
  std::vector<size_t> chosen(layers.size());
  size_t left = steps;
  for (size_t i = layers.size(); i-- > 0;) {
    chosen[i] = taken[i][left];
    left -= layers[i][chosen[i]].bytes / unit;
  }
  return chosen;
}

CodecPair parse_codec(std::string_view spec, Dtype plain, std::string_view source) {
  const std::string whole = source.empty() ? fmt::format("--kv {}", printable(spec)) : std::string(source);
  if (spec == "turbo") return parse_codec("turbo:8,3", plain, whole);
  if (spec.starts_with("turbo:")) {
    const auto parts = split(spec.substr(6), ',');
    if (parts.size() != 2)
      throw_error(ErrorCode::invalid_input,
                  "{}: expected turbo:K,V with the bits of keys and values, for example turbo:8,3", whole);
    return {.k = {.kind = PlaneCodec::Kind::turbo_key,
                  .plain = plain,
                  .bits = bits_of(parts[0], whole),
                  .group = 32},
            .v = {.kind = PlaneCodec::Kind::rotated,
                  .plain = plain,
                  .bits = bits_of(parts[1], whole),
                  .group = 32}};
  }
  const auto sides = split(spec, '/');
  if (sides.size() > 2)
    throw_error(ErrorCode::invalid_input,
                "{}: expected at most one '/', between the codec of keys and that of values", whole);
  const std::string expected = sides.size() == 2 ? std::string(kPlaneGrammar)
                               : !source.empty()
                                   ? std::string(kLayerGrammar)
                                   : fmt::format("{}, config[:FILE], auto:BYTES[:FILE]", kLayerGrammar);
  const CodecPair pair{.k = parse_plane(sides[0], plain, whole, expected),
                       .v = parse_plane(sides.back(), plain, whole, expected)};
  if (pair.v.kind == PlaneCodec::Kind::turbo_key)
    throw_error(ErrorCode::invalid_input,
                "{}: turbokey encodes keys only; name a codec of the values, for example {}/rot:4", whole,
                printable(sides[0]));
  return pair;
}

void set_encoder(PlaneCodec& plane, bool gpu_compat, bool guard) {
  if (plane.kind == PlaneCodec::Kind::affine) plane.gpu_compat = gpu_compat;
  if (plane.kind == PlaneCodec::Kind::turbo_key || plane.kind == PlaneCodec::Kind::rotated)
    plane.guard = guard;
}

Scheme resolve_scheme(const SchemeRequest& request, std::span<const SchemeLayer> layers) {
  Dtype plain = request.default_plain;
  if (request.plain) {
    const auto dtype = plain_dtype(*request.plain);
    if (!dtype)
      throw_error(ErrorCode::invalid_input, "--kv-plain {}: expected f32, f16 or bf16",
                  printable(*request.plain));
    plain = *dtype;
  }
  const std::string_view spec = request.spec;
  const CodecPair unlisted{.k = {.kind = PlaneCodec::Kind::plain, .plain = request.default_plain},
                           .v = {.kind = PlaneCodec::Kind::plain, .plain = request.default_plain}};
  Scheme scheme;
  const Choices named = read_overrides(request, layers, plain);
  Choices choices;
  std::optional<CodecPair> uniform;
  if (spec == "config:" || (spec.starts_with("auto:") && spec.ends_with(':') && spec != "auto:"))
    throw_error(ErrorCode::invalid_input, "--kv {}: the name of a file is missing behind the last colon",
                printable(spec));
  if (spec == "config" || spec.starts_with("config:")) {
    std::filesystem::path file =
        spec == "config" ? request.model_folder / "kv_config.json" : std::filesystem::path(spec.substr(7));
    if (spec == "config" && (request.model_folder.empty() || !std::filesystem::exists(file)))
      throw_error(ErrorCode::not_found,
                  "--kv config: the model has no kv_config.json; name one with config:FILE, or write it with "
                  "`kvasir eval kv-sensitivity`");
    choices = read_config(file, layers, plain);
  } else if (spec.starts_with("auto:") || spec == "auto") {
    const std::string_view rest = spec == "auto" ? std::string_view() : spec.substr(5);
    const auto budget = number(rest.substr(0, rest.find(':')));
    if (!budget || *budget == 0)
      throw_error(ErrorCode::invalid_input,
                  "--kv {}: expected auto:BYTES, the bytes per token that all layers together may take",
                  printable(spec));
    const bool has_file = rest.find(':') != std::string_view::npos;
    const std::filesystem::path file = has_file ? std::filesystem::path(rest.substr(rest.find(':') + 1))
                                                : request.model_folder / "kv_config.json";
    if (!has_file && (request.model_folder.empty() || !std::filesystem::exists(file)))
      throw_error(ErrorCode::not_found,
                  "--kv {}: the model has no kv_config.json; measure it with `kvasir eval kv-sensitivity`",
                  printable(spec));
    choices = resolve_auto(*budget, file, layers, plain, named);
  } else {
    uniform = spec.empty() ? unlisted : parse_codec(spec, plain);
  }
  for (const auto& [layer, choice] : named) choices[layer] = choice;
  const auto with_options = [&](CodecPair& codec) {
    for (PlaneCodec* plane : {&codec.k, &codec.v})
      set_encoder(*plane, request.affine_gpu_compat, request.turbo_guard);
  };
  if (uniform) with_options(*uniform);
  for (auto& [layer, choice] : choices) with_options(choice.codec);

  bool encoded = false, eligible = false;
  for (const SchemeLayer& layer : layers) {
    const int index = layer.geometry.layer;
    if (layer.kind != SchemeLayer::Kind::attention) {
      // Latents are f32 whatever is asked for; recurrent layers have nothing that a plain type would change.
      const bool latents = layer.kind == SchemeLayer::Kind::mla;
      if (uniform && layer.kind != SchemeLayer::Kind::shares &&
          (latents ? !spec.empty() && uniform->k != mla_codec().k : !uniform->is_plain()))
        scheme.notes.push_back(fmt::format("layer {} {}: left as it is", index, kind_name(layer.kind)));
      if (latents) {
        scheme.owners.push_back(layer.geometry);
        scheme.codecs.push_back(mla_codec());
      }
      continue;
    }
    eligible = true;
    CodecPair codec = uniform.value_or(unlisted);
    if (const auto chosen = choices.find(index); chosen != choices.end()) {
      codec = chosen->second.codec;
    } else {
      check_codec(codec, layer.geometry, fmt::format("--kv {}", spec.empty() ? "default" : spec));
    }
    encoded = encoded || !codec.is_plain();
    scheme.owners.push_back(layer.geometry);
    scheme.codecs.push_back(codec);
  }
  if (uniform && !uniform->is_plain() && !eligible)
    throw_error(ErrorCode::unsupported,
                "--kv {}: no layer of this model stores keys and values that can be encoded",
                printable(spec));
  if (request.start) {
    if (*request.start < 0 || *request.start > INT32_MAX)
      throw_error(ErrorCode::invalid_input, "--kv-start {}: expected 0 or more tokens (below 2^31)",
                  *request.start);
    if (*request.start > 0 && !encoded)
      throw_error(
          ErrorCode::invalid_input,
          "--kv-start {}: no layer is encoded, so nothing converts; choose a codec with --kv or --kv-layer",
          *request.start);
    scheme.start = static_cast<int32_t>(*request.start);
  }
  if (request.plain && !encoded)
    throw_error(ErrorCode::invalid_input,
                "--kv-plain {}: no layer is encoded; --kv {} says it for plain caches", *request.plain,
                *request.plain);
  scheme.key = scheme_key(scheme.codecs, scheme.start);
  return scheme;
}

size_t Scheme::bytes_per_token() const {
  size_t bytes = 0;
  for (size_t i = 0; i < owners.size(); ++i) bytes += layer_bytes(codecs[i], owners[i]);
  return bytes;
}

namespace {

// One plane without its T.
std::string plane_key(const PlaneCodec& plane) {
  switch (plane.kind) {
    case PlaneCodec::Kind::plain:
      return "plain";
    case PlaneCodec::Kind::affine:
      return fmt::format("affine-b{}g{}", plane.bits, plane.group);
    case PlaneCodec::Kind::turbo_key:
      return fmt::format("turbokey-b{}", plane.bits);
    case PlaneCodec::Kind::rotated:
      return fmt::format("rot-b{}", plane.bits);
    case PlaneCodec::Kind::q_0:
      return fmt::format("q{}_0", plane.bits);
    case PlaneCodec::Kind::rotated_q_0:
      return fmt::format("rot-q{}_0", plane.bits);
  }
  return {};
}

// Scales that do not have T's dtype, and encoders other than the default, are options of their own.
std::string option_suffix(const PlaneCodec& plane) {
  std::string suffix;
  if (plane.kind == PlaneCodec::Kind::affine && plane.scale_dtype != plane.plain)
    suffix += fmt::format("-x{}", name(plane.scale_dtype));
  if (plane.gpu_compat) suffix += "-gc";
  if (!plane.guard) suffix += "-g0";
  return suffix;
}

}  // namespace

std::string layer_key(const CodecPair& codec, int32_t start) {
  if (codec.mla) return "mla";
  const std::string tail = codec.is_plain() ? "" : fmt::format("-s{}", start);
  if (codec.k.kind == PlaneCodec::Kind::turbo_key && codec.v.kind == PlaneCodec::Kind::rotated &&
      codec.k.plain == codec.v.plain && codec.k.guard == codec.v.guard)
    return fmt::format("turbo-k{}v{}-{}{}{}", codec.k.bits, codec.v.bits, name(codec.k.plain),
                       option_suffix(codec.k), tail);
  if (codec.k == codec.v)
    return fmt::format("{}-{}{}{}", plane_key(codec.k), name(codec.k.plain), option_suffix(codec.k), tail);
  return fmt::format("{}-{}{}+{}-{}{}{}", plane_key(codec.k), name(codec.k.plain), option_suffix(codec.k),
                     plane_key(codec.v), name(codec.v.plain), option_suffix(codec.v), tail);
}

std::string scheme_key(std::span<const CodecPair> codecs, int32_t start) {
  if (codecs.empty()) return "ssm";
  std::string joined;
  bool same = true;
  const std::string first = layer_key(codecs[0], start);
  for (const CodecPair& codec : codecs) {
    const std::string key = layer_key(codec, start);
    same = same && key == first;
    if (!joined.empty()) joined += ',';
    joined += key;
  }
  return same ? first : fmt::format("config-{:016x}", XXH64(joined.data(), joined.size(), 0));
}

std::string layer_signature(const GroupGeometry& geometry) {
  const CodecPair& codec = geometry.codec;
  if (geometry.mla)
    return geometry.mla->mtp           ? "kv:mla:mtp"
           : geometry.mla->dsa_dim > 0 ? "kv:mla:target:dsa"
                                       : "kv:mla:target";
  const std::string rotating = geometry.window ? "rotating-" : "";
  if (codec.is_plain()) return geometry.window ? "kv:rotating-plain" : "kv:plain";
  if (codec.k.kind == PlaneCodec::Kind::affine && codec.k == codec.v)
    return fmt::format("kv:{}quant:{}:{}", rotating, codec.k.bits, codec.k.group);
  if (codec.k.kind == PlaneCodec::Kind::turbo_key && codec.v.kind == PlaneCodec::Kind::rotated)
    return fmt::format("kv:{}turboquant:{}:{}", rotating, codec.k.bits, codec.v.bits);
  return fmt::format("kv:{}pair:{}+{}", rotating, plane_key(codec.k), plane_key(codec.v));
}

std::vector<std::string> signatures(const CacheShape& shape) {
  std::vector<std::string> list;
  for (const int group : shape.group_of)
    list.push_back(layer_signature(shape.groups[static_cast<size_t>(group)].geometry));
  return list;
}

}  // namespace kvasir::kv
