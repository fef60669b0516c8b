// Fetches files of a commit into the cache: several files and several parts of a large one at once, resumed
// where an earlier attempt stopped, verified by the digests that the hub lists, never visible before they are
// whole.
//
// The parts of a file are fetched by several connections and go to disk as they come: those of the foremost
// part to <digest>.incomplete, which is always a plain prefix, the others' beside it until their turn comes
// (blob_writer.h). What a slow connection still owes holds the others back after a few parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/client.h"
#include "hub/listing.h"

namespace kvasir::hub {

struct DownloadItem {
  RemoteFile file;
  // Only so many first bytes are wanted, and stay in <digest>.incomplete (headers, to plan with): no link, no
  // verification. The default is the whole file.
  uint64_t first_bytes = UINT64_MAX;
};

struct DownloadProgress {
  uint64_t done = 0;  // bytes that are on disk, what was there before included
  uint64_t total = 0;
};

struct DownloadOptions {
  int connections = 8;
  uint64_t part_bytes = uint64_t{16} << 20;
  std::function<void(const DownloadProgress&)> progress;  // called by one thread at a time
};

struct DownloadOutcome {
  uint64_t reused_bytes = 0;  // were there already, whole or as the beginning of a file
  int files = 0;              // that became whole now
};

// Throws Error: resource_exhausted (disk full, before the first byte or during), corrupt_file (digests differ
// twice, or the server contradicts its listing), not_found (network, access), cancelled. Whatever it throws,
// what is on disk can be resumed by the next call. Links are made for each file as it completes; no ref is
// written (HubCache::write_ref is the caller's, when it has everything that it wanted).
DownloadOutcome download(HubClient& client, const HubCache& cache, const Listing& listing,
                         const std::vector<DownloadItem>& items, const DownloadOptions& options);

// Bytes that a download would have to add to the disk.
uint64_t missing_bytes(const HubCache& cache, const std::string& repo,
                       const std::vector<DownloadItem>& items);

// Throws Error{resource_exhausted} "need X, have Y" when the disk that holds the cache has not `bytes` and a
// reserve free.
void check_free_space(const HubCache& cache, uint64_t bytes);

}  // namespace kvasir::hub
