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
