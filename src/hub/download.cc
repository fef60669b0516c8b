#include "hub/download.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file_error.h"
#include "base/signal_block.h"
#include "hub/blob_writer.h"
#include "hub/headers.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kDiskReserve = uint64_t{64} << 20;
// What has come goes to disk when it is so much, or was not there for so long: more is not lost when the
// process is killed.
constexpr size_t kDrainBytes = size_t{1} << 20;
constexpr std::chrono::seconds kDrainTime{1};
constexpr int kRestarts = 2;  // of one file, because the server changed its mind

bool is_regular(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// One blob and where its parts stand. Everything but `writer` is guarded by Downloader::mutex_; `writer` by
// writing.
struct Blob {
  enum class State : uint8_t { waiting, opening, open, done };

  RemoteFile file;
  std::vector<std::string> paths;  // of the snapshot: equal content has several
  uint64_t wanted = 0;             // bytes from the beginning
  bool whole = true;

  State state = State::waiting;
  Clock::time_point try_again{};  // when another process holds the lock
  FileLock lock;
  std::mutex writing;
  std::unique_ptr<BlobWriter> writer;
  uint64_t next = 0;                // first byte that no connection has been given
  int active = 0;                   // connections at work on it
  bool probed = false;              // a response has come: parts may be fetched at once
  bool one_stream = false;          // the server ignores ranges
  std::atomic<int> generation = 0;  // of restarts: older parts are thrown away
  int restarts = 0;
  int bad_digests = 0;
  std::string url;        // the way behind the redirects; empty: ask the hub
  std::string validator;  // entity tag of whoever sends the bytes

  uint64_t written() const { return writer == nullptr ? 0 : writer->written(); }
  // Of what is wanted, the prefix and what lies beyond it.
  uint64_t here() const {
    return writer == nullptr ? 0 : std::min(wanted, writer->written() + writer->ahead());
  }
};

struct Part {
  Blob* blob = nullptr;
  uint64_t begin = 0, end = 0;
  int generation = 0;
  bool one_stream = false;
};

// Thrown inside a transfer when the blob has to be begun anew or the part is no longer wanted.
enum class Verdict : uint8_t { go_on, obsolete, ranges_ignored, changed };

class Downloader {
 public:
  Downloader(HubClient& client, const HubCache& cache, const Listing& listing,
             const std::vector<DownloadItem>& items, const DownloadOptions& options);
  DownloadOutcome run();

 private:
  bool all_here() const;
  bool stopping() const { return failed_.load() || client_.cancelled(); }
  void work();
  bool take_work(std::unique_lock<std::mutex>& held, HttpClient& http);
  bool next_part(Blob& blob, Part* part);
  void open(std::unique_lock<std::mutex>& held, Blob& blob);
  void transfer(HttpClient& http, const Part& part);
  Verdict check_response(const HttpResponse& response, const Part& part, uint64_t at, bool direct);
  void drain(const Part& part, uint64_t begin, std::vector<std::byte>* bytes);
  void restart(const Part& part, const std::string& why);
  void finish(std::unique_lock<std::mutex>& held, Blob& blob);
  void complete(Blob& blob);
  void add_progress(int64_t bytes);
  void pause_all(double seconds);

  HubClient& client_;
  const HubCache& cache_;
  const Listing& listing_;
  const DownloadOptions& options_;
  std::string origin_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Blob>> blobs_;
  int open_blobs_ = 0;
  bool told_of_waiting_ = false;
  Clock::time_point paused_until_{};
  std::atomic<bool> failed_ = false;
  std::exception_ptr error_;
  std::mutex progress_mutex_;
  int64_t done_ = 0;
  uint64_t total_ = 0;
  DownloadOutcome outcome_;
};

Downloader::Downloader(HubClient& client, const HubCache& cache, const Listing& listing,
                       const std::vector<DownloadItem>& items, const DownloadOptions& options)
    : client_(client),
      cache_(cache),
      listing_(listing),
      options_(options),
      origin_(origin_of(client.settings().endpoint)) {
  KVASIR_CHECK(options.connections >= 1 && options.part_bytes >= 1);
  std::map<std::string, Blob*> by_digest;
  for (const DownloadItem& item : items) {
    KVASIR_CHECK(is_digest(item.file.digest));
    Blob*& blob = by_digest[item.file.digest];
    if (blob == nullptr) {
      blobs_.push_back(std::make_unique<Blob>());
      blob = blobs_.back().get();
      blob->file = item.file;
      blob->wanted = std::min(item.file.size, item.first_bytes);
      blob->whole = blob->wanted == item.file.size && item.first_bytes == UINT64_MAX;
      total_ += blob->wanted;
    } else if (blob->file.size != item.file.size) {
      throw_error(ErrorCode::corrupt_file, "{}: one digest with two sizes in the listing: {}", listing.repo,
                  printable(item.file.path));
    }
    if (blob->whole) blob->paths.push_back(item.file.path);
  }
}

void Downloader::add_progress(int64_t bytes) {
  const std::lock_guard guard(progress_mutex_);
  done_ += bytes;
  if (options_.progress) options_.progress({static_cast<uint64_t>(std::max<int64_t>(0, done_)), total_});
}

void Downloader::pause_all(double seconds) {
  const std::lock_guard guard(mutex_);
  paused_until_ = std::max(paused_until_, Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                             std::chrono::duration<double>(seconds)));
}

