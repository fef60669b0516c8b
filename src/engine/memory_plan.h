// The memory contract: what a load will take, computed from headers, and equal to what the ledger holds
// afterwards.
#pragma once

#include <filesystem>
#include <string>

#include "engine/engine.h"
#include "kv/cache_shape.h"

namespace kvasir::engine {

// Options with their defaults filled in (threads).
EngineOptions with_defaults(const EngineOptions& options);

MemoryReport plan_memory(const std::filesystem::path& path, const EngineOptions& options);

// What `kvasir pack` takes: one packed weight at a time, and the process.
struct PackMemory {
  size_t weight_bytes = 0;  // of the largest
  size_t process_bytes = 0;
  size_t total_bytes = 0;
  size_t available_bytes = 0;
  bool fits = false;
};
PackMemory plan_pack_memory(const std::filesystem::path& path, const EngineOptions& options);

struct CachePlan {
  kv::CacheShape shape;
  kv::CacheCapacity capacity;
  kv::CacheBytes bytes;
};
// Pools for the rows and kept contexts of `options`, `context` tokens each.
CachePlan plan_cache(const kv::CacheShape& shape, const EngineOptions& options, int64_t context);

// Several lines, for people: one a term.
std::string describe(const MemoryReport& report);

}  // namespace kvasir::engine
