#include "kv/continuation.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "formats/json.h"

namespace kvasir::kv {
namespace {

using nlohmann::json;

std::string name_of(std::string_view key) {
  return fmt::format("generation:{}", key);
}

std::string to_text(std::string_view key, const Continuation& state) {
  return json{{"generation_checkpoint",
               {{"key", key},
                {"cache_ns", state.ns},
                {"original_prompt_tokens", state.original_prompt_tokens},
                {"generated_tokens", state.generated_tokens},
                {"pending_token", state.pending_token},
                {"seed", state.seed},
                {"seed_was_explicit", state.seed_was_explicit}}}}
      .dump();
}

// The library's own conversions take fractions, booleans and what does not fit.
[[noreturn]] void refuse(const json& value, std::string_view expected, const std::string& file) {
  throw_error(ErrorCode::corrupt_file, "{}: no generation checkpoint ({} where {} is expected)",
              printable(file), printable(value.dump(-1, ' ', false, json::error_handler_t::replace)),
              expected);
}

int32_t token_of(const json& value, int64_t least, const std::string& file) {
  // What does not fit in a signed number of 64 bits is negative as one.
  const int64_t id = value.is_number_integer() ? value.get<int64_t>() : INT64_MIN;
  if (id < least || id > INT32_MAX) refuse(value, "a token id", file);
  return static_cast<int32_t>(id);
}

std::vector<int32_t> tokens_of(const json& values, const std::string& file) {
  if (!values.is_array()) refuse(values, "a list of token ids", file);
  std::vector<int32_t> tokens;
  tokens.reserve(values.size());
  for (const json& value : values) tokens.push_back(token_of(value, 0, file));
  return tokens;
}

uint64_t seed_of(const json& value, const std::string& file) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0))
    refuse(value, "a seed", file);
  return value.get<uint64_t>();
}

Continuation from_text(const std::string& text, std::string_view key, const std::string& file) {
  try {
    const json root = formats::parse_json(text, file);
    const json& value = root.at("generation_checkpoint");
    if (value.at("key").get<std::string>() != key)
      throw_error(ErrorCode::corrupt_file, "{}: holds the generation of another key", file);
    return {.ns = value.at("cache_ns").get<std::string>(),
            .original_prompt_tokens = tokens_of(value.at("original_prompt_tokens"), file),
            .generated_tokens = tokens_of(value.at("generated_tokens"), file),
            .pending_token = token_of(value.at("pending_token"), -1, file),
            .seed = seed_of(value.at("seed"), file),
            .seed_was_explicit = value.at("seed_was_explicit").get<bool>()};
  } catch (const json::exception& error) {
    throw_error(ErrorCode::corrupt_file, "{}: no generation checkpoint ({})", file, error.what());
  }
}

uint64_t number_of(std::string_view item) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
  KVASIR_CHECK(error == std::errc() && end == item.data() + item.size());  // save() named it
  return number;
}

}  // namespace

Continuations::Continuations(DiskStore& store, std::function<void(const std::string&)> warn,
                             size_t pinned_bytes)
    : store_(store),
      warn_(std::move(warn)),
      queue_([this](std::string_view item, std::span<const int32_t> tokens, const Sequence& sequence,
                    const WriteWatch& watch) { return write(item, tokens, sequence, watch); },
             [this](std::string_view item, std::span<const int32_t>, SpillQueue::Outcome) { done(item); },
             pinned_bytes) {}

Continuations::~Continuations() = default;

void Continuations::save(std::string_view key, const Continuation& state, const Sequence& sequence) {
  constexpr size_t kLongest = 180;
  if (key.empty() || key.size() > kLongest || key.find('\0') != std::string_view::npos)
    throw_error(ErrorCode::invalid_input, "'{}' is no key of a generation: expected 1 to {} characters",
                printable(key), kLongest);
  std::vector<int32_t> tokens = state.original_prompt_tokens;
  tokens.insert(tokens.end(), state.generated_tokens.begin(), state.generated_tokens.end());
  KVASIR_CHECK(static_cast<int32_t>(tokens.size()) == sequence.offset());
  Sequence snapshot = sequence.fork();
  const uint64_t attempt = ++attempts_made_;
  uint64_t older;
  {
    const std::lock_guard lock(mutex_);
    Key& entry = keys_[std::string(key)];
    cancel(entry);
    older = std::exchange(entry.newest, attempt);
    attempts_[attempt] = {.key = std::string(key), .ns = state.ns, .metadata = to_text(key, state)};
  }
  if (older != 0) queue_.cancel(std::to_string(older));
  queue_.push(std::to_string(attempt), std::move(tokens), std::move(snapshot));
}

