// What identifies a loaded model's sequences on disk (kv/store.h).
#pragma once

#include <string>

#include "kv/store.h"
#include "models/model.h"

namespace kvasir::engine {

// identity and numerics are filled in; the folder, the cap and where warnings go are the caller's. `name` is
// for people.
kv::DiskStore::Options store_options(const models::Model& model, std::string scheme_key, std::string name);

}  // namespace kvasir::engine
