// What identifies a loaded model's sequences on disk (kv/store.h).
#pragma once

#include <filesystem>
#include <string>

#include "kv/store.h"
#include "models/model.h"

namespace kvasir::engine {

// 16 hex digits over what makes token ids of text in the checkpoint; empty: it has no tokenizer. Templates do
// not count.
std::string tokenizer_hash(const std::filesystem::path& checkpoint);

// identity and numerics are filled in, the model's name is the checkpoint's; the folder, the cap and where
// warnings go are the caller's.
kv::DiskStore::Options store_options(const models::Model& model, std::string scheme_key,
                                     const std::filesystem::path& checkpoint);

}  // namespace kvasir::engine
