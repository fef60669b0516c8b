// What a layer group of the KV cache stores for one token: geometry, retention and codec (spec: kv-cache.md
// 0, 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace kvasir::kv {

// How one plane (K or V) of a token is encoded.
struct PlaneCodec {
  enum class Kind : uint8_t {
    plain,      // the value rounded to `plain`
    affine,     // MLX affine quantization, `bits` in 2 3 4 5 6 8, `group` in 32 64 128 (kv-cache.md 3.2)
    turbo_key,  // TurboQuant's keys, `bits` in 2 4 5 8, groups of 32 (3.3)
    rotated,    // rotation and codebook, `bits` in 2 3 4 5 8, RMS scale per 32 channels (3.3b)
    // Whole numbers around zero times one f16 scale per 32 channels (the form of llama.cpp's q8_0, q5_0 and
    // q4_0), `bits` in 3 4 5 6 8, and the same of rotated vectors.
    q_0,
    rotated_q_0,
  };
  Kind kind = Kind::plain;
  Dtype plain = Dtype::bf16;  // element type of unconverted tokens: f32, f16 or bf16
  int bits = 0;
  int group = 0;
  Dtype scale_dtype = Dtype::f16;  // affine: of scales and biases
  // Library options of the encoders (3.2, 3.3); decoding is the same.
  bool gpu_compat = false;  // affine: the rule of MLX's Metal and CUDA kernels in place of its CPU's
  bool guard = true;  // turbo_key, rotated: off, what f16 cannot hold becomes infinity, as in vllm-metal
  bool rotates() const { return kind == Kind::rotated || kind == Kind::rotated_q_0; }
  bool operator==(const PlaneCodec&) const = default;
};

struct CodecPair {
  PlaneCodec k;
  PlaneCodec v;
  // MLA's latents in place of keys and values (MlaGeometry): k and v are plain f32, and nothing encodes them.
  bool mla = false;
  bool is_plain() const { return k.kind == PlaneCodec::Kind::plain && v.kind == PlaneCodec::Kind::plain; }
  bool operator==(const CodecPair&) const = default;
};

// The codec of every MLA layer.
constexpr CodecPair mla_codec() {
  return {.k = {.kind = PlaneCodec::Kind::plain, .plain = Dtype::f32},
          .v = {.kind = PlaneCodec::Kind::plain, .plain = Dtype::f32},
          .mla = true};
}

// What an MLA layer stores of a token (kv-cache.md 2.1, 12): f32 of one head, the latent [R] where other
// layers have keys (head_dim_k = R), the part that carries the position [R_rope] where they have values
// (head_dim_v = R_rope), and with an indexer its key [D_idx].
struct MlaGeometry {
  int dsa_dim = 0;         // D_idx; 0: no indexer
  int32_t max_tokens = 0;  // that a row may hold
  bool mtp = false;        // of the native multi-token-prediction layer, which has no indexer
  bool operator==(const MlaGeometry&) const = default;
};

// Layers with equal geometry, retention and codec form a group and share a page table.
struct GroupGeometry {
  int layers = 0;                  // cache-owning layers in the group
  int kv_heads = 0;                // H
  int head_dim_k = 0;              // D_k
  int head_dim_v = 0;              // D_v
  std::optional<int> window = {};  // keys a query may see, itself included (none: all)
  int sinks = 0;                   // first positions that are never evicted
  CodecPair codec;
  int page_tokens = 64;                 // P: a power of two, 16 .. 256 (unit tests: smaller ones too)
  std::optional<MlaGeometry> mla = {};  // exactly where codec.mla; no window then, and one head
  bool operator==(const GroupGeometry&) const = default;
};

}  // namespace kvasir::kv
