// What may be asked of the sampler: names, orders and ranges.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "engine/sampler.h"

namespace kvasir::engine {
namespace {

constexpr std::pair<SamplerStage, std::string_view> kStageNames[] = {
    {SamplerStage::penalties, "penalties"},
    {SamplerStage::dry, "dry"},
    {SamplerStage::top_n_sigma, "top_n_sigma"},
    {SamplerStage::top_k, "top_k"},
    {SamplerStage::typical, "typical"},
    {SamplerStage::top_p, "top_p"},
    {SamplerStage::min_p, "min_p"},
    {SamplerStage::xtc, "xtc"},
    {SamplerStage::temperature, "temperature"}};

void require(bool ok, std::string_view field, double value, std::string_view range) {
  if (!ok) throw_error(ErrorCode::invalid_input, "{} must be {}, got {}", field, range, value);
}

}  // namespace

std::string_view name(SamplerStage stage) {
  for (const auto& [key, text] : kStageNames)
    if (key == stage) return text;
  return "?";
}

std::vector<SamplerStage> default_order() {
  return {SamplerStage::penalties, SamplerStage::dry,   SamplerStage::top_n_sigma,
          SamplerStage::typical,   SamplerStage::top_p, SamplerStage::min_p,
          SamplerStage::xtc,       SamplerStage::top_k, SamplerStage::temperature};
}

std::vector<SamplerStage> order_from_text(std::string_view text) {
  if (text.empty() || text == "mlx") return default_order();
  if (text == "llama")
    return {SamplerStage::penalties, SamplerStage::dry,     SamplerStage::top_n_sigma,
            SamplerStage::top_k,     SamplerStage::typical, SamplerStage::top_p,
            SamplerStage::min_p,     SamplerStage::xtc,     SamplerStage::temperature};
  if (text == "temperature_first")
    return {SamplerStage::penalties,   SamplerStage::dry,     SamplerStage::temperature,
            SamplerStage::top_n_sigma, SamplerStage::typical, SamplerStage::top_p,
            SamplerStage::min_p,       SamplerStage::xtc,     SamplerStage::top_k};
  std::vector<SamplerStage> order;
  std::string known;
  for (const auto& [key, stage] : kStageNames) known += (known.empty() ? "" : ", ") + std::string(stage);
  while (!text.empty()) {
    const size_t end = text.find_first_of(";,");
    const std::string_view part = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const auto* found = std::find_if(std::begin(kStageNames), std::end(kStageNames),
                                     [&](const auto& entry) { return entry.second == part; });
    if (found == std::end(kStageNames))
      throw_error(ErrorCode::invalid_input,
                  "sampler order: unknown stage '{}': use mlx, llama, temperature_first, or a list of {}",
                  printable(part), known);
    if (std::find(order.begin(), order.end(), found->first) != order.end())
      throw_error(ErrorCode::invalid_input, "sampler order: stage '{}' is named twice", part);
    order.push_back(found->first);
  }
  return order;
}

std::string_view SamplingOptions::asks_for(SamplerStage stage) const {
  const auto field = [](bool asked, std::string_view name) { return asked ? name : std::string_view(); };
  switch (stage) {
    case SamplerStage::penalties:
      if (repetition_penalty != 0 && repetition_penalty != 1) return "repetition_penalty";
      if (presence_penalty != 0) return "presence_penalty";
      return field(frequency_penalty != 0, "frequency_penalty");
    case SamplerStage::dry:
      return field(dry_multiplier != 0, "dry_multiplier");
    case SamplerStage::top_n_sigma:
      return field(top_n_sigma > 0, "top_n_sigma");
    case SamplerStage::top_k:
      return field(top_k > 0, "top_k");
    case SamplerStage::typical:
      return field(typical_p > 0 && typical_p < 1, "typical");
    case SamplerStage::top_p:
      return field(top_p > 0 && top_p < 1, "top_p");
    case SamplerStage::min_p:
      return field(min_p > 0, "min_p");
    case SamplerStage::xtc:
      return field(xtc_probability > 0, "xtc_probability");
    case SamplerStage::temperature:
      break;  // every order may leave it out
  }
  return {};
}

void SamplingOptions::validate(int64_t vocabulary) const {
  require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature, "a finite number >= 0");
  require(top_k >= 0, "top_k", top_k, ">= 0");
  require(top_p >= 0 && top_p <= 1, "top_p", top_p, "in [0, 1]");
  require(min_p >= 0 && min_p <= 1, "min_p", min_p, "in [0, 1]");
  require(min_tokens_to_keep >= 1, "min_tokens_to_keep", min_tokens_to_keep, ">= 1");
  require(typical_p >= 0 && typical_p <= 1, "typical_p", typical_p, "in [0, 1]");
  require(top_n_sigma >= 0 && std::isfinite(top_n_sigma), "top_n_sigma", top_n_sigma, "a finite number >= 0");
  require(xtc_probability >= 0 && xtc_probability <= 1, "xtc_probability", xtc_probability, "in [0, 1]");
  require(xtc_threshold >= 0 && xtc_threshold <= 0.5f, "xtc_threshold", xtc_threshold, "in [0, 0.5]");
  require(repetition_penalty >= 0 && std::isfinite(repetition_penalty), "repetition_penalty",
          repetition_penalty, "a finite number >= 0");
  require(std::isfinite(presence_penalty), "presence_penalty", presence_penalty, "finite");
  require(std::isfinite(frequency_penalty), "frequency_penalty", frequency_penalty, "finite");
  require(repetition_context >= 0, "repetition_context_size", repetition_context, ">= 0");
  require(presence_context >= 0, "presence_context_size", presence_context, ">= 0");
  require(frequency_context >= 0, "frequency_context_size", frequency_context, ">= 0");
  require(dry_multiplier >= 0 && std::isfinite(dry_multiplier), "dry_multiplier", dry_multiplier,
          "a finite number >= 0");
  require(dry_multiplier == 0 || (dry_base >= 1 && std::isfinite(dry_base)), "dry_base", dry_base,
          "a finite number >= 1");
  require(dry_allowed_length >= 0, "dry_allowed_length", dry_allowed_length, ">= 0");
  require(dry_context >= 0, "dry_penalty_last_n", dry_context, ">= 0");
  for (const std::string& breaker : dry_sequence_breakers)
    if (breaker.empty())
      throw_error(ErrorCode::invalid_input, "dry_sequence_breakers: one is empty, expected texts");
  // A stage that an order leaves out does nothing: whoever asks for it means it.
  if (!order.empty())
    for (const auto& [stage, text] : kStageNames)
      if (const std::string_view field = asks_for(stage);
          !field.empty() && std::find(order.begin(), order.end(), stage) == order.end())
        throw_error(ErrorCode::invalid_input, "{} is given, and the sampler order leaves {} out", field,
                    text);
  require(mirostat == 0 || mirostat == 2, "mirostat", mirostat, "0 or 2");
  require(mirostat_tau > 0, "mirostat_tau", mirostat_tau, "> 0");
  require(mirostat_eta > 0, "mirostat_eta", mirostat_eta, "> 0");
  if (logit_bias.size() > 1024)
    throw_error(ErrorCode::invalid_input, "logit_bias has {} entries, at most 1024", logit_bias.size());
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocabulary)
      throw_error(ErrorCode::invalid_input, "logit_bias: token id {} is outside the vocabulary of {}", id,
                  vocabulary);
    require(std::isfinite(bias), "logit_bias value", bias, "finite");
  }
}

}  // namespace kvasir::engine
