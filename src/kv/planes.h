// The planes of a codec, in canonical order, and what one token takes in them (kv-cache.md 2.1 and 3). Files,
// hashes and byte counts follow this table; where the bytes lie inside a page in memory is PageLayout's
// business.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kv/geometry.h"

namespace kvasir::kv {

struct Plane {
  std::string name;   // "K", "Kq", "Ks", "Kb", "kIdx", ... as in the table of 2.1
  std::string dtype;  // of its elements: "bf16", "i8", "u4" (little-endian stream of 4-bit codes), ...
  size_t bytes = 0;   // F: bytes of one token and head
  bool operator==(const Plane&) const = default;
};

// Planes of K, then of V; of an MLA group "latent", "rope" and, with an indexer, "dsa". The codec must be
// valid for the head dims (why_invalid).
std::vector<Plane> planes(const GroupGeometry& geometry);
std::vector<Plane> planes(const CodecPair& codec, int head_dim_k, int head_dim_v);  // not of MLA
size_t plane_bytes(const PlaneCodec& codec,
                   int head_dim);                   // bytes of one token and head in all planes of K (or V)
size_t token_bytes(const GroupGeometry& geometry);  // canonical bytes of a token, all layers and heads

// Why a plane codec cannot hold vectors of `head_dim` channels; empty when it can.
std::string why_invalid(const PlaneCodec& codec, int head_dim);

}  // namespace kvasir::kv
