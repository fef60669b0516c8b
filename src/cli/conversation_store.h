// Where `kvasir chat` keeps conversations by name: kv/store.h with the identity of an opened model.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "kv/store.h"

namespace kvasir::cli {

std::filesystem::path state_folder();          // $XDG_STATE_HOME/kvasir, else ~/.local/state/kvasir
std::filesystem::path default_store_folder();  // kv in it

// `create`: to store something there. Otherwise a folder that is not there stays so.
std::unique_ptr<kv::DiskStore> open_store(const std::filesystem::path& folder, engine::Engine& engine,
                                          const std::filesystem::path& checkpoint, bool create);

}  // namespace kvasir::cli
