#include "models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "base/error.h"

namespace kvasir::models {
namespace {

// Where the parameters of a layer kind's rope are written: the flat or per-kind rope_parameters, else
// rope_scaling.
struct Source {
  std::optional<ConfigFields> parameters;
  bool per_kind = false;
};

Source find_source(const ConfigFields& config, const std::string& layer_kind) {
  Source source;
  if (const auto parameters = config.find_object("rope_parameters");
      parameters && !parameters->object().empty()) {
    bool nested = false;
    for (const auto& [key, value] : parameters->object().items()) nested = nested || value.is_object();
    source.per_kind = nested;
    source.parameters = nested ? parameters->find_object(layer_kind) : parameters;
    if (nested && !source.parameters)
      throw_error(ErrorCode::corrupt_file, "{}: rope_parameters has no entry for {}", config.where(),
                  layer_kind);
    const nlohmann::json* scaling = config.find("rope_scaling");
    // Newer exporters repeat rope_parameters under the old name; anything else would be a guess.
    if (scaling != nullptr && *scaling != parameters->object() && *scaling != source.parameters->object())
      throw_error(ErrorCode::corrupt_file,
                  "{}: rope_parameters and rope_scaling are both present and differ; remove one",
                  config.where());
    return source;
  }
  if (const auto scaling = config.find_object("rope_scaling"); scaling && !scaling->object().empty())
    source.parameters = scaling;
  return source;
}

std::string type_of(const ConfigFields& parameters) {
  const auto a = parameters.find_text("rope_type"), b = parameters.find_text("type");
  if (a && b && *a != *b)
    throw_error(ErrorCode::corrupt_file, "{}: rope_type is {} and type is {}; they must agree",
                parameters.where(), printable(*a), printable(*b));
  return a ? *a : b.value_or("default");
}

std::vector<double> factor_list(const ConfigFields& parameters, std::string_view key, int64_t pairs) {
  const nlohmann::json* value = parameters.find(key);
  if (value == nullptr) parameters.reject(key, "a list of numbers");
  if (value->is_number()) return std::vector<double>(static_cast<size_t>(pairs), parameters.positive(key));
  std::vector<double> list = *parameters.find_reals(key);
  if (static_cast<int64_t>(list.size()) != pairs)
    throw_error(ErrorCode::corrupt_file, "{}: {} has {} entries, expected {}", parameters.where(), key,
                list.size(), pairs);
  for (double f : list)
    if (!(f > 0)) parameters.reject(key, "numbers above 0");
  return list;
}

}  // namespace

double yarn_magnitude(double factor, double k) {
  return factor <= 1 ? 1.0 : 0.1 * k * std::log(factor) + 1.0;
}

std::string_view name(RopeKind kind) {
  switch (kind) {
    case RopeKind::standard:
      return "default";
    case RopeKind::linear:
      return "linear";
    case RopeKind::dynamic:
      return "dynamic";
    case RopeKind::alpha_ntk:
      return "alpha-ntk";
    case RopeKind::llama3:
      return "llama3";
    case RopeKind::yarn:
      return "yarn";
    case RopeKind::longrope:
      return "longrope";
    case RopeKind::proportional:
      return "proportional";
    case RopeKind::factors:
      return "factors";
  }
  return "?";
}

RopeConfig parse_rope(const ConfigFields& config, const std::string& layer_kind, int64_t head_dim,
                      const RopeDefaults& defaults, std::vector<std::string>* notes) {
  const Source source = find_source(config, layer_kind);
  RopeConfig rope;
  rope.theta = config.positive("rope_theta", defaults.theta);
  double partial = config.positive("partial_rotary_factor", defaults.partial);
  bool partial_known = config.has("partial_rotary_factor");
  std::string type = "default";
  if (source.parameters) {
    const ConfigFields& p = *source.parameters;
    rope.theta = p.positive("rope_theta", rope.theta);
    partial_known = partial_known || p.has("partial_rotary_factor");
    partial = p.positive("partial_rotary_factor", partial);
    type = type_of(p);
  }
  if (defaults.partial_required && !partial_known) config.reject("partial_rotary_factor", "a number above 0");
  if (defaults.theta_required && !config.has("rope_theta") &&
      !(source.parameters && source.parameters->has("rope_theta")))
    config.reject("rope_theta", "a number above 0");
  const auto reject_partial = [&](std::string_view expected) {
    const bool inside = source.parameters && source.parameters->has("partial_rotary_factor");
    (inside ? *source.parameters : config).reject("partial_rotary_factor", expected);
  };
  if (partial > 1) reject_partial("a number of at most 1");

  const bool proportional = type == "proportional";
  const bool plain = !defaults.scaling_allowed || type == "default" || type == "mrope";
  if (partial != 1 && !defaults.takes_partial && !proportional) {
    // transformers' classes do not read it for plain rope; their tables of the other kinds are then shorter
    // than the heads that are rotated with them, which is an error there.
    if (!plain) reject_partial("1, because this family rotates whole heads");
    if (notes != nullptr)
      notes->push_back(
          fmt::format("{}: partial_rotary_factor is {}: ignored, this family rotates whole heads",
                      config.where(), partial));
    partial = 1;
  }
  rope.dims = proportional ? head_dim : static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (rope.dims <= 0 || rope.dims % 2 != 0)
    throw_error(ErrorCode::corrupt_file,
                "{}: {} of {} head elements would be rotated; expected an even number above 0",
                config.where(), rope.dims, head_dim);
  rope.max_position = static_cast<double>(config.count("max_position_embeddings", 0));
  if (plain) return rope;

  const ConfigFields& p = *source.parameters;
  const int64_t pairs = rope.dims / 2;
  // A top-level original limit beats the one among the parameters.
  const double original = config.has("original_max_position_embeddings")
                              ? static_cast<double>(config.count("original_max_position_embeddings"))
                              : static_cast<double>(p.count("original_max_position_embeddings", 0));
  auto require_max = [&](double value, std::string_view key) {
    if (value <= 0) config.reject(key, "a whole number from 1 (rope type " + type + " needs it)");
    return value;
  };
  auto original_or_max = [&] {
    return original > 0 ? original : require_max(rope.max_position, "max_position_embeddings");
  };

  auto unsupported = [&](std::span<const RopeKind> supported) {
    std::string list(name(RopeKind::standard));
    for (const RopeKind kind : supported) list += fmt::format(", {}", name(kind));
    throw_error(ErrorCode::unsupported, "{}: rope type {} is not supported{}; supported: {}", config.where(),
                printable(type), defaults.kinds.empty() ? "" : " by this family", list);
  };
  const bool longrope = type == "longrope" || (defaults.phi3_names && (type == "su" || type == "yarn"));
  if (type == "linear") {
    rope.kind = RopeKind::linear;
    rope.factor = p.positive("factor");
  } else if (type == "dynamic" && p.has("alpha") && p.real("alpha") != 0) {
    rope.kind = RopeKind::alpha_ntk;
    rope.alpha = p.positive("alpha");
  } else if (type == "dynamic") {
    rope.kind = RopeKind::dynamic;
    rope.factor = p.positive("factor");
    require_max(rope.max_position, "max_position_embeddings");
  } else if (type == "llama3") {
    rope.kind = RopeKind::llama3;
    rope.factor = p.positive("factor");
    rope.low_freq_factor = p.positive("low_freq_factor");
    rope.high_freq_factor = p.positive("high_freq_factor");
    if (!(rope.high_freq_factor > rope.low_freq_factor))
      p.reject("high_freq_factor", "a number above low_freq_factor");
    rope.original_max_position = original_or_max();
  } else if (longrope) {
    rope.kind = RopeKind::longrope;
    rope.short_factor = factor_list(p, "short_factor", pairs);
    rope.long_factor = factor_list(p, "long_factor", pairs);
    rope.original_max_position = original > 0 ? original
                                 : defaults.phi3_names
                                     ? 4096
                                     : require_max(rope.max_position, "max_position_embeddings");
    const double stretch = p.has("factor") ? p.positive("factor")
                                           : require_max(rope.max_position, "max_position_embeddings") /
                                                 rope.original_max_position;
    const double given = p.real("attention_factor", 0);
    rope.attention_factor = given != 0 ? given
                            : stretch <= 1
                                ? 1.0
                                : std::sqrt(1.0 + std::log(stretch) / std::log(rope.original_max_position));
  } else if (type == "yarn" || type == "deepseek_yarn" || type == "telechat3-yarn") {
    rope.kind = RopeKind::yarn;
    rope.original_max_position = original_or_max();
    // null is the ratio of the two limits; without the field the publisher's code takes no such rope.
    if (!p.object().contains("factor")) p.reject("factor", "a number above 0 or null");
    rope.factor = p.has("factor") ? p.positive("factor")
                                  : require_max(rope.max_position, "max_position_embeddings") /
                                        rope.original_max_position;
    rope.beta_fast = p.positive("beta_fast", 32);
    rope.beta_slow = p.positive("beta_slow", 1);
    rope.truncate = p.flag("truncate", true);
    const double given = p.real("attention_factor", 0), m = p.real("mscale", 0),
                 all = p.real("mscale_all_dim", 0);
    rope.attention_factor = given != 0 ? given
                            : m != 0 && all != 0
                                ? yarn_magnitude(rope.factor, m) / yarn_magnitude(rope.factor, all)
                                : yarn_magnitude(rope.factor, 1);
  } else if (proportional) {
    rope.kind = RopeKind::proportional;
    rope.factor = p.positive("factor", 1);
    rope.partial = partial;
  } else {
    constexpr RopeKind kKnown[] = {RopeKind::linear, RopeKind::dynamic,  RopeKind::llama3,
                                   RopeKind::yarn,   RopeKind::longrope, RopeKind::proportional};
    unsupported(kKnown);
  }
  if (!defaults.kinds.empty() && std::ranges::find(defaults.kinds, rope.kind) == defaults.kinds.end())
    unsupported(defaults.kinds);
  return rope;
}

std::vector<double> rope_divisors(const RopeConfig& config, int64_t context) {
  const auto d = static_cast<double>(config.dims);
  double base = config.theta;
  if (config.kind == RopeKind::dynamic) {
    const double n = std::max(static_cast<double>(context), config.max_position);
    base *= std::pow(config.factor * n / config.max_position - (config.factor - 1), d / (d - 2));
  } else if (config.kind == RopeKind::alpha_ntk) {
    base *= std::pow(config.alpha, d / (d - 2));
  }

  double low = 0, high = 0;
  if (config.kind == RopeKind::yarn) {
    auto correction = [&](double rotations) {
      return d * std::log(config.original_max_position / (2 * std::numbers::pi * rotations)) /
             (2 * std::log(base));
    };
    low = correction(config.beta_fast);
    high = correction(config.beta_slow);
    if (config.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;
  }

  const bool use_long =
      config.kind == RopeKind::longrope && static_cast<double>(context) > config.original_max_position;
  std::vector<double> out;
  for (int64_t i = 0; i < config.dims / 2; ++i) {
    const auto at = static_cast<size_t>(i);
    const double e = std::pow(base, 2.0 * static_cast<double>(i) / d);
    double f = e;
    switch (config.kind) {
      case RopeKind::standard:
      case RopeKind::dynamic:
      case RopeKind::alpha_ntk:
        break;
      case RopeKind::linear:
        f = e * config.factor;
        break;
      case RopeKind::llama3: {
        const double wavelength = 2 * std::numbers::pi * e;
        if (wavelength > config.original_max_position / config.low_freq_factor) {
          f = e * config.factor;
        } else if (!(wavelength < config.original_max_position / config.high_freq_factor)) {
          const double smooth = (config.original_max_position / wavelength - config.low_freq_factor) /
                                (config.high_freq_factor - config.low_freq_factor);
          f = e / ((1 - smooth) / config.factor + smooth);
        }
        break;
      }
      case RopeKind::yarn: {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        const double mix = 1 - ramp;
        f = config.factor * e / (config.factor * mix + (1 - mix));
        break;
      }
      case RopeKind::longrope:
        f = e * (use_long ? config.long_factor[at] : config.short_factor[at]);
        break;
      case RopeKind::proportional:
        f = i < static_cast<int64_t>(d * config.partial / 2) ? config.factor * e
                                                             : std::numeric_limits<double>::infinity();
        break;
      case RopeKind::factors:
        f = e * config.divisor_factors[at];
        break;
    }
    out.push_back(f);
  }
  return out;
}

ops::RopeTable rope_table(const RopeConfig& config, int64_t context) {
  ops::RopeTable table;
  table.pre_scale = static_cast<float>(config.attention_factor);
  for (double f : rope_divisors(config, context)) {
    const double inverse = std::isinf(f) ? 0.0 : 1.0 / f;
    table.inverse_frequency.push_back(static_cast<float>(config.negative ? -inverse : inverse));
  }
  return table;
}

std::string rope_regime(const RopeConfig& config, int64_t context) {
  if (config.kind == RopeKind::dynamic)
    return fmt::format("dynamic:{}", std::max(context, static_cast<int64_t>(config.max_position)));
  if (config.kind == RopeKind::longrope && config.long_factor != config.short_factor)
    return static_cast<double>(context) > config.original_max_position ? "longrope:long" : "longrope:short";
  return "fixed";
}

}  // namespace kvasir::models
