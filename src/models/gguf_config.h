// GGUF metadata as a configuration: the same record that config.json gives, with GGUF's tensor names.
#pragma once

#include <span>
#include <string_view>

#include "formats/gguf.h"
#include "models/config.h"

namespace kvasir::models {

struct GgufArchitecture {
  std::string_view name;        // general.architecture
  std::string_view model_type;  // the row of the descriptor table
  // The converter stores q and k rows in the order that interleaved rope wants, although the family's own
  // rope is half-split: row h D + 2 j + s of the file is row h D + s D/2 + j of the publisher's matrix.
  bool permuted_qk;
};

std::span<const GgufArchitecture> gguf_architectures();
// The one under which the format's converter stores a family; null when there is none.
const GgufArchitecture* gguf_architecture_of(std::string_view model_type);

// The record of the same model as its converter would store it: GGUF's names, gains with the one added, fused
// projections as they are in the file.
ModelConfig as_gguf(ModelConfig config, bool permuted_qk);

// Reads metadata and the presence of tensors, no tensor data. Throws Error{unsupported} for an unknown
// architecture, naming those that are supported, and Error{corrupt_file} for missing or contradictory keys.
ModelConfig parse_gguf_config(const formats::GgufFile& file);

}  // namespace kvasir::models
