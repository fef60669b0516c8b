// One opened model with everything that runs it: threads, KV cache, scheduler.
//
// A Request becomes a row; each step() takes a ragged batch of rows (one token of each that decodes, then
// chunks of prompts) through one forward pass. What a row produces depends on its own request alone (design
// law 1). One thread drives an Engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/thread_team.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/step_builder.h"
#include "kv/cache.h"
#include "models/model.h"
#include "program/executor.h"

namespace kvasir::engine {

struct EngineOptions {
  models::LoadOptions load;  // threads = 0: one per physical core within quota; ledger is the engine's own
  size_t memory_budget = 0;  // bytes; 0: what the machine has available
  // Tokens that KV pages are planned for, when load.context names none: a short run need not reserve the
  // model's whole context. It bounds what a request may use, and changes nothing else (numerics follow the
  // context in force: ruling 14). 0: all of it.
  int64_t context_hint = 0;
  // Contexts that are kept beside the rows of a step (a conversation that waits while another request runs).
  int kept_contexts = 0;
  // Conversations come back to the end of their last prompt: windowed layers then hold that boundary's
  // window, too.
  bool checkpoints = false;
  // Prompts that begin like earlier ones are not computed again (engine/prefix_cache.h). A page more a row
  // and group is planned: the one that a row shares with the cache and goes on writing.
  bool prefix_cache = false;
  size_t prefix_bytes = 0;           // pages that rows never claim, beside those that they leave free
  int64_t snapshot_interval = 1024;  // windowed models: tokens between resume points of a prompt; 0: none
  // Prefixes that memory gives up are kept in a store (kv/store.h), and found again by later runs. Off unless
  // `bytes` says how much they may take. Needs prefix_cache.
  struct PrefixDisk {
    std::filesystem::path folder;
    uint64_t bytes = 0;
    bool verify = false;  // compare the hashes of what is restored
    // Pages that may be held only because they are not written yet (kv/spill_queue.h).
    size_t pinned_bytes = kv::SpillQueue::kDefaultCap;
    std::chrono::milliseconds closing{120000};  // at most so long does the end of the engine write
    // One line: what could not be written or read. Also called by the thread that writes.
    std::function<void(const std::string&)> warn;
  };
  PrefixDisk prefix_disk;
};

// What a load takes, from headers alone. total = weights + kv + workspace + process + prefix.
struct MemoryReport {
  size_t weights_bytes = 0;
  size_t stored_bytes = 0;
  std::string pack_file;  // mapped in place of packing; empty: none
  size_t kv_bytes = 0;
  size_t kv_bytes_per_token = 0;
  size_t workspace_bytes = 0;
  size_t process_bytes = 0;
  size_t prefix_bytes = 0;  // what the prefix cache may add to kv_bytes while running
  // Models with windows or recurrent layers come back to certain tokens of a prompt only: what one such point
  // keeps at most of pages that later tokens leave behind, and of state. 0: they come back to any token.
  size_t resume_point_bytes = 0;
  size_t total_bytes = 0;
  size_t available_bytes = 0;
  bool fits = false;
  int64_t context = 0;
  int64_t model_context = 0;
  int64_t max_context = 0;  // the longest that fits with these options (0: none)
  std::vector<models::KvGroup> kv_groups;
  std::vector<kv::GroupBytes> kv_pools;  // [kv_groups]: their pages, and what these take
  int32_t kv_start = 0;                  // tokens that stay plain before a row converts
  std::string kv_key;                    // scheme key of the KV codecs
  std::vector<std::string> kv_notes;     // layers that a uniform scheme left alone
};

enum class FinishReason : uint8_t { stop, length, cancelled };
std::string_view name(FinishReason reason);

// A sequence that outlives a request: what is stored of it is reused by the next request that begins with the
// same tokens.
struct Context {
  kv::Sequence sequence;
  std::vector<int32_t> tokens;  // those whose keys and values are stored
};

struct Committed {
  int32_t id;
  const Sampled* sampled;  // with logprobs when they were asked for
  int64_t index;           // of the sampled token in its row, from 0
};

struct Request {
  std::vector<int32_t> prompt;  // at least one id
  SamplingOptions sampling;
  int64_t max_tokens = -1;  // -1: until an end token or the context is full
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_ids;                   // end-of-generation ids; committed, then the row finishes
  int top_logprobs = -1;                           // -1: none
  int64_t stable_tokens = 0;                       // of the prompt, that the next turn keeps; 0: not known
  Context* context = nullptr;                      // not owned; null: a sequence of the row's own
  std::function<bool(const Committed&)> on_token;  // false: finish with `stop`
  std::function<void(int64_t done, int64_t total)> on_progress;  // prompt tokens
};

struct Timings {
  double prefill_seconds = 0;  // from admission to the first token
  double decode_seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt, found in the context or the prefix cache
  int64_t completion_tokens = 0;
};

struct Outcome {
  FinishReason reason = FinishReason::stop;
  std::vector<int32_t> tokens;    // sampled, the end token included
  std::vector<Sampled> logprobs;  // [tokens] when asked for
  Timings timings;
};

class Engine {
 public:
  // From headers alone; nothing is loaded. `options.load.context` 0: the model's own limit, or the longest
  // that fits.
  static MemoryReport plan(const std::filesystem::path& path, const EngineOptions& options);
  // Refuses (Error{resource_exhausted}, before reading a weight) what does not fit.
  static std::unique_ptr<Engine> open(const std::filesystem::path& path, const EngineOptions& options);
  ~Engine();