// Whether everything is in the cache already, under its names.
bool Downloader::all_here() const {
  return std::all_of(blobs_.begin(), blobs_.end(), [&](const auto& blob) {
    const fs::path content = cache_.blob(listing_.repo, blob->file.digest);
    if (!is_regular(content) || size_of(content) != blob->file.size) return false;
    return std::all_of(blob->paths.begin(), blob->paths.end(), [&](const std::string& path) {
      std::error_code error;
      return fs::equivalent(cache_.snapshot(listing_.repo, listing_.commit) / path, content, error);
    });
  });
}

DownloadOutcome Downloader::run() {
  if (all_here()) {  // then nothing is written, and a cache that may only be read will do
    outcome_.reused_bytes = total_;
    add_progress(static_cast<int64_t>(total_));
    return outcome_;
  }
  make_folder(cache_.repo_folder(listing_.repo) / "blobs");
  cache_.tag();
  make_folder(cache_.lock_file(listing_.repo, "x").parent_path());
  uint64_t parts = 0;
  for (const auto& blob : blobs_) parts += blob->wanted / options_.part_bytes + 1;
  const auto count =
      static_cast<size_t>(std::min<uint64_t>(parts, static_cast<uint64_t>(options_.connections)));
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    const SignalBlock block;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
  } catch (const std::exception&) {
    // As many connections as the system gives threads for.
    if (threads.empty()) throw;
  }
  for (std::thread& thread : threads) thread.join();
  if (error_) std::rethrow_exception(error_);
  if (client_.cancelled())
    throw_error(ErrorCode::cancelled, "interrupted: run the same command again to go on where it stopped");
  return outcome_;
}

void Downloader::work() {
  HttpClient http(client_.settings().timeout, [this] { return stopping(); });
  std::unique_lock held(mutex_);
  try {
    while (!stopping()) {
      if (std::all_of(blobs_.begin(), blobs_.end(),
                      [](const auto& b) { return b->state == Blob::State::done; }))
        break;
      if (Clock::now() < paused_until_ || !take_work(held, http))
        changed_.wait_for(held, std::chrono::milliseconds(50));
    }
  } catch (...) {
    if (!held.owns_lock()) held.lock();
    if (!error_) error_ = std::current_exception();
    failed_ = true;
  }
  changed_.notify_all();
}

