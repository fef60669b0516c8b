#include "engine/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/topology.h"

namespace kvasir::engine {
namespace {

// Code, libraries, allocator and the tokenizer: what the process itself needs beside arenas and pools. The
// constant is the resident set of a process that has started and opened nothing; the vocabulary's part covers
// tables and strings of the tokenizer. Both were measured (docs/memory.md) and are upper bounds, not results
// of a run.
constexpr size_t kProcessBytes = size_t{24} << 20;
constexpr size_t kBytesPerVocabularyEntry = 160;

size_t process_bytes(int64_t vocab) {
  return kProcessBytes + static_cast<size_t>(vocab) * kBytesPerVocabularyEntry;
}

size_t available_bytes(const EngineOptions& options) {
  return options.memory_budget > 0 ? options.memory_budget : discover_topology().available_bytes;
}

// A window's tokens begin and end anywhere in a page.
size_t resume_point_bytes(const models::MemoryPlan& plan, const std::vector<kv::GroupBytes>& pools) {
  size_t bytes = plan.kv_shape.state_bytes;
  for (size_t g = 0; g < plan.kv_groups.size(); ++g) {
    const kv::GroupGeometry& geometry = plan.kv_groups[g].geometry;
    if (!geometry.window) continue;
    const auto page = static_cast<size_t>(geometry.page_tokens);
    const size_t pages = (static_cast<size_t>(*geometry.window - 1) + page - 1) / page + 1;
    bytes += pages * std::max(plan.kv_groups[g].page_bytes, pools[g].plain_page_bytes);
  }
  return bytes;
}

}  // namespace

EngineOptions with_defaults(const EngineOptions& given) {
  EngineOptions options = given;
  if (options.load.threads == 0) options.load.threads = default_threads(discover_topology());
  if (options.load.threads < 1)
    throw_error(ErrorCode::invalid_input, "threads must be at least 1, got {}", options.load.threads);
  if (options.load.rows < 1)
    throw_error(ErrorCode::invalid_input, "batch must be at least 1, got {}", options.load.rows);
  if (options.load.chunk < 1)
    throw_error(ErrorCode::invalid_input, "chunk must be at least 1, got {}", options.load.chunk);
  if (options.load.context < 0)
    throw_error(ErrorCode::invalid_input, "context must be positive, got {}", options.load.context);
  options.load.chunk = std::max(options.load.chunk, options.load.rows);
  return options;
}

CachePlan plan_cache(const kv::CacheShape& shape, const EngineOptions& options, int64_t context) {
  const models::LoadOptions& load = options.load;
  CachePlan plan;
  plan.shape = shape;
  const kv::Workload workload{.context = context,
                              .batch = load.rows + options.kept_contexts,
                              .chunk = load.chunk,
                              .checkpoints = options.checkpoints ? 2 : 0,
                              .prefix_bytes = options.prefix_cache ? options.prefix_bytes : 0};
  plan.capacity = kv::plan_capacity(plan.shape, kv::layouts_for(load.isa), workload);
  if (options.prefix_cache)
    for (kv::CacheCapacity::Group& group : plan.capacity.groups) {
      const auto rows = static_cast<uint32_t>(workload.batch);
      if (group.pages > 0) group.pages += rows;
      if (group.plain_pages > 0) group.plain_pages += rows;
    }
  plan.bytes = kv::plan_bytes(plan.shape, kv::layouts_for(load.isa), plan.capacity);
  return plan;
}

MemoryReport plan_memory(const std::filesystem::path& path, const EngineOptions& options) {
  models::ModelInfo info;
  const models::MemoryPlan plan = models::Model::plan(path, options.load, &info);
  MemoryReport report;
  report.weights_bytes = plan.weights_bytes;
  report.stored_bytes = plan.stored_bytes;
  report.pack_file = plan.pack_file;
  report.workspace_bytes = plan.workspace_bytes;
  report.kv_groups = plan.kv_groups;
  report.kv_start = plan.kv_shape.start;
  report.kv_key = plan.kv_key;
  report.kv_notes = plan.kv_notes;
  report.process_bytes = process_bytes(info.vocab);
  report.model_context = info.model_context;
  report.available_bytes = available_bytes(options);
  for (const models::KvGroup& group : plan.kv_groups) report.kv_bytes_per_token += group.bytes_per_token;

  auto total_at = [&](int64_t context) {
    return report.weights_bytes + report.workspace_bytes + report.process_bytes +
           plan_cache(plan.kv_shape, options, context).bytes.limit_bytes;
  };
  // kv bytes grow with the context: the longest that fits is found by bisection.
  const int64_t limit = std::max(info.model_context, options.load.context);
  if (total_at(limit) <= report.available_bytes) {
    report.max_context = limit;
  } else {
    int64_t low = 0, high = limit;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (total_at(middle) <= report.available_bytes)
        low = middle;
      else
        high = middle - 1;
    }
    report.max_context = low;
  }
  if (options.load.context > info.model_context && options.load.note)
    options.load.note(fmt::format(
        "context {} is more than the {} that the model declares: what it says beyond may be worth little",
        options.load.context, info.model_context));
  report.context = info.context;
  if (options.load.context == 0 && options.context_hint > 0)
    report.context = std::min(report.context, options.context_hint);
  const kv::CacheBytes kv = plan_cache(plan.kv_shape, options, report.context).bytes;
  report.kv_bytes = kv.bytes;
  report.kv_pools = kv.groups;
  report.resume_point_bytes = resume_point_bytes(plan, report.kv_pools);
  report.prefix_bytes = kv.limit_bytes - kv.bytes;
  report.total_bytes = report.weights_bytes + report.kv_bytes + report.workspace_bytes +
                       report.process_bytes + report.prefix_bytes;
  report.fits = report.total_bytes <= report.available_bytes;
  return report;
}

PackMemory plan_pack_memory(const std::filesystem::path& path, const EngineOptions& options) {
  models::ModelInfo info;
  const models::MemoryPlan plan = models::Model::plan(path, options.load, &info);
  PackMemory memory;
  memory.weight_bytes = plan.largest_weight_bytes;
  memory.process_bytes = process_bytes(info.vocab);
  memory.total_bytes = memory.weight_bytes + memory.process_bytes;
  memory.available_bytes = available_bytes(options);
  memory.fits = memory.total_bytes <= memory.available_bytes;
  return memory;
}

std::string describe(const MemoryReport& report) {
  auto line = [](std::string_view what, size_t bytes) {
    return fmt::format("  {:<12} {:>14} bytes  {:>9.1f} MB\n", what, bytes, static_cast<double>(bytes) / 1e6);
  };
  std::string text = line("weights", report.weights_bytes) + line("kv", report.kv_bytes) +
                     (report.prefix_bytes > 0 ? line("prefixes", report.prefix_bytes) : std::string()) +
                     line("workspace", report.workspace_bytes) + line("process", report.process_bytes) +
                     line("total", report.total_bytes) + line("available", report.available_bytes);
  text += fmt::format("  context {} (the model declares {}; {} bytes of KV a token); longest that fits: {}",
                      report.context, report.model_context, report.kv_bytes_per_token, report.max_context);
  return text;
}

}  // namespace kvasir::engine
