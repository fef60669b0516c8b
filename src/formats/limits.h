// Limits on untrusted files (spec: formats.md 0.1). A caller may raise them; an error that meets one names
// limit and value.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::formats {

struct ReadLimits {
  size_t config_bytes = size_t{16} << 20;  // config.json and every other small JSON file
  size_t index_bytes = size_t{64} << 20;   // model.safetensors.index.json
  int json_depth = 64;
  uint64_t safetensors_header_bytes = 100'000'000;
  uint64_t tensors = 2'000'000;  // of one model, over all its files
  uint64_t shards = 10'000;
  uint64_t gguf_string_bytes = uint64_t{1} << 30;
  uint64_t gguf_pairs = 1'000'000;
  uint64_t gguf_array_elements = uint64_t{1} << 30;
  uint64_t gguf_key_bytes = 65'535;
  uint64_t template_bytes = uint64_t{4} << 20;
};

}  // namespace kvasir::formats
