// The memory plan of a model that is still on the hub: its headers are fetched, and planned with as `kvasir
// fit` plans with whole files.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "hub/download.h"
#include "hub/listing.h"

namespace kvasir::cli {

// `weights`: the parts of a GGUF model, or safetensors files; `small`: files that are in the cache already
// and belong beside them (configuration, index). What is fetched of the weights is the beginning of the
// download, in <digest>.incomplete. Throws the loader's errors (unsupported family or format), the
// tokenizer's, Error{unsupported} where there is none, and the download's.
engine::MemoryReport plan_remote(hub::HubClient& client, const hub::HubCache& cache,
                                 const hub::Listing& listing, const std::vector<hub::RemoteFile>& weights,
                                 const std::vector<hub::RemoteFile>& small,
                                 const hub::DownloadOptions& download, const engine::EngineOptions& options);

}  // namespace kvasir::cli
