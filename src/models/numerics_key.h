// What the bits of a sequence's logits depend on, besides its own tokens (design law 1).
//
// Every part that can change a result is a field here; the key is the SHA-256 of their canonical text. It
// keys the prefix tree, the disk store and recorded programs: equal keys mean equal bits, and nothing else
// identifies numerics.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/isa.h"
#include "kv/geometry.h"

namespace kvasir::models {

// Changes whenever a kernel, a reduction order or a graph changes the bits that it produces.
inline constexpr int kKernelSetVersion = 3;

struct NumericsParts {
  std::string weights;  // hex digest of everything packed, in packing order
  std::string config;   // canonical text of the resolved configuration (config.h)
  // "f32", "bf16", "int8", "int16": what every product was told; "auto": each by the format of its weight,
  // and these differ.
  std::string activations;
  std::vector<kv::GroupGeometry> kv;
  int64_t kv_start = 0;  // tokens that stay plain before conversion
  IsaLevel isa = IsaLevel::generic;
  std::string device = "cpu";
  int tensor_parallel = 1;
  std::string rope;  // the regime that the context limit selected: "fixed", "dynamic:32768", "longrope:long"
  std::string adapter;  // digest of the adapter of this sequence; empty: none
};

class NumericsKey {
 public:
  NumericsKey() = default;
  explicit NumericsKey(const NumericsParts& parts);

  const std::array<uint8_t, 32>& bytes() const { return bytes_; }
  std::string hex() const;
  bool operator==(const NumericsKey&) const = default;

 private:
  std::array<uint8_t, 32> bytes_{};
};

// The text that is hashed: one "name=value" line a field, in a fixed order. Shown by `inspect`.
std::string canonical_text(const NumericsParts& parts);

}  // namespace kvasir::models
