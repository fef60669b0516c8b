// What one render may use. A template is a stranger's program: everything that it can make grow has a limit,
// and every limit that is hit is an error of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvasir::jinja {

struct Limits {
  size_t source_bytes = size_t{4} << 20;
  int tree_depth = 200;                  // nested statements and expressions
  int64_t steps = 50'000'000;            // statements and expressions evaluated
  int64_t loop_iterations = 10'000'000;  // of all loops and iterators together
  int call_depth = 200;                  // macros and recursive loops inside each other
  size_t output_bytes = size_t{64} << 20;
  size_t string_bytes = size_t{64} << 20;  // any one string
  size_t list_items = 10'000'000;          // any one list, tuple or dict
  size_t integer_bits = 65'536;
  size_t memory_bytes = size_t{512} << 20;  // all values alive at one time
  size_t native_stack_bytes = size_t{3} << 20;
  std::chrono::milliseconds time{2000};
};

// Counts what the render on this thread uses. Active between construction and destruction (one at a time per
// thread).
class Budget {
 public:
  explicit Budget(const Limits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // The budget of the render that runs on this thread, or null (values made outside a render are not
  // counted).
  static Budget* current();

  const Limits& limits() const { return limits_; }

  void step() {
    if (++steps_ >= next_check_) check();
  }
  void iteration() {
    if (++iterations_ > limits_.loop_iterations) fail_iterations();
    step();
  }
  // Throws when `more` bytes would exceed the memory limit.
  void charge(size_t more);
  void release(size_t bytes) { memory_ -= bytes; }
  // One step may copy or scan megabytes: the clock is looked at sooner, one step earlier for every KiB.
  void work(size_t bytes) { next_check_ -= static_cast<int64_t>(bytes >> 10); }
  // Throws when the native stack has grown too far: every recursion over values or trees calls it.
  void check_stack() const;

  size_t memory() const { return memory_; }

 private:
  void check();
  [[noreturn]] void fail_iterations() const;

  Limits limits_;
  int64_t steps_ = 0;
  int64_t next_check_ = 0;
  int64_t iterations_ = 0;
  size_t memory_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  const char* stack_base_;
};

// Throw a limit failure if one string (list) would get this large. They work without an active budget too,
// with the default limits: constants are folded when a template is parsed.
void check_string_size(size_t bytes);
void check_list_size(size_t items);
void check_integer_bits(size_t bits);
// Budget::work of the render on this thread, if any.
inline void count_work(size_t bytes) {
  if (Budget* budget = Budget::current(); budget != nullptr) budget->work(bytes);
}
// bytes * times without overflow, checked as a string's size.
size_t checked_repeat(size_t size, int64_t times, bool is_string);

// Throws a limit failure when values are nested too deeply (repr, ==, hash, tojson recurse over them).
class DepthGuard {
 public:
  DepthGuard();
  ~DepthGuard();
};

}  // namespace kvasir::jinja
