#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/topology.h"
#include "engine/memory_plan.h"
#include "engine/store_options.h"
#include "kv/tokens.h"

namespace kvasir::engine {

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "?";
}

struct Engine::Row {
  using Clock = std::chrono::steady_clock;

  Row(size_t n, Request r) : number(n), request(std::move(r)), sampler(request.sampling) {}

  Context& context() { return request.context != nullptr ? *request.context : own; }

  size_t number;  // of the request, in order of arrival
  Request request;
  Sampler sampler;
  Context own;
  std::vector<int32_t> history;  // prompt and committed tokens
  Outcome outcome;
  Clock::time_point admitted, first_token;
  bool started = false;
  std::vector<int32_t> stops;  // tokens of the prompt at which steps end, to be recorded; those still ahead
  bool finished = false;

  // Tokens that are known but whose keys and values are not stored yet.
  std::span<const int32_t> pending() {
    return std::span<const int32_t>(history).subspan(context().tokens.size());
  }
};

MemoryReport Engine::plan(const std::filesystem::path& path, const EngineOptions& options) {
  return plan_memory(path, with_defaults(options));
}

std::unique_ptr<Engine> Engine::open(const std::filesystem::path& path, const EngineOptions& given) {
  EngineOptions options = with_defaults(given);
  if (options.prefix_disk.bytes > 0 && !options.prefix_cache)
    throw_error(
        ErrorCode::invalid_input,
        "prefixes are to be kept on disk, but the prompt cache is off: turn it on, or leave out its disk");
  std::unique_ptr<Engine> engine(new Engine);
  engine->report_ = plan_memory(path, options);
  engine->checkpoints_ = options.checkpoints;
  const MemoryReport& report = engine->report_;
  if (!report.fits)
    throw Error(
        ErrorCode::resource_exhausted,
        fmt::format("{} does not fit: {} MB needed, {} MB available{}", path.string(),
                    report.total_bytes / 1000000, report.available_bytes / 1000000,
                    report.max_context > 0 ? fmt::format(": use --context {} or less", report.max_context)
                                           : std::string()),
        describe(report));
  options.load.ledger = engine->ledger_.get();
  // With several memory nodes the packing team and the running one sit on the same processors: a member
  // packs, hence places, a contiguous part of each matrix's panels, and takes from about the same part first
  // when a step is computed (SharedWork). What is mapped from a packed file lies where the page cache has it.
  const Topology topology = discover_topology();
  if (options.load.cpus.empty() && topology.numa_nodes > 1) options.load.cpus = topology.cpus;
  engine->model_ = models::Model::load(path, options.load);
  engine->report_.pack_file = engine->model_->memory().pack_file;  // not of one that proved damaged
  engine->team_ = std::make_unique<ThreadTeam>(options.load.threads, options.load.cpus);
  engine->executor_ = std::make_unique<program::CpuExecutor>(*engine->team_);
  const CachePlan cache = plan_cache(engine->model_->memory().kv_shape, options, report.context);
  engine->cache_ = std::make_unique<kv::KvCache>(cache.shape, kv::layouts_for(options.load.isa),
                                                 cache.capacity, engine->ledger_.get());
  if (options.prefix_cache) {
    std::unique_ptr<kv::DiskStore> disk;
    const kv::WriteBehind::Options writing{.pinned_bytes = options.prefix_disk.pinned_bytes,
                                           .closing = options.prefix_disk.closing,
                                           .warn = options.prefix_disk.warn};
    if (options.prefix_disk.bytes > 0) {
      kv::DiskStore::Options store = store_options(*engine->model_, report.kv_key, path);
      store.dir = options.prefix_disk.folder;
      store.cap_bytes = options.prefix_disk.bytes;
      store.verify = options.prefix_disk.verify;
      store.warn = options.prefix_disk.warn;
      disk = std::make_unique<kv::DiskStore>(std::move(store));
    }
    engine->prefixes_ = std::make_unique<PrefixCache>(*engine->cache_, engine->model_->numerics_key().hex(),
                                                      cache.bytes.limit_bytes, options.snapshot_interval,
                                                      std::move(disk), engine->team_.get(), writing);
  }
  engine->builder_ = std::make_unique<StepBuilder>(*engine->model_);
  return engine;
}

Engine::~Engine() {
  kv_step_.rollback();
}

