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
// Pools for load.rows sequences of `context` tokens each.
CachePlan plan_cache(std::span<const models::KvGroup> groups, const models::LoadOptions& load,
                     int64_t context);

// Several lines, for people: one a term.
std::string describe(const MemoryReport& report);

}  // namespace kvasir::engine