  models::Model& model() { return *model_; }
  kv::KvCache& cache() { return *cache_; }
  const PrefixCache* prefixes() const { return prefixes_.get(); }  // null: not asked for
  PrefixCache* prefixes() { return prefixes_.get(); }
  program::CpuExecutor& executor() { return *executor_; }
  const MemoryLedger& ledger() const { return *ledger_; }
  MemoryLedger& ledger() { return *ledger_; }
  const MemoryReport& memory() const { return report_; }
  int64_t context_limit() const { return report_.context; }

  Context new_context() { return Context{cache_->create(), {}}; }

  // Checks every request before anything runs. Runs all of them to their end, in one batch as far as rows
  // allow; `cancelled` is polled between steps.
  std::vector<Outcome> generate(std::vector<Request> requests, const std::function<bool()>& cancelled = {});
  Outcome generate(Request request, const std::function<bool()>& cancelled = {});

  // The same for a run of any length: `next` is asked for a request whenever a row is free (nothing: there
  // are no more), and `done` gets each outcome as it finishes, under the number of its request (from 0, in
  // the order of `next`). A request is checked when it is taken: what check() refuses ends the run. False: it
  // was cancelled, and the rows under way came out with what they had and the reason `cancelled`.
  using NextRequest = std::function<std::optional<Request>()>;
  using RequestDone = std::function<void(size_t number, Outcome outcome)>;
  bool serve(const NextRequest& next, const RequestDone& done, const std::function<bool()>& cancelled = {});

  // Throws Error{invalid_input}: an empty prompt, one that the context cannot hold, ids or options out of
  // range.
  void check(const Request& request) const;

  // Appends `ids` to a context, chunk by chunk, without sampling. With `want` last the logits of the last one
  // are computed (Model::logits) as a prompt needs them.
  void prefill(Context& context, std::span<const int32_t> ids, WantLogits want = WantLogits::none);

 private:
  struct Row;
  Engine() = default;
  void step(std::vector<std::unique_ptr<Row>>& rows);
  void start_rows(std::vector<std::unique_ptr<Row>>& rows);
  void admit(Row& row);
  void record_prefix(Row& row);
  int candidates_wanted(const Row& row) const;
  Sampled sample(Row& row, int32_t index);
  void consume_logits(Row& row, int32_t index);

  std::unique_ptr<MemoryLedger> ledger_ = std::make_unique<MemoryLedger>();
  MemoryReport report_;
  bool checkpoints_ = false;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<program::CpuExecutor> executor_;
  std::unique_ptr<kv::KvCache> cache_;
  std::unique_ptr<PrefixCache> prefixes_;  // null: not asked for
  std::unique_ptr<StepBuilder> builder_;
  kv::Step kv_step_;
  std::vector<float> logits_;
  int32_t candidates_in_step_ = 0;  // StepState::candidates of the last step
  std::vector<ops::Candidate> candidates_;
  std::vector<Sampler::Candidate> largest_;
};

}  // namespace kvasir::engine