void Engine::check(const Request& request) const {
  if (request.prompt.empty())
    throw_error(ErrorCode::invalid_input, "the prompt is empty: at least one token is needed");
  model_->check_tokens(request.prompt);
  request.sampling.validate(model_->info().vocab);
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t limit = context_limit();
  if (length > limit || (length == limit && request.max_tokens != 0))
    throw_error(
        ErrorCode::invalid_input, "the prompt has {} tokens and the context holds {}: shorten it{}", length,
        limit,
        model_->info().model_context > limit
            ? fmt::format(", or raise --context (the model declares {})", model_->info().model_context)
            : std::string());
  if (request.max_tokens < -1)
    throw_error(ErrorCode::invalid_input, "max_tokens must be >= 0, got {}", request.max_tokens);
  if (request.min_tokens < 0 || (request.max_tokens >= 0 && request.min_tokens > request.max_tokens))
    throw_error(ErrorCode::invalid_input, "min_tokens must be between 0 and max_tokens, got {}",
                request.min_tokens);
}

// A row waits while another one computes what it can use; everybody else begins.
void Engine::start_rows(std::vector<std::unique_ptr<Row>>& rows) {
  for (const auto& row : rows) {
    if (row->started) continue;
    bool wait = false;
    if (prefixes_ != nullptr) {
      const std::vector<int32_t>& prompt = row->request.prompt;
      std::optional<int32_t> there;  // looked up once, and only where another row promises something
      for (const auto& other : rows) {
        if (!other->started || !other->outcome.tokens.empty() || other->context().sequence.origin()) continue;
        const int32_t promised = prefixes_->promised(prompt, other->request.prompt, other->stops);
        if (wait || static_cast<int32_t>(other->context().tokens.size()) >= promised) continue;
        if (!there) there = prefixes_->peek(prompt);
        wait = promised >= *there + cache_->shape().page_tokens;
      }
    }
    if (!wait) admit(*row);
  }
}

void Engine::admit(Row& row) {
  row.started = true;
  row.history = row.request.prompt;
  if (row.request.context == nullptr) row.own = new_context();
  // What the context already stores of this prompt is kept; its last token is always run again, for its
  // logits.
  Context& context = row.context();
  const std::vector<int32_t>& prompt = row.request.prompt;
  const int32_t common =
      kv::common_prefix(context.tokens, std::span<const int32_t>(prompt).first(prompt.size() - 1));
  const int32_t nearest = context.sequence.nearest_resumable(common);
  if (static_cast<size_t>(common) < context.tokens.size()) {
    context.sequence.truncate(nearest);
    context.tokens.resize(static_cast<size_t>(nearest));
  }
  if (prefixes_ != nullptr) {
    if (std::optional<kv::Sequence> longer = prefixes_->take(prompt, nearest)) {
      context.sequence = std::move(*longer);
      context.tokens.assign(prompt.begin(), prompt.begin() + context.sequence.offset());
    }
    row.stops = prefixes_->stops(context.sequence.offset(), static_cast<int32_t>(prompt.size()),
                                 static_cast<int32_t>(row.request.stable_tokens));
  }
  row.outcome.timings.prompt_tokens = static_cast<int64_t>(prompt.size());
  row.outcome.timings.reused_tokens = static_cast<int64_t>(context.tokens.size());
}

// After a committed step: what others, or a later turn, may begin with.
void Engine::record_prefix(Row& row) {
  if (prefixes_ == nullptr) return;
  using Stage = PrefixCache::Stage;
  const Context& context = row.context();
  prefixes_->stored(context.tokens, context.sequence, row.stops,
                    row.finished                 ? Stage::finished
                    : row.outcome.tokens.empty() ? Stage::prefill
                                                 : Stage::decode);
}

// How many of its largest logits decide the row's next token; 0: it needs them all.
int Engine::candidates_wanted(const Row& row) const {
  if (row.request.max_tokens == 0) return 1;  // nothing is drawn
  const bool banned = static_cast<int64_t>(row.outcome.tokens.size()) < row.request.min_tokens;
  if (row.request.top_logprobs >= 0 || (banned && !row.request.stop_ids.empty())) return 0;
  return row.sampler.candidates_wanted(ops::kMostCandidates);
}

