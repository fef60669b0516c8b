// Checkpoints of random weights, in any supported family, size and storage format: for tests, benchmarks and
// parity with other engines. The same options give the same bytes.
//
// What a family stores is not written down here: the graph builder is asked for its tensors (WeightStore in
// listing mode), so a family that can run can be synthesized.
//
// Values of plain formats, and of everything one-dimensional, follow a rule that other programs can repeat
// (tools/oracles/tiny_families.py does):
//   key  = FNV-1a(64 bits) of the tensor's name, xor seed * 0x9E3779B97F4A7C15
//   u(i) = ((mix(key + i) >> 40) - 2^23) / 2^23 in [-1, 1),  i the row-major index,  mix = the finalizer of
//   SplitMix64 applied
//          to (key + i + 1) * 0x9E3779B97F4A7C15
//   matrix [.., cols]        u(i) * 2^-k,  2^k the largest power of two with 4^k <= cols
//   bias (".bias")           u(i) / 4
//   norm gain                1 + u(i) / 4        (plus-one families store u(i) / 4)
//   ".alpha_p" ".alpha_n"    1/2 + u / 4;  ".beta" 1/2;  ".eps" -1e-6
// computed in f32, then rounded to the storage dtype. Quantized matrices hold formats::RandomRows of the same
// deviation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "formats/storage_format.h"

namespace kvasir::models {

struct SynthFormat {
  enum class Container : uint8_t { safetensors, mlx, gguf };
  Container container = Container::safetensors;
  formats::StorageFormat matrices = formats::StorageFormat::f32;  // of linear weights and embeddings
  int bits = 0;                                                   // of MLX modes
  int group_size = 0;                                             // of MLX modes
  Dtype scales = Dtype::f16;                                      // mlx_affine
};

// "f32" "f16" "bf16" (safetensors); "mlx-affine-4-64", "mlx-affine-8-32", "mlx-mxfp4", "mlx-mxfp8",
// "mlx-nvfp4"; "gguf-f32", "gguf-q4_0", "gguf-q4_K", any GGUF storage format. Throws Error{invalid_input}
// naming what is known.
SynthFormat synth_format(std::string_view text);

std::vector<std::string> synth_families();  // every model_type that can be written
std::vector<std::string> synth_sizes();     // "tiny", "small", "135m", "1b", "8b"

// config.json of a family at a size, `overrides` merged in (null removes a key). Throws Error{invalid_input}.
nlohmann::json synth_config(std::string_view family, std::string_view size,
                            const nlohmann::json& overrides = nullptr);

// Of `config`, made from `base`: throws Error{invalid_input} for a field that is not in `base` and that this
// family does not have, naming the nearest one.
void check_fields(const nlohmann::json& base, const nlohmann::json& config);

// Writes the checkpoint: a folder with config.json and model*.safetensors, or one .gguf file. `config` is a
// config.json of any supported family. Throws Error{invalid_input, unsupported} for what cannot be written (a
// format whose block does not divide a matrix's columns is named with the matrix).
void synthesize(const nlohmann::json& config, const SynthFormat& format, uint64_t seed,
                const std::filesystem::path& out);

// The rule above.
float synth_unit(uint64_t key, uint64_t index);
uint64_t synth_key(std::string_view name, uint64_t seed);

}  // namespace kvasir::models
