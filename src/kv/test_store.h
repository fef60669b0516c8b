// For the tests of what keeps rows on disk.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

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

// Holds back every writer of a store, as an opening process does.
class Held {
 public:
  explicit Held(const std::filesystem::path& dir)
      : fd_(::open((dir / ".lock").c_str(), O_RDWR | O_CREAT, 0600)) {
    EXPECT_EQ(::flock(fd_, LOCK_EX), 0);
  }
  ~Held() { ::close(fd_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  int fd_;
};

}  // namespace kvasir::kv::testing
