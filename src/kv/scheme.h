// What `--kv` and its companions ask for, resolved against a model: one codec per cache-owning layer, when
// rows convert, and the key of all that (kv-cache.md 4.1). What is accepted is what runs; everything else is
// refused with the reason.
//
//   SPEC                           what it stores
//   f32 | f16 | bf16               plain values
//   affine:BITS[:GROUP][:SCALES]   MLX affine: 2 3 4 5 6 8 bits, groups of 32, 64 (default) or 128 channels,
//                                  SCALES f16 (default where T has 16 bits), bf16 or f32 (default for T f32)
//   q8_0 | q6_0 | q5_0 | q4_0 | q3_0   whole numbers around zero of so many bits, one f16 scale per 32
//   channels (the
//                                  form of llama.cpp's; scales of fewer than 8 bits are searched for)
//   turbo[:K,V]                    TurboQuant; turbo alone is turbo:8,3
//   rot:BITS                       rotation and codebook, on keys and values alike
//   rot:q8_0 | ... | rot:q3_0      rotation, then that
//   KPLANE/VPLANE                  keys and values apart, any two of the above (turbokey:BITS for turbo's
//   keys) config[:FILE]                  per layer, from FILE or the model folder's kv_config.json
//   auto:BYTES[:FILE]              per layer, at most BYTES per token in all, by the table in that file that
//                                  `kvasir eval kv-sensitivity` measured
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/cache_shape.h"

namespace kvasir::kv {

// A layer of the model, in order: kv-sharing and recurrent layers are listed so that naming one can be
// refused by name. MLA layers own a cache, in a form that nothing changes.
struct SchemeLayer {
  enum class Kind : uint8_t { attention, shares, recurrent, mla };
  Kind kind = Kind::attention;
  LayerGeometry geometry;  // .layer is its index in the model; the rest matters for attention and MLA layers
};

struct SchemeRequest {
  std::string spec;                   // --kv; empty: plain in the default dtype
  std::vector<std::string> layers;    // --kv-layer A[-B]=SPEC, each
  std::optional<int64_t> start;       // --kv-start
  std::optional<std::string> plain;   // --kv-plain: T of encoded layers
  Dtype default_plain = Dtype::bf16;  // of this build and activation mode (ruling 15)
  // Encoders (kv-cache.md 3.2, 3.3), for bytes that other engines' are compared with. Not on the command
  // line.
  bool affine_gpu_compat = false;  // affine as MLX's Metal and CUDA kernels encode it, in place of its CPU's
  bool turbo_guard = true;         // false: what f16 cannot hold becomes infinity, as in the reference
  std::filesystem::path model_folder;  // where kv_config.json is looked for; empty: none
  bool empty() const { return spec.empty() && layers.empty() && !start && !plain; }
};

struct Scheme {
  std::vector<LayerGeometry> owners;  // attention and MLA layers, in layer order
  std::vector<CodecPair> codecs;      // [owners]
  int32_t start = 0;
  std::string key;                 // injective over everything that changes bytes
  std::vector<std::string> notes;  // what a uniform scheme left alone, for fit, inspect and logs

  CacheShape shape(int page_tokens, size_t state_bytes = 0, bool layers_apart = false) const {
    return group_layers(owners, codecs, page_tokens, start, state_bytes, layers_apart);
  }
  size_t bytes_per_token() const;  // all layers, target codecs
};

// Throws Error{invalid_input} (grammar, ranges), Error{unsupported} (a codec that a layer cannot take, a
// layer that has no KV of its own), Error{not_found} (config or table), Error{corrupt_file}.
Scheme resolve_scheme(const SchemeRequest& request, std::span<const SchemeLayer> layers);

// One SPEC without config and auto. `plain` is T of encoded planes. `source`: what a refusal begins with;
// empty: it is the value of --kv.
CodecPair parse_codec(std::string_view spec, Dtype plain, std::string_view source = {});

// What a codec takes of a layer's token, and what is lost by it.
struct SizeAndLoss {
  size_t bytes = 0;
  double loss = 0;
};
size_t smallest_bytes(std::span<const SizeAndLoss> choices);
// Of each layer's choices one, so that the sum of their losses is least and that of their bytes at most
// `budget` (which must hold the smallest ones): an exact knapsack over bytes. Throws Error{unsupported}: too
// many, or sizes too fine; `source` is who listed them.
std::vector<size_t> least_loss(std::span<const std::vector<SizeAndLoss>> layers, size_t budget,
                               std::string_view source);

// Chooses the encoder of a plane where its codec has a choice.
void set_encoder(PlaneCodec& plane, bool gpu_compat, bool guard);

// "plain-bf16", "affine-b8g64-bf16-xf16-s0", "turbo-k8v3-bf16-s512", "affine-b8g64+rot-b4-...",
// (kv-cache.md 4.1)
std::string layer_key(const CodecPair& codec, int32_t start);
// One key for all layers when they agree, else config-<16 hex of XXH64 over the layer keys>.
std::string scheme_key(std::span<const CodecPair> codecs, int32_t start);

// "kv:plain", "kv:rotating-quant:8:64", "kv:turboquant:8:3", "kv:mla:target:dsa", ... (kv-cache.md 4.3):
// state identity of one layer, "kv:[rotating-]pair:KPLANE+VPLANE" for pairs that the table there does not
// name. It says what kind of state a layer has, not how large it is.
std::string layer_signature(const GroupGeometry& geometry);
// [owners], with the target codecs. kv/cache.h has those of a row and what they decide.
std::vector<std::string> signatures(const CacheShape& shape);

}  // namespace kvasir::kv
