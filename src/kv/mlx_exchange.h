// Keys and values from and for mlx-lm (mlx_cache_file.h): a prompt cache file as a sequence, and a stored
// sequence as such a file. Nothing is computed: rows are copied, and dtypes widened where that is exact.
//
// The file's layer i is the model's layer i, and every layer has a cache of its own. Keys must lie in a row
// as they do in the model's pages: models::mlx_lm_family says for which families that is so.
#pragma once

#include <filesystem>
#include <string>

#include "base/thread_team.h"
#include "kv/cache.h"
#include "kv/kvk_file.h"
#include "kv/mlx_cache_file.h"

namespace kvasir::kv {

// A sequence of the cache with the file's bytes; its origin is mlx-lm. The file's layers must be the cache's:
// heads, head dims, window, and a codec that holds what the file has. What a window of the cache cannot see
// any more is left out. Full layers take a ring that has left nothing out, windowed ones a cache without a
// window of no more tokens than theirs. `team` (may be null) shares the copying. Throws Error{invalid_input}
// naming the layer and what differs, KvPoolExhausted.
Sequence import_mlx_cache(KvCache& cache, const MlxCacheFile& file, ThreadTeam* team = nullptr);

// "f32", "affine:8:64:bf16": the codec under which a layer's bytes are kept as they are.
std::string fitting_codec(const MlxLayer& layer);

// Writes an entry as the file that mlx-lm of this form reads. `windows`: whether mlx-lm gives the family's
// windowed layers rings; otherwise those can be exported while nothing has left their window. Metadata:
// "model" (the entry's), "tokenizer_config" (empty, as mlx_lm.generate wants it), "tokens" (their ids).
// Throws Error{unsupported} for codecs that mlx-lm does not have, and what write_safetensors throws.
void export_mlx_cache(const KvkFile& entry, const std::filesystem::path& file, MlxForm form, bool windows);

}  // namespace kvasir::kv