// One piece of work: a part of an open blob, or the opening of another. Called and returns with the lock
// held.
bool Downloader::take_work(std::unique_lock<std::mutex>& held, HttpClient& http) {
  for (const auto& blob : blobs_) {
    Part part;
    if (blob->state != Blob::State::open || !next_part(*blob, &part)) continue;
    ++blob->active;
    held.unlock();
    transfer(http, part);
    held.lock();
    --blob->active;
    finish(held, *blob);
    changed_.notify_all();
    return true;
  }
  if (open_blobs_ >= options_.connections) return false;
  for (const auto& blob : blobs_) {
    if (blob->state != Blob::State::waiting || Clock::now() < blob->try_again) continue;
    ++open_blobs_;
    open(held, *blob);
    finish(held, *blob);
    changed_.notify_all();
    return true;
  }
  return false;
}

bool Downloader::next_part(Blob& blob, Part* part) {
  if (!blob.probed && blob.active > 0) return false;
  if (blob.one_stream) {
    if (blob.active > 0 || blob.next >= blob.wanted) return false;
    *part = {&blob, blob.next, blob.wanted, blob.generation, true};
  } else {
    // What waits beside the prefix for the foremost part is bounded.
    const uint64_t window = options_.part_bytes * (static_cast<uint64_t>(options_.connections) + 1);
    const std::lock_guard guard(blob.writing);
    // What an earlier attempt fetched ahead is passed over.
    const BlobWriter::Gap gap = blob.writer->gap(blob.next);
    blob.next = gap.begin;
    if (blob.next >= blob.wanted || blob.next >= blob.written() + window) return false;
    *part = {&blob, blob.next, std::min({blob.wanted, gap.end, blob.next + options_.part_bytes}),
             blob.generation, false};
  }
  blob.next = part->end;
  return true;
}

void Downloader::open(std::unique_lock<std::mutex>& held, Blob& blob) {
  const std::string& repo = listing_.repo;
  blob.state = Blob::State::opening;
  held.unlock();
  const fs::path final_path = cache_.blob(repo, blob.file.digest);
  const bool had_lock = blob.lock.held() || blob.lock.try_acquire(cache_.lock_file(repo, blob.file.digest));
  bool present = false;
  if (had_lock) {
    present = is_regular(final_path) && size_of(final_path) == blob.file.size;
    if (present) {
      cache_.remove_incomplete(repo, blob.file.digest);  // another program was faster
    } else {
      std::error_code ignored;
      fs::remove(final_path, ignored);  // a link to nothing, or content of another length: no blob
      uint64_t counted = 0;
      blob.writer = std::make_unique<BlobWriter>(cache_.incomplete(repo, blob.file.digest), blob.file.digest,
                                                 blob.file.size, [&](uint64_t done) {
                                                   const uint64_t use = std::min(done, blob.wanted);
                                                   add_progress(static_cast<int64_t>(use - counted));
                                                   counted = use;
                                                   return !stopping();
                                                 });
      add_progress(static_cast<int64_t>(blob.here()) - static_cast<int64_t>(counted));
    }
  }
  held.lock();
  if (!had_lock) {
    --open_blobs_;
    blob.state = Blob::State::waiting;
    blob.try_again = Clock::now() + std::chrono::milliseconds(200);
    if (!told_of_waiting_)
      client_.note(fmt::format("waiting for another process that is fetching {}", blob.file.path));
    told_of_waiting_ = true;
    return;
  }
  if (present) {
    outcome_.reused_bytes += blob.wanted;
    complete(blob);
    held.unlock();
    add_progress(static_cast<int64_t>(blob.wanted));
    held.lock();
    return;
  }
  blob.state = Blob::State::open;
  blob.next = blob.written();
  outcome_.reused_bytes += blob.here();
}