Sampled Engine::sample(Row& row, int32_t index) {
  const auto generated = static_cast<int64_t>(row.outcome.tokens.size());
  const int wanted = candidates_in_step_ > 0 ? candidates_wanted(row) : 0;
  if (wanted > 0) {
    if (!model_->candidates(index, wanted, candidates_)) refuse_nan_logits();
    largest_.clear();
    for (const ops::Candidate& c : candidates_) largest_.push_back({c.id, c.value});
    Sampled sampled;
    sampled.id = row.sampler.choose_from(largest_, static_cast<uint64_t>(generated));
    return sampled;
  }
  const float* logits = model_->logits(index);
  logits_.assign(logits, logits + model_->info().vocab);
  const bool banned = generated < row.request.min_tokens;
  return row.sampler.sample(
      logits_, row.history, static_cast<uint64_t>(generated),
      banned ? std::span<const int32_t>(row.request.stop_ids) : std::span<const int32_t>(),
      row.request.top_logprobs);
}

void Engine::consume_logits(Row& row, int32_t index) {
  Outcome& outcome = row.outcome;
  const auto now = Row::Clock::now();
  if (outcome.tokens.empty()) {
    row.first_token = now;
    outcome.timings.prefill_seconds = std::chrono::duration<double>(now - row.admitted).count();
    // The end of the prompt is where the next turn of a conversation comes back to.
    if (checkpoints_ && row.request.context != nullptr) {
      // A sequence keeps two (the plan says so): editing the last message goes back to the one before.
      row.context().sequence.checkpoint();
    }
  }
  if (row.request.max_tokens == 0) {
    row.finished = true;
    outcome.reason = FinishReason::length;
    return;
  }
  const auto generated = static_cast<int64_t>(outcome.tokens.size());
  const Sampled sampled = sample(row, index);
  outcome.tokens.push_back(sampled.id);
  row.history.push_back(sampled.id);
  outcome.timings.completion_tokens = generated + 1;
  outcome.timings.decode_seconds = std::chrono::duration<double>(Row::Clock::now() - row.first_token).count();
  if (row.request.top_logprobs >= 0) outcome.logprobs.push_back(sampled);
  const std::vector<int32_t>& stops = row.request.stop_ids;
  const bool end = std::find(stops.begin(), stops.end(), sampled.id) != stops.end();
  bool wanted = true;
  if (row.request.on_token) wanted = row.request.on_token({sampled.id, &sampled, generated});
  if (end || !wanted) {
    row.finished = true;
    outcome.reason = FinishReason::stop;
  } else if ((row.request.max_tokens >= 0 && generated + 1 >= row.request.max_tokens) ||
             static_cast<int64_t>(row.history.size()) > context_limit()) {
    row.finished = true;
    outcome.reason = FinishReason::length;
  }
}

void Engine::step(std::vector<std::unique_ptr<Row>>& rows) {
  const program::Counts& maxima = model_->maxima();
  builder_->clear();
  std::vector<Row*> batch;
  std::vector<size_t> taken;
  int64_t budget = maxima.tokens;
  auto add = [&](Row& row, size_t count) {
    const std::span<const int32_t> pending = row.pending();
    builder_->add(row.context().sequence, pending.first(count),
                  count == pending.size() ? WantLogits::last : WantLogits::none);
    batch.push_back(&row);
    taken.push_back(count);
    budget -= static_cast<int64_t>(count);
  };
  // Rows that decode first (each needs one token), then prompts in the order of arrival.
  for (const bool decoding : {true, false})
    for (const auto& row : rows) {
      if (budget <= 0 || !row->started) continue;
      const size_t pending = row->pending().size();
      if ((pending == 1 && !row->outcome.tokens.empty()) != decoding) continue;
      auto limit = static_cast<size_t>(std::min<int64_t>(budget, row->context().sequence.max_append()));
      if (!row->stops.empty())
        limit = std::min(limit, static_cast<size_t>(row->stops.front()) - row->context().tokens.size());
      add(*row, std::min(pending, limit));
    }

  cache_->reserve(builder_->sequences(), builder_->counts(), kv_step_);
  program::StepState& state = builder_->state(kv_step_);
  // Whole rows of logits are written only where a row of the step needs one: what a row draws is the same.
  bool whole = false;
  for (size_t i = 0; i < batch.size(); ++i)
    if (builder_->logits_index(i) >= 0) {
      const int wanted = candidates_wanted(*batch[i]);
      whole |= wanted == 0;
      state.candidates = std::max(state.candidates, wanted);
    }
  if (whole) state.candidates = 0;
  candidates_in_step_ = state.candidates;
  try {
    model_->run(state, *executor_);
  } catch (...) {
    kv_step_.rollback();
    throw;
  }
  kv_step_.commit();
  // Of all rows before anything that may throw: a context is what its sequence holds.
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::span<const int32_t> pending = batch[i]->pending().first(taken[i]);
    const std::vector<int32_t> stored(pending.begin(), pending.end());
    std::vector<int32_t>& tokens = batch[i]->context().tokens;
    tokens.insert(tokens.end(), stored.begin(), stored.end());
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    Row& row = *batch[i];
    const Context& context = row.context();
    if (row.outcome.tokens.empty() && row.request.on_progress)
      row.request.on_progress(static_cast<int64_t>(context.tokens.size()),
                              static_cast<int64_t>(row.request.prompt.size()));
    if (builder_->logits_index(i) >= 0) consume_logits(row, builder_->logits_index(i));
    record_prefix(row);
  }
}

