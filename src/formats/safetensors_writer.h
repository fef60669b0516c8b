// Writing of safetensors files: the same bytes for the same input, complete or not there at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors.h"
#include "formats/tensor_writer.h"

namespace kvasir::formats {

struct SafetensorsToWrite {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::f32;
  std::vector<int64_t> shape;  // outermost first
  TensorProducer produce;
};

// Tensors are laid out widest dtype first, then by name (which aligns every one), the header padded with
// spaces so that data begins at a multiple of 8. Throws Error{invalid_input} for two equal names,
// Error{internal} when a producer gives another number of bytes than its shape needs, and what AtomicFile
// throws.
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsToWrite> tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata = {});

// A model folder's weights: model.safetensors, or, past `shard_bytes`, model-00001-of-0000N.safetensors with
// an index. A tensor is never split; shards are filled in the order given.
void write_safetensors_model(const std::filesystem::path& folder, std::vector<SafetensorsToWrite> tensors,
                             const std::vector<std::pair<std::string, std::string>>& metadata = {},
                             uint64_t shard_bytes = uint64_t{5} << 30);

}  // namespace kvasir::formats
