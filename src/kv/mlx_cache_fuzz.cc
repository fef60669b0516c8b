// Any bytes as a prompt cache file of mlx-lm: an error, or layers whose stored tokens lie inside the file.
#include <algorithm>

#include "base/error.h"
#include "formats/fuzz_file.h"
#include "kv/mlx_cache_file.h"
#include "kv/planes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  static const formats::FuzzFile fuzz("kvasir_fuzz.safetensors");
  fuzz.write(data, size);
  try {
    const kv::MlxCacheFile file = kv::MlxCacheFile::open(fuzz.path());
    for (size_t l = 0; l < file.layers().size(); ++l) {
      const kv::MlxLayer& layer = file.layers()[l];
      if (layer.offset != file.offset() || layer.first < 0 || layer.first > layer.offset) __builtin_trap();
      const auto planes = kv::planes(layer.codec, layer.head_dim_k, layer.head_dim_v);
      for (size_t p = 0; p < planes.size(); ++p)
        for (const int head : {0, layer.kv_heads - 1}) {
          const auto look = [&](int64_t position) {
            const auto row = file.row(l, p, head, static_cast<int32_t>(position));
            if (row.size() != planes[p].bytes) __builtin_trap();
            formats::FuzzFile::touch(row.front(), row.back());
          };
          for (int64_t at = layer.first; at < layer.offset; at += 1 + (layer.offset - layer.first) / 16)
            look(at);
          look(layer.offset - 1);
          for (int32_t at = 0; at < std::min(layer.sinks, 16); ++at) look(at);
        }
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
