// What each layer loses to each codec: the mean KL divergence of the next-token distributions to those of a
// cache in f32, when this layer alone, and of it one plane alone, is encoded.
//
// The losses of planes and layers are added up where a choice is made: small errors of different places are
// nearly independent, so the sum of their KL predicts that of all together well enough to order choices
// (docs/kv-cache.md shows both).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace kvasir::engine {

struct MeasuredCodec {
  std::string codec;  // SPEC of --kv
  size_t bytes = 0;   // a token takes in this layer
  double kl = 0;      // nats a token
};

struct LayerSensitivity {
  int layer = 0;
  std::vector<MeasuredCodec> keys, values;  // one plane encoded, the other f32: bytes of that plane
  // Pairs of them that no other pair beats in both bytes and loss, by falling bytes; losses are sums.
  std::vector<MeasuredCodec> pairs;
};

// Plane codecs that are measured when none are named.
std::vector<std::string> default_plane_codecs();

// `engine` must have been opened with `--kv f32`, LoadOptions::layers_apart, and context for all ids. Codecs
// that a layer cannot take are left out for it (none left: Error{unsupported}). Holds the reference
// distributions, [tokens][vocab] float32, and one more cache of `ids` tokens, entered in the engine's ledger.
// Throws Error{cancelled}.
std::vector<LayerSensitivity> measure_kv_sensitivity(Engine& engine, std::span<const int32_t> ids,
                                                     std::span<const std::string> plane_codecs, Dtype plain,
                                                     const std::function<void(double done)>& progress,
                                                     const std::function<bool()>& cancelled);

// The same for codecs in many layers at once.
struct MeasuredScheme {
  std::string codec;  // SPEC of --kv
  std::string
      layers;        // "all", or where a model has both kinds also "full" or "windowed": the others stay f32
  size_t bytes = 0;  // a token takes in those layers
  double kl = 0;     // nats a token
  double top1 = 0;   // share of positions at which the most likely id stays the same
};
std::vector<MeasuredScheme> measure_kv_codecs(Engine& engine, std::span<const int32_t> ids,
                                              std::span<const std::string> specs, Dtype plain,
                                              const std::function<void(double done)>& progress,
                                              const std::function<bool()>& cancelled);

// The least that the codecs take of a token, all layers together. Throws Error{unsupported} as above.
size_t least_bytes(Engine& engine, std::span<const std::string> plane_codecs, Dtype plain);

// Bytes that either takes beside the engine.
size_t sensitivity_bytes(Engine& engine, int64_t tokens);

// Keeps the pairs that no other one beats in both bytes and loss, by falling bytes.
std::vector<MeasuredCodec> frontier(std::vector<MeasuredCodec> pairs);

// Mean over the vocabulary's distribution p of log p - log q, in nats, from two rows of logits.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

}  // namespace kvasir::engine
