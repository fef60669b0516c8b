// For the tests of what keeps rows on disk.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "base/test_folder.h"
#include "kv/store.h"
#include "kv/test_rows.h"

namespace kvasir::kv::testing {

inline StoreIdentity test_identity() {
  return {.model_id = "test",
          .config_fingerprint = "c",
          .weights_digest = "w",
          .numerics_id = "n",
          .scheme_key = "plain-f32",
          .tokenizer_hash = "t",
          .ns = ""};
}

// A row of these tokens as a model would leave it.
inline TestRow computed(KvCache& cache, const std::vector<int32_t>& tokens) {
  TestRow row{cache.create(), {}};
  append(cache, row, tokens);
  return row;
}

// Holds back every writer of a store, as an opening process does; or by another of its locks.
class Held {
 public:
  explicit Held(const std::filesystem::path& dir, const char* lock = ".lock")
      : fd_(::open((dir / lock).c_str(), O_RDWR | O_CREAT, 0600)) {
    EXPECT_EQ(::flock(fd_, LOCK_EX), 0);
  }
  ~Held() { ::close(fd_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  int fd_;
};

// A cache and a folder for a store of its rows.
struct StoreFixture {
  std::optional<TestFolder> own;
  std::filesystem::path dir;
  CacheShape shape;
  KvCache cache;
  std::vector<std::string> warnings;
  explicit StoreFixture(const ShapeOptions& options = {.page = 4}, const std::filesystem::path& existing = {})
      : shape(make_shape(options)),
        cache(shape, TestLayout::factory(), pages_each(shape, 256), nullptr, true) {
    if (existing.empty()) own.emplace("store");
    dir = own ? own->path() : existing;
  }
  DiskStore::Options options(uint64_t cap = uint64_t{1} << 30) {
    DiskStore::Options o;
    o.dir = dir;
    o.identity = test_identity();
    o.cap_bytes = cap;
    o.warn = [this](const std::string& text) { warnings.push_back(text); };
    return o;
  }
  TestRow computed(const std::vector<int32_t>& tokens) { return testing::computed(cache, tokens); }
  size_t files(const char* suffix = ".kvk") const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir))
      count += entry.path().native().ends_with(suffix);
    return count;
  }
};

inline void flip_byte(const std::filesystem::path& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const int value = file.get();
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(value ^ 1));
}

}  // namespace kvasir::kv::testing
