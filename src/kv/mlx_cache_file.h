// A prompt cache as mlx-lm's save_prompt_cache writes it (mlx_lm/models/cache.py): a safetensors file with
// one list of arrays a layer, named by their place in it, and metadata of strings. Two forms, which do not
// read each other:
//
//                        before 0.32                        from 0.32 on
//   KVCache              L.0 K, L.1 V                       L.0 K, L.1 V, L.2 offset
//   QuantizedKVCache     L.0.0..2 keys, L.1.0..2 values     the same, L.2 offset, L.3 group, L.4 bits
//   RotatingKVCache      L.0 K, L.1 V                       the same, L.2 offset, L.3 keep, L.4 max_size, L.5
//   idx metadata             0.L[.i] numbers of layer L as      0.KEY the user's, 1.L class,
//                        text, 1.KEY the user's, 2.L class  2.0 "", 2.n.0/.1 path and type of the n-th number
//   numbers, in order    Quantized: offset, group, bits     tensors of shape [] and dtype I32
//                        Rotating: keep, max_size,
//                        offset, idx
//   tokens stored        the live ones                      as in memory: columns that are not used yet
//   follow
//
// K and V are [1, heads, columns, head_dim]; quantized ones are [1, heads, columns, F] of the packed words
// (U32, F = head_dim * bits / 32), the scales and the biases (F = head_dim / group) of MLX's affine
// quantization (kv-cache.md 3.2). The columns of a rotating cache are a ring once it is full: column idx is
// the oldest, behind the first `keep` ones, which stay. Keys are those after RoPE.
//
// Readers trust nothing: Error{corrupt_file} names the file, the layer and what is wrong with it;
// Error{unsupported} a cache of another class.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "formats/safetensors.h"
#include "kv/geometry.h"

namespace kvasir::kv {

enum class MlxForm : uint8_t { before_0_32, from_0_32 };
// "mlx-lm before 0.32", "mlx-lm from 0.32 on".
std::string_view name(MlxForm form);

struct MlxLayer {
  enum class Kind : uint8_t { plain, quantized, rotating };
  Kind kind = Kind::plain;
  int kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  CodecPair codec;      // plain, or affine with `bits`, `group` and the dtype of scales
  int32_t columns = 0;  // of its tensors
  int32_t offset = 0;   // tokens seen
  // Rotating only.
  int32_t window = 0;  // max_size
  int32_t keep = 0;
  int32_t next = 0;  // idx
  // Positions that are stored: [0, sinks) and [first, offset).
  int32_t sinks = 0;
  int32_t first = 0;
};

class MlxCacheFile {
 public:
  static MlxCacheFile open(const std::filesystem::path& path);

  const std::string& path() const { return file_.path(); }
  MlxForm form() const { return form_; }
  std::span<const MlxLayer> layers() const { return layers_; }  // at least one, all of one offset
  int32_t offset() const { return layers_[0].offset; }
  // What the user of mlx-lm stored beside the cache, in file order ("model", "tokenizer_config", ...).
  std::span<const std::pair<std::string, std::string>> metadata() const { return metadata_; }

  // The row of one position, which must be stored, in one plane: in the order and form of kv::planes().
  std::span<const std::byte> row(size_t layer, size_t plane, int head, int32_t position) const;

 private:
  friend class MlxCacheParser;
  struct Plane {
    std::span<const std::byte> bytes;  // [heads, columns, row_bytes]
    size_t row_bytes = 0;
  };
  explicit MlxCacheFile(formats::SafetensorsFile file) : file_(std::move(file)) {}

  formats::SafetensorsFile file_;
  MlxForm form_ = MlxForm::from_0_32;
  std::vector<MlxLayer> layers_;
  std::vector<std::vector<Plane>> planes_;  // [layers]
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace kvasir::kv
