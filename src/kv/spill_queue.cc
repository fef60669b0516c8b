#include "kv/spill_queue.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/signal_block.h"

namespace kvasir::kv {

SpillQueue::SpillQueue(Sink sink, Done done, size_t cap_bytes)
    : sink_(std::move(sink)), done_(std::move(done)), cap_(cap_bytes) {}

SpillQueue::~SpillQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    abandon_ = true;
    for (auto at = oldest_snapshot(line_.end()); at != line_.end(); at = oldest_snapshot(line_.end()))
      drop(at);
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
  reap();
}

// ---- the owner's side

void SpillQueue::push(std::string key, std::vector<int32_t> tokens, Sequence snapshot) {
  KVASIR_CHECK(snapshot && !snapshot.in_step() && !snapshot.in_round());
  auto item = std::make_unique<Item>();
  item->key = std::move(key);
  item->tokens = std::move(tokens);
  item->bytes = snapshot.physical_bytes();
  item->sequence = std::move(snapshot);
  enqueue(std::move(item));
  reap();
}

void SpillQueue::control(std::function<void()> action) {
  auto item = std::make_unique<Item>();
  item->action = std::move(action);
  enqueue(std::move(item));
}

void SpillQueue::enqueue(std::unique_ptr<Item> item) {
  {
    const std::lock_guard lock(mutex_);
    // Before anything is counted: a thread that cannot be started is the caller's to hear of.
    if (!thread_.joinable()) {
      const SignalBlock block;
      thread_ = std::thread([this] { run(); });
    }
    const bool snapshot = item->action == nullptr;
    stats_.pushed += snapshot;
    stats_.pending += snapshot;
    stats_.pending_bytes += item->bytes;
    line_.push_back(std::move(item));
    while (snapshot && stats_.pending_bytes > cap_) {
      const auto oldest = oldest_snapshot(line_.end() - 1);
      if (oldest == line_.end() - 1) break;
      drop(oldest);
    }
  }
  work_.notify_all();
}

// The first before `end` that is no control; `end` if there is none.
SpillQueue::Line::iterator SpillQueue::oldest_snapshot(Line::iterator end) {
  return std::find_if(line_.begin(), end, [](const auto& item) { return item->action == nullptr; });
}

void SpillQueue::drop(const Line::iterator& at) {
  std::unique_ptr<Item> item = std::move(*at);
  line_.erase(at);
  item->outcome = Outcome::dropped;
  --stats_.pending;
  stats_.pending_bytes -= item->bytes;
  ++stats_.dropped;
  finished_.push_back(std::move(item));
}

bool SpillQueue::reap() {
  std::vector<std::unique_ptr<Item>> finished;
  std::vector<Sequence> released;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
    released.swap(released_);
  }
  bool any = !released.empty();
  released.clear();
  for (auto& item : finished) {
    any = any || item->sequence;
    item->sequence = {};
    if (done_) done_(item->key, item->tokens, item->outcome);
  }
  return any;
}

bool SpillQueue::drain(Clock::time_point until) {
  bool done;
  {
    std::unique_lock lock(mutex_);
    done = progress_.wait_until(lock, until, [&] { return line_.empty() && writing_ == nullptr; });
  }
  reap();
  return done;
}

bool SpillQueue::wait_read(Clock::time_point until) {
  do {
    std::unique_lock lock(mutex_);
    const auto released = [&] { return !released_.empty() || !finished_.empty(); };
    if (!released() && stats_.pending_bytes == 0) return false;
    if (!progress_.wait_until(lock, until, released)) return false;
  } while (!reap());
  return true;
}

bool SpillQueue::drop_oldest() {
  {
    std::unique_lock lock(mutex_);
    if (const auto oldest = oldest_snapshot(line_.end()); oldest != line_.end()) {
      drop(oldest);
    } else if (writing_ != nullptr && writing_->sequence) {
      abandon_ = true;
      const Item* item = writing_;
      progress_.wait(lock, [&] { return writing_ != item || !item->sequence; });
    }
  }
  return reap();
}

void SpillQueue::cancel(std::string_view key) {
  {
    const std::lock_guard lock(mutex_);
    for (auto at = line_.begin(); at != line_.end();)
      if ((*at)->action == nullptr && (*at)->key == key) {
        const auto index = at - line_.begin();
        drop(at);
        at = line_.begin() + index;
      } else {
        ++at;
      }
    if (writing_ != nullptr && writing_->action == nullptr && writing_->key == key) abandon_ = true;
  }
  reap();
}

bool SpillQueue::idle() const {
  const std::lock_guard lock(mutex_);
  return line_.empty() && writing_ == nullptr;
}

SpillQueue::Stats SpillQueue::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// ---- the writer's side

void SpillQueue::run() {
  // Of this thread alone: whatever is computed comes first. A refusal costs only speed.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !line_.empty(); });
    if (line_.empty()) return;
    std::unique_ptr<Item> item = std::move(line_.front());
    line_.pop_front();
    writing_ = item.get();
    abandon_ = stop_;
    lock.unlock();
    if (item->action) {
      item->action();
    } else {
      item->outcome = write(*item);
    }
    lock.lock();
    writing_ = nullptr;
    if (item->action == nullptr) {
      --stats_.pending;
      stats_.pending_bytes -= item->bytes;
      stats_.written += item->outcome == Outcome::written;
      stats_.failed += item->outcome == Outcome::failed;
      stats_.dropped += item->outcome == Outcome::dropped;
      // The snapshot's references are the owner's to release.
      finished_.push_back(std::move(item));
    }
    progress_.notify_all();
  }
}

SpillQueue::Outcome SpillQueue::write(Item& item) {
  const WriteWatch watch{.step =
                             [this] {
                               const std::lock_guard lock(mutex_);
                               if (abandon_) throw_error(ErrorCode::cancelled, "not written: given up");
                             },
                         .read = [this, &item] { read(item); }};
  try {
    watch.step();
    return sink_(item.key, item.tokens, item.sequence, watch) ? Outcome::written : Outcome::failed;
  } catch (const Error& error) {
    return error.code() == ErrorCode::cancelled ? Outcome::dropped : Outcome::failed;
  } catch (...) {
    return Outcome::failed;
  }
}

void SpillQueue::read(Item& item) {
  {
    const std::lock_guard lock(mutex_);
    if (!item.sequence) return;
    released_.push_back(std::move(item.sequence));
    stats_.pending_bytes -= item.bytes;
    item.bytes = 0;
  }
  progress_.notify_all();
}

}  // namespace kvasir::kv