// With the lock held: whether a response may be used for a part, and what it tells of the blob.
Verdict Downloader::check_response(const HttpResponse& response, const Part& part, uint64_t at, bool direct) {
  Blob& blob = *part.blob;
  const std::lock_guard guard(mutex_);
  if (blob.generation != part.generation) return Verdict::obsolete;
  const std::string what = fmt::format("{}/{}", listing_.repo, blob.file.path);

  // What the hub itself says of the file must agree with its listing.
  const bool from_hub = origin_of(response.url) == origin_;
  if (!direct || from_hub) {
    const std::string* etag = response.hub_header("x-linked-etag");
    if (etag == nullptr && from_hub) etag = response.hub_header("etag");
    const std::string digest = etag == nullptr ? std::string() : bare_etag(*etag);
    if (is_digest(digest) && digest.size() == blob.file.digest.size() && digest != blob.file.digest)
      throw_error(ErrorCode::corrupt_file, "{}: the hub lists {} and serves {}: run the command again", what,
                  blob.file.digest, digest);
    const std::string* commit = response.hub_header("x-repo-commit");
    if (commit != nullptr && is_digest(*commit) && *commit != listing_.commit)
      throw_error(ErrorCode::corrupt_file, "{}: asked for commit {}, the hub serves {}", what,
                  listing_.commit, *commit);
    const std::string* linked = response.hub_header("x-linked-size");
    if (linked != nullptr && parse_length(*linked) != blob.file.size)
      throw_error(ErrorCode::corrupt_file, "{}: the hub lists {} bytes and serves {}", what, blob.file.size,
                  printable(*linked));
  }
  // Parts of two different contents must never be joined.
  if (const std::string* etag = response.header("etag")) {
    if (!blob.validator.empty() && blob.validator != *etag) return Verdict::changed;
    blob.validator = *etag;
  }
  if (response.status == 206) {
    const std::string* header = response.header("content-range");
    const auto range = header == nullptr ? std::nullopt : parse_content_range(*header);
    if (!range || range->first != at || range->last + 1 > part.end ||
        (range->total && *range->total != blob.file.size))
      throw_error(ErrorCode::corrupt_file, "{}: asked for bytes {}-{} of {}, got '{}'", what, at,
                  part.end - 1, blob.file.size, header == nullptr ? "no Content-Range" : printable(*header));
  } else {
    const std::string* header = response.header("content-length");
    if (header != nullptr && parse_length(*header) != blob.file.size)
      throw_error(ErrorCode::corrupt_file, "{}: the hub lists {} bytes, and {} has {}", what, blob.file.size,
                  printable(origin_of(response.url)), printable(*header));
    // The whole file from its beginning, although a part was asked for.
    if (!part.one_stream && !(at == 0 && part.end == blob.file.size)) return Verdict::ranges_ignored;
  }
  if (response.url != client_.file_url(listing_.repo, listing_.commit, blob.file.path))
    blob.url = response.url;
  if (!blob.probed) {
    blob.probed = true;
    changed_.notify_all();
  }
  return Verdict::go_on;
}

// Hands received bytes, which begin at `begin`, on to the disk.
void Downloader::drain(const Part& part, uint64_t begin, std::vector<std::byte>* bytes) {
  if (bytes->empty()) return;
  Blob& blob = *part.blob;
  {
    const std::lock_guard guard(blob.writing);
    if (blob.generation != part.generation || blob.writer == nullptr) return;
    blob.writer->put(part.begin, begin, *bytes);
  }
  add_progress(static_cast<int64_t>(bytes->size()));
  bytes->clear();
  changed_.notify_all();
}

void Downloader::restart(const Part& part, const std::string& why) {
  Blob& blob = *part.blob;
  const std::lock_guard guard(mutex_);
  const std::lock_guard writing(blob.writing);
  if (blob.generation != part.generation) return;  // another part found the same
  if (++blob.restarts > kRestarts)
    throw_error(ErrorCode::corrupt_file, "{}/{}: {}, again and again: try later", listing_.repo,
                blob.file.path, why);
  client_.note(fmt::format("{}: {}: fetching it anew", blob.file.path, why));
  ++blob.generation;
  add_progress(-static_cast<int64_t>(blob.here()));
  blob.writer->restart();
  blob.next = 0;
  blob.url.clear();
  blob.validator.clear();
}

