// Every request for memory that opening a model makes, refused in turn (model-selection.md, M6): the error
// is a clean one, and the process holds what it held before.
//
// The requests are counted and refused where the process makes them: this program replaces `operator new`,
// mmap, mprotect and the start of threads.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/tiny_models.h"
#include "models/model.h"

namespace {

enum class Kind { heap, mapping, thread };

// Counted while `counted` says their kind; the one that finds `left` at 1 is refused.
std::atomic<int> g_counted = -1;
std::atomic<int64_t> g_requests = 0;
std::atomic<int64_t> g_left = 0;
std::atomic<int64_t> g_live_allocations = 0;
std::atomic<int64_t> g_live_mappings = 0;

// Of the heap, requests that a model's size decides. Small ones are made where nothing may fail: by
// destructors of the JSON library, by std::filesystem's iterators.
size_t g_least_refused = 2048;

bool refused(Kind kind) {
  if (g_counted.load(std::memory_order_relaxed) != static_cast<int>(kind)) return false;
  g_requests.fetch_add(1);
  return g_left.fetch_sub(1) == 1;
}

void* allocate(size_t size, size_t alignment) {
  if (size >= g_least_refused && refused(Kind::heap)) return nullptr;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(std::max<size_t>(size, 1))
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory != nullptr) g_live_allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void* allocate_or_throw(size_t size, size_t alignment) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  g_live_allocations.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) {
  return allocate_or_throw(size, 0);
}
void* operator new[](size_t size) {
  return allocate_or_throw(size, 0);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  release(memory);
}

extern "C" void* mmap(void* address, size_t length, int protection, int flags, int fd,
                      off_t offset) noexcept {
  if (refused(Kind::mapping)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* got = reinterpret_cast<void*>(::syscall(SYS_mmap, address, length, protection, flags, fd, offset));
  if (got != MAP_FAILED) g_live_mappings.fetch_add(1);
  return got;
}

extern "C" int munmap(void* address, size_t length) noexcept {
  g_live_mappings.fetch_sub(1);
  return static_cast<int>(::syscall(SYS_munmap, address, length));
}

extern "C" int mprotect(void* address, size_t length, int protection) noexcept {
  if ((protection & PROT_WRITE) != 0 && refused(Kind::mapping)) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mprotect, address, length, protection));
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  if (refused(Kind::thread)) return EAGAIN;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}

