// Which families have the same caches in mlx-lm: keys that lie in a row as in our pages, and values of the
// same rows. Pages hold keys after rope in the layout of ModelConfig::rope_layout, whatever the checkpoint's
// form is: the permuted rows of GGUF's llama family are put back when weights are packed. mlx-lm rotates the
// same pairs (its `traditional` rope is the interleaved one), so nothing is converted where a family is
// listed.
#pragma once

#include <string_view>

namespace kvasir::models {

struct MlxLmFamily {
  std::string_view model_type;  // after remapping
  // mlx-lm gives windowed layers a RotatingKVCache; otherwise it runs the family without windows.
  bool windows = false;
};

// Null: its caches were not compared, or are others. Those listed were:
// tools/oracles/mlx_prompt_cache_families.py runs both engines on the same random checkpoint, and compares
// every key and value.
const MlxLmFamily* mlx_lm_family(std::string_view model_type);

}  // namespace kvasir::models
