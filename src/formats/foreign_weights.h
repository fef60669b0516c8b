// The stored tensors of one module that another tool quantized, as a matrix of ours: NVFP4 or MXFP4 as it
// lies in the file; codes and scales in other arrangements through a reader of rows. Codes and scales keep
// their values; nothing is quantized again, and nothing is held in memory beside the mapping.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "formats/foreign_quantization.h"
#include "formats/safetensors.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

struct ForeignTensor {
  ForeignScheme scheme;
  int64_t rows = 0, cols = 0;      // [out, in]
  int group = 0;                   // columns per scale of the converted form
  Dtype scale_dtype = Dtype::f32;  // of the converted form
  // Null where the module has none. The pointers are into the model's catalogue.
  const SafetensorsTensor* codes = nullptr;
  const SafetensorsTensor* scales = nullptr;
  const SafetensorsTensor* zeros = nullptr;
  const SafetensorsTensor* order = nullptr;   // g_idx: the group of each column
  const SafetensorsTensor* shape = nullptr;   // [2]: rows and columns once more
  const SafetensorsTensor* global = nullptr;  // one scale of the whole tensor

  StorageFormat format() const;
  int bits() const;  // of a converted code
  uint64_t stored_bytes() const;
};

// Suffixes of the tensors that hold the codes of a module, and of everything that goes with them.
bool is_foreign_codes(std::string_view suffix);
bool is_foreign_companion(std::string_view suffix);

// Reads and checks the headers of module `path`. Throws Error{corrupt_file} naming tensor, expected and got,
// Error{unsupported} for shapes that the converted form cannot hold.
ForeignTensor read_foreign(const SafetensorsModel& model, std::string_view path, const ForeignScheme& scheme);

// The matrix over the mapping of `model`, which must outlive it. Throws Error{corrupt_file} for shapes and
// scales of whole tensors, Error{unsupported} for column orders, that disagree with the configuration; its
// reader does for zero points.
WeightSource convert_foreign(const SafetensorsModel& model, const ForeignTensor& tensor,
                             std::string_view name);
// What convert_foreign() would give, from headers: without data.
WeightSource foreign_layout(const ForeignTensor& tensor, std::string_view name);

}  // namespace kvasir::formats