// Fetches one part, with all the attempts that it takes. Called without locks.
void Downloader::transfer(HttpClient& http, const Part& part) {
  Blob& blob = *part.blob;
  const HubSettings& settings = client_.settings();
  std::vector<std::byte> buffer;
  uint64_t drained = part.begin;  // everything of the part before is on disk
  Clock::time_point drained_at = Clock::now();
  const auto flush = [&] {
    const uint64_t size = buffer.size();
    drain(part, drained, &buffer);
    drained += size;
    drained_at = Clock::now();
  };
  int attempt = 0;
  while (!stopping()) {
    const uint64_t at = drained;
    if (at >= part.end) break;
    HttpRequest request;
    {
      const std::lock_guard guard(mutex_);
      if (blob.generation != part.generation) return;
      request.url = blob.url;
    }
    const bool direct = !request.url.empty();
    if (!direct) request.url = client_.file_url(listing_.repo, listing_.commit, blob.file.path);
    request.token = settings.token;
    request.token_origin = origin_;
    const bool ranged = !part.one_stream && !(at == 0 && part.end == blob.file.size);
    if (ranged) request.headers.push_back(fmt::format("Range: bytes={}-{}", at, part.end - 1));
    Verdict verdict = Verdict::go_on;
    bool too_long = false;
    // A stream that cannot be asked for a range comes from its beginning: what is there already is passed
    // over.
    uint64_t skip = 0;
    uint64_t received = 0;
    request.on_response = [&](const HttpResponse& response) {
      verdict = check_response(response, part, at, direct);
      skip = response.status == 206 ? 0 : at;
      return verdict == Verdict::go_on;
    };
    request.receive = [&](std::span<const std::byte> bytes) {
      if (blob.generation != part.generation) return false;
      received += bytes.size();
      const uint64_t over = std::min<uint64_t>(skip, bytes.size());
      skip -= over;
      bytes = bytes.subspan(over);
      const uint64_t room = part.end - drained - buffer.size();
      const bool over_the_end = bytes.size() > room;
      if (over_the_end) {
        // The end of a prefix that was wanted is no fault.
        too_long = part.end == blob.file.size;
        bytes = bytes.first(room);
      }
      buffer.insert(buffer.end(), bytes.begin(), bytes.end());
      if (buffer.size() >= kDrainBytes || Clock::now() - drained_at >= kDrainTime) flush();
      return !over_the_end;
    };
    const HttpResponse response = http.get(request);
    client_.count_received(received);
    if (blob.generation != part.generation) return;  // another part's restart
    // However the response ended, what came of it stays.
    flush();
    const uint64_t reached = drained;
    if (too_long) {
      restart(part, fmt::format("the server sends more than the {} bytes listed", blob.file.size));
      return;
    }
    if (reached >= part.end) break;
    switch (verdict) {
      case Verdict::obsolete:
        return;
      case Verdict::changed:
        restart(part, "its entity tag changed on the server");
        return;
      case Verdict::ranges_ignored: {
        const std::lock_guard guard(mutex_);
        const std::lock_guard writing(blob.writing);
        if (blob.generation != part.generation) return;
        ++blob.generation;
        blob.one_stream = blob.probed = true;
        add_progress(-static_cast<int64_t>(blob.here()));
        blob.writer->drop_ahead();
        add_progress(static_cast<int64_t>(blob.here()));
        blob.next = blob.written();
        return;
      }
      case Verdict::go_on:
        break;
    }
    if (stopping()) return;
    if (response.failure == NetworkFailure::none && response.status == 416) {
      restart(part, "the server knows no such range");
      return;
    }
    attempt = reached > at ? 1 : attempt + 1;
    // The signed address behind the hub's redirect has run out, or its host is in trouble: ask the hub again.
    const bool other_way = direct && response.failure != NetworkFailure::cut;
    if (direct) {
      const std::lock_guard guard(mutex_);
      blob.url.clear();
    }
    const bool ended_early = response.failure == NetworkFailure::none && response.status / 100 == 2;
    if ((!other_way && !ended_early && !is_transient(response)) || attempt > client_.options().retries) {
      if (ended_early)
        throw_error(ErrorCode::not_found, "{}/{}: the server ends after {} of {} bytes", listing_.repo,
                    blob.file.path, reached, blob.file.size);
      throw_response_error(response, settings, listing_.repo, listing_.revision, blob.file.path);
    }
    const double seconds = backoff_seconds(response, attempt);
    if (seconds > kLongestWait)
      throw_response_error(response, settings, listing_.repo, listing_.revision, blob.file.path);
    if (response.failure == NetworkFailure::none && (response.status == 429 || response.status == 503)) {
      client_.note(
          fmt::format("{} answers {}: waiting {:.0f} s", origin_of(response.url), response.status, seconds));
      pause_all(seconds);
    }
    if (!wait_seconds(seconds, [this] { return stopping(); })) return;
  }
}

