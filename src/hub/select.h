// Which files of a repository a model needs to run, and nothing else: no .bin, .pth, ONNX, pictures or
// papers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/listing.h"

namespace kvasir::hub {

// A model in GGUF form: one file, or the parts of a split one in order.
struct GgufGroup {
  std::string name;   // path without "-00001-of-00003" and ".gguf"
  std::string quant;  // "Q4_K_M", "UD-IQ2_XXS", "BF16"; empty when the name says none
  std::vector<RemoteFile> parts;
  uint64_t bytes = 0;
  bool complete = true;  // all parts of a split are listed

  // f32, f16 or bf16 weights, by name.
  bool is_unquantized() const;
};

// The quantization that a file name states, upper case; empty when none is found.
std::string quant_in_name(std::string_view file_name);

// Splits "name-00002-of-00005.gguf": true and the pieces, or false for a file that is no part.
bool split_part(std::string_view path, std::string* stem, uint32_t* number, uint32_t* count);

// The GGUF models among `files`, largest first; files beside models (mmproj, imatrix) are left out.
std::vector<GgufGroup> gguf_groups(std::span<const RemoteFile> files);

// The group that `quant` names: equal to its quantization in any case of letters, or the beginning of just
// one, or the group's file name. Throws Error{not_found} with those that exist.
const GgufGroup& find_quant(std::span<const GgufGroup> groups, std::string_view quant,
                            const std::string& repo);

// The small files beside safetensors weights that are needed to run: configuration, tokenizer, templates.
bool is_text_side(std::string_view path);

// The weights of a safetensors repository: those that `index_files` names (the values of
// model.safetensors.index.json), else model.safetensors, else model*.safetensors.
std::vector<RemoteFile> safetensors_weights(const Listing& listing, std::span<const std::string> index_files);

inline constexpr std::string_view kSafetensorsIndex = "model.safetensors.index.json";

// The files that an index names, sorted. Throws Error{corrupt_file} for one that is no plain file name.
std::vector<std::string> files_of_index(std::string_view json, const std::string& where);

}  // namespace kvasir::hub