namespace kvasir::engine {
namespace {

namespace fs = std::filesystem;
using testing::TinyKind;

int entries_of(const char* folder) {
  const fs::directory_iterator all(folder);
  return static_cast<int>(std::distance(begin(all), end(all)));
}

struct Holdings {
  int64_t allocations = g_live_allocations.load();
  int64_t mappings = g_live_mappings.load();
  int files = entries_of("/proc/self/fd");
};

// A thread that was joined may be listed for a moment longer.
bool only_this_thread_runs() {
  for (int tries = 0; tries < 3000; ++tries) {
    if (entries_of("/proc/self/task") == 1) return true;
    ::usleep(1000);
  }
  return false;
}

// What an attempt ended with: nothing, or what it threw.
struct Attempt {
  bool failed = false;
  bool clean = true;  // an error that the command line and the C API know what to do with
  char text[300] = {};
};

template <typename Work>
Attempt attempt(Kind kind, int64_t fail_at, const Work& work) {
  Attempt result;
  const auto note = [&](const char* what, bool clean) {
    result.failed = true;
    result.clean = clean;
    std::snprintf(result.text, sizeof result.text, "%s", what);
  };
  g_requests = 0;
  g_left = fail_at;
  g_counted = static_cast<int>(kind);
  try {
    work();
    g_counted = -1;
  } catch (const Error& error) {
    g_counted = -1;
    note(error.what(), error.code() == ErrorCode::resource_exhausted);
  } catch (const std::bad_alloc& error) {
    g_counted = -1;
    note(error.what(), kind == Kind::heap);
  } catch (const std::exception& error) {
    g_counted = -1;
    note(error.what(), false);
  }
  return result;
}

// Fails every request of `work`, which must do the same work each time.
template <typename Work>
void fail_each(Kind kind, int64_t at_least, const Work& work) {
  ASSERT_FALSE(attempt(kind, 0, work).failed);  // builds whatever is built once
  ASSERT_FALSE(attempt(kind, 0, work).failed);
  const int64_t requests = g_requests;
  ASSERT_GE(requests, at_least);
  ::testing::Test::RecordProperty(fmt::format("requests_{}", static_cast<int>(kind)),
                                  fmt::format("{}", requests));
  int64_t failed = 0;
  for (int64_t n = 1; n <= requests; ++n) {
    // What an error path builds once for the whole process is no leak: a leak is there again the next time.
    for (int tries = 0;; ++tries) {
      const Holdings before;
      const Attempt got = attempt(kind, n, work);
      const Holdings after;
      ASSERT_TRUE(got.clean) << "request " << n << " of " << requests << ": " << got.text;
      failed += got.failed && tries == 0;
      ASSERT_EQ(after.mappings, before.mappings) << "request " << n << ": " << got.text;
      ASSERT_EQ(after.files, before.files) << "request " << n << ": " << got.text;
      ASSERT_TRUE(only_this_thread_runs()) << "request " << n << ": " << got.text;
      if (after.allocations == before.allocations) break;
      ASSERT_LT(tries, 3) << "request " << n << " of " << requests << " (" << got.text << ") leaves "
                          << after.allocations - before.allocations << " allocations";
    }
  }
  // Requests whose failure costs nothing but speed are allowed, if they are few.
  EXPECT_GE(failed * 20, requests * 19) << requests;
  EXPECT_FALSE(attempt(kind, 0, work).failed);
}

class LoadFaults : public ::testing::TestWithParam<TinyKind> {
 protected:
  static models::LoadOptions load_options() {
    models::LoadOptions options;
    options.threads = 2;
    options.rows = 2;
    options.chunk = 16;
    options.context = 64;
    return options;
  }
  fs::path path() const { return testing::tiny_models().path(GetParam()); }
};

TEST_P(LoadFaults, OfTheModel) {
  MemoryLedger ledger;
  models::LoadOptions options = load_options();
  options.ledger = &ledger;
  const auto load = [&] { models::Model::load(path(), options); };
  fail_each(Kind::mapping, 8, load);
  EXPECT_EQ(ledger.total(), 0u);
  fail_each(Kind::thread, 1, load);
  EXPECT_EQ(ledger.total(), 0u);
  fail_each(Kind::heap, 10, load);
  EXPECT_EQ(ledger.total(), 0u);
  EXPECT_GT(ledger.high_water(MemoryCategory::weights), 0u);
}

TEST_P(LoadFaults, OfTheEngineAndItsFirstTokens) {
  EngineOptions options;
  options.load = load_options();
  options.load.kv.spec = "affine:8";
  options.load.kv.start = 5;
  options.prefix_cache = true;
  options.prefix_bytes = 100'000;
  options.memory_budget = size_t{1} << 30;
  const auto work = [&] {
    const auto engine = Engine::open(path(), options);
    Request request;
    request.prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    request.max_tokens = 2;
    request.sampling.temperature = 0;
    engine->generate(std::move(request));
  };
  fail_each(Kind::mapping, 16, work);
  fail_each(Kind::thread, 2, work);
  fail_each(Kind::heap, 30, work);
}

INSTANTIATE_TEST_SUITE_P(Tiny, LoadFaults, ::testing::ValuesIn(testing::kTinyKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

// A step that cannot be reserved for want of any memory, however little, leaves rows and pools as they were.
TEST(KvFaults, AFailedReservationChangesNothing) {
  EngineOptions options;
  options.load.threads = 1;
  options.load.rows = 3;
  options.load.chunk = 16;
  options.load.context = 64;
  options.load.page_tokens = 4;
  options.load.kv.spec = "affine:8";
  options.load.kv.start = 5;
  const auto engine = Engine::open(testing::tiny_models().path(testing::kTinyKinds[2]), options);
  kv::KvCache& cache = engine->cache();
  const auto append = [&](std::vector<kv::Sequence*> rows, const std::vector<int32_t>& counts) {
    kv::Step step;
    cache.reserve(rows, counts, step);
    step.commit();
  };
  g_least_refused = 0;
  int64_t failures = 0;
  for (bool failed = true; failed; failures += failed) {
    kv::Sequence a = cache.create(), b = cache.create();
    append({&a}, {5});
    kv::Sequence c = a.fork();  // its last page is copied by whoever appends first; both rows convert
    const std::vector<kv::Sequence*> rows = {&a, &b, &c};
    const std::vector<int32_t> counts = {9, 3, 1};
    {
      kv::Step step;
      const Attempt got = attempt(Kind::heap, failures + 1, [&] { cache.reserve(rows, counts, step); });
      failed = got.failed;
      ASSERT_TRUE(got.clean);
      EXPECT_EQ(a.in_step(), !failed);
      EXPECT_EQ(c.in_step(), !failed);
      EXPECT_EQ(a.offset(), 5);
    }
    append(rows, counts);
    EXPECT_EQ(a.offset(), 14);
    EXPECT_EQ(c.offset(), 6);
  }
  g_least_refused = 2048;
  EXPECT_GE(failures, 5);
  // Nothing was lost: the pools still hold what was planned for three rows.
  kv::Sequence full[3] = {cache.create(), cache.create(), cache.create()};
  append({&full[0], &full[1], &full[2]}, {5, 5, 5});
  for (int n = 0; n < 3; ++n) append({&full[0], &full[1], &full[2]}, {16, 16, 16});
}

// Two models in one process: closing one gives back what is its own, and the other goes on as before (S10).
TEST(TwoModels, ClosingOneReleasesOnlyItsResources) {
  EngineOptions options;
  options.load.threads = 2;
  options.load.context = 64;
  options.load.chunk = 16;
  const auto answer = [](Engine& engine) {
    Request request;
    request.prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    request.max_tokens = 6;
    request.sampling.seed = 7;
    return engine.generate(std::move(request)).tokens;
  };
  const auto open = [&](int kind) {
    return Engine::open(testing::tiny_models().path(testing::kTinyKinds[kind]), options);
  };
  auto alone = open(0);
  const std::vector<int32_t> want = answer(*alone);
  alone.reset();

  auto stays = open(0);
  ASSERT_EQ(answer(*stays), want);
  const size_t held = stays->ledger().total();
  const Holdings one;
  for (int round = 0; round < 2; ++round) {
    auto other = open(2);
    const std::vector<int32_t> theirs = answer(*other);
    EXPECT_EQ(answer(*stays), want);
    EXPECT_EQ(answer(*other), theirs);
    EXPECT_GT(Holdings().mappings, one.mappings);
    other.reset();
    EXPECT_EQ(stays->ledger().total(), held);
    EXPECT_EQ(answer(*stays), want);
  }
  const Holdings after;
  EXPECT_EQ(after.mappings, one.mappings);
  EXPECT_EQ(after.files, one.files);
  stays.reset();
  EXPECT_TRUE(only_this_thread_runs());
}

}  // namespace
}  // namespace kvasir::engine