// With the lock held: verifies and publishes a blob that has all its bytes.
void Downloader::finish(std::unique_lock<std::mutex>& held, Blob& blob) {
  if (blob.state != Blob::State::open || blob.active > 0) return;
  if (blob.written() < blob.wanted) return;
  if (!blob.whole) {
    complete(blob);
    return;
  }
  blob.state = Blob::State::opening;
  held.unlock();
  const bool good = blob.writer->finish(cache_.blob(listing_.repo, blob.file.digest));
  held.lock();
  if (good) {
    ++outcome_.files;
    complete(blob);
    return;
  }
  const char* kind = blob.file.is_large() ? "SHA-256" : "git SHA-1";
  if (++blob.bad_digests > 1)
    throw_error(ErrorCode::corrupt_file, "{}/{}: wrong checksum, twice: its {} is not {} (nothing was kept)",
                listing_.repo, blob.file.path, kind, blob.file.digest);
  client_.note(fmt::format("{}: wrong checksum: fetching it once more", blob.file.path));
  add_progress(-static_cast<int64_t>(blob.wanted));
  ++blob.generation;
  blob.writer.reset();
  blob.url.clear();
  blob.validator.clear();
  blob.state = Blob::State::waiting;
  --open_blobs_;
}

// With the lock held.
void Downloader::complete(Blob& blob) {
  for (const std::string& path : blob.paths)
    cache_.link(listing_.repo, listing_.commit, path, blob.file.digest);
  blob.writer.reset();
  blob.lock.release();
  blob.state = Blob::State::done;
  --open_blobs_;
}

}  // namespace

uint64_t missing_bytes(const HubCache& cache, const std::string& repo,
                       const std::vector<DownloadItem>& items) {
  uint64_t bytes = 0;
  std::map<std::string, bool> seen;
  for (const DownloadItem& item : items) {
    if (!seen.emplace(item.file.digest, true).second) continue;
    const uint64_t wanted = std::min(item.file.size, item.first_bytes);
    const fs::path blob = cache.blob(repo, item.file.digest);
    if (is_regular(blob) && size_of(blob) == item.file.size) continue;
    const uint64_t present = wanted == item.file.size ? cache.incomplete_bytes(repo, item.file.digest)
                                                      : size_of(cache.incomplete(repo, item.file.digest));
    bytes += wanted - std::min(wanted, present);
  }
  return bytes;
}

void check_free_space(const HubCache& cache, uint64_t bytes) {
  if (bytes == 0) return;
  const std::optional<uint64_t> available = free_disk_bytes(cache.root());
  if (!available || *available >= bytes + std::min(bytes, kDiskReserve)) return;
  throw_error(
      ErrorCode::resource_exhausted,
      "{}: need {:.1f} MB, have {:.1f} MB free: make room, or set HF_HUB_CACHE to a folder on another disk",
      printable(cache.root().string()), static_cast<double>(bytes) / 1e6,
      static_cast<double>(*available) / 1e6);
}

DownloadOutcome download(HubClient& client, const HubCache& cache, const Listing& listing,
                         const std::vector<DownloadItem>& items, const DownloadOptions& options) {
  if (client.settings().offline)
    throw_error(ErrorCode::not_found, "offline: {} cannot be fetched (HF_HUB_OFFLINE or --offline)",
                listing.repo);
  check_free_space(cache, missing_bytes(cache, listing.repo, items));
  return Downloader(client, cache, listing, items, options).run();
}

}  // namespace kvasir::hub