void Continuations::complete(std::string_view key) {
  uint64_t older;
  {
    const std::lock_guard lock(mutex_);
    Key& entry = keys_[std::string(key)];
    cancel(entry);
    older = std::exchange(entry.newest, 0);
    ++entry.removals;
  }
  if (older != 0) queue_.cancel(std::to_string(older));
  queue_.control([this, name = std::string(key)] { remove(name); });
}

bool Continuations::eligible(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  const auto entry = keys_.find(key);
  return entry == keys_.end() || (entry->second.removals == 0 && !entry->second.removal_failed);
}

std::optional<Continuations::Found> Continuations::load(std::string_view key, KvCache& cache,
                                                        ThreadTeam* team) {
  if (!eligible(key)) return std::nullopt;
  const std::string name = name_of(key);
  const auto find = [&] {
    std::optional<StoreEntry> newest;
    for (const StoreEntry& entry : store_.entries())
      if (entry.name == name && (!newest || entry.created_ms >= newest->created_ms)) newest = entry;
    return newest;
  };
  const std::optional<StoreEntry> newest = find();
  if (!newest) return std::nullopt;
  try {
    DiskStore::Conversation stored = store_.load(name, newest->ns, cache, team);
    Continuation state = from_text(stored.metadata, key, name);
    if (state.ns != newest->ns)
      throw_error(ErrorCode::corrupt_file, "{}: the state is of another namespace", printable(name));
    std::vector<int32_t> tokens = state.original_prompt_tokens;
    tokens.insert(tokens.end(), state.generated_tokens.begin(), state.generated_tokens.end());
    if (tokens != stored.tokens)
      throw_error(ErrorCode::corrupt_file, "{}: the state is not that of its tokens", printable(name));
    return Found{std::move(state), std::move(stored.sequence)};
  } catch (const KvPoolExhausted&) {
    throw;
  } catch (const Error& error) {
    const bool removed_since = error.code() == ErrorCode::not_found && !find();
    if (!removed_since && warn_) warn_(error.what());
    return std::nullopt;
  }
}

// With the lock.
void Continuations::cancel(Key& key) {
  if (const auto attempt = attempts_.find(key.newest); attempt != attempts_.end())
    attempt->second.cancelled = true;
}

// With the lock: nothing is queued of the key, and nothing stands against it.
void Continuations::forget(std::string_view key) {
  const auto entry = keys_.find(key);
  if (entry != keys_.end() && entry->second.newest == 0 && entry->second.removals == 0 &&
      !entry->second.removal_failed)
    keys_.erase(entry);
}

void Continuations::done(std::string_view item) {
  const std::lock_guard lock(mutex_);
  const auto attempt = attempts_.extract(number_of(item));
  const std::string& key = attempt.mapped().key;
  if (const auto entry = keys_.find(key); entry != keys_.end() && entry->second.newest == attempt.key())
    entry->second.newest = 0;
  forget(key);
}

// ---- the writer's side

bool Continuations::write(std::string_view item, std::span<const int32_t> tokens, const Sequence& sequence,
                          const WriteWatch& watch) {
  const uint64_t number = number_of(item);
  Attempt attempt;
  {
    const std::lock_guard lock(mutex_);
    attempt = attempts_.at(number);
  }
  // The queue's own cancel ends what is being written; this one also what was taken from the line just
  // before.
  const WriteWatch both{.step =
                            [&] {
                              watch.step();
                              const std::lock_guard lock(mutex_);
                              if (attempts_.at(number).cancelled)
                                throw_error(ErrorCode::cancelled, "a newer attempt has taken its place");
                            },
                        .read = watch.read};
  both.step();
  try {
    const std::string name = name_of(attempt.key);
    store_.save(name, attempt.ns, tokens, sequence, attempt.metadata, both);
    for (const StoreEntry& entry : store_.entries())  // an older attempt with other adapters
      if (entry.name == name && entry.ns != attempt.ns) store_.remove_named(name, entry.ns);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) throw;
    if (warn_) warn_(error.what());
    return false;
  }
}

void Continuations::remove(const std::string& key) {
  bool removed = true;
  try {
    for (const StoreEntry& entry : store_.entries())
      if (entry.name == name_of(key)) store_.remove_named(entry.name, entry.ns);
  } catch (const std::exception& error) {
    removed = false;
    if (warn_) warn_(error.what());
  }
  const std::lock_guard lock(mutex_);
  Key& entry = keys_[key];
  --entry.removals;
  entry.removal_failed = !removed;
  forget(key);
}

}  // namespace kvasir::kv