bool Engine::serve(const NextRequest& next, const RequestDone& done, const std::function<bool()>& cancelled) {
  const auto most_rows = static_cast<size_t>(model_->maxima().rows);
  std::vector<std::unique_ptr<Row>> rows;
  size_t arrived = 0;
  bool more = true;
  const auto idle = [&] {
    if (prefixes_ != nullptr) prefixes_->idle();
  };
  while (true) {
    if (cancelled && cancelled()) {
      idle();
      for (const auto& row : rows) {
        row->outcome.reason = FinishReason::cancelled;
        done(row->number, std::move(row->outcome));
      }
      return false;
    }
    while (more && rows.size() < most_rows) {
      std::optional<Request> request = next();
      more = request.has_value();
      if (!more) break;
      check(*request);
      rows.push_back(std::make_unique<Row>(arrived++, std::move(*request)));
      rows.back()->admitted = Row::Clock::now();
    }
    if (rows.empty()) {
      idle();
      return true;
    }
    // No token waits for the prompt cache's disk.
    if (prefixes_ != nullptr)
      prefixes_->be_patient(std::none_of(rows.begin(), rows.end(),
                                         [](const auto& row) { return !row->outcome.tokens.empty(); }));
    start_rows(rows);
    step(rows);
    for (const auto& row : rows)
      if (row->finished) done(row->number, std::move(row->outcome));
    // Their pages go back now, so that the rows that take their places can start.
    std::erase_if(rows, [](const auto& row) { return row->finished; });
  }
}

std::vector<Outcome> Engine::generate(std::vector<Request> requests, const std::function<bool()>& cancelled) {
  for (const Request& request : requests) check(request);
  std::vector<Outcome> outcomes(requests.size());
  for (Outcome& outcome : outcomes) outcome.reason = FinishReason::cancelled;  // until it has finished
  size_t taken = 0;
  serve(
      [&]() -> std::optional<Request> {
        if (taken == requests.size()) return std::nullopt;
        return std::move(requests[taken++]);
      },
      [&](size_t number, Outcome outcome) { outcomes[number] = std::move(outcome); }, cancelled);
  return outcomes;
}

Outcome Engine::generate(Request request, const std::function<bool()>& cancelled) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return std::move(generate(std::move(requests), cancelled).front());
}

void Engine::prefill(Context& context, std::span<const int32_t> ids, WantLogits want) {
  model_->check_tokens(ids);
  while (!ids.empty()) {
    const auto count = static_cast<size_t>(std::min<int64_t>(
        {static_cast<int64_t>(ids.size()), model_->maxima().tokens, context.sequence.max_append()}));
    builder_->clear();
    builder_->add(context.sequence, ids.first(count), count == ids.size() ? want : WantLogits::none);
    cache_->reserve(builder_->sequences(), builder_->counts(), kv_step_);
    model_->run(builder_->state(kv_step_), *executor_);
    kv_step_.commit();
    context.tokens.insert(context.tokens.end(), ids.begin(),
                          ids.begin() + static_cast<std::ptrdiff_t>(count));
    ids = ids.subspan(count);
  }
}

}  // namespace kvasir::engine
