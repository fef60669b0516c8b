#include "chat/jinja/budget.h"

#include "chat/jinja/failure.h"

namespace kvasir::jinja {
namespace {

thread_local Budget* current_budget = nullptr;
thread_local int value_depth = 0;
constexpr int kMaxValueDepth = 400;
constexpr int64_t kStepsBetweenChecks = 4096;

const Limits& limits_in_force() {
  static const Limits defaults;
  return current_budget != nullptr ? current_budget->limits() : defaults;
}

const char* stack_pointer() {
  return static_cast<const char*>(__builtin_frame_address(0));
}

}  // namespace

Budget::Budget(const Limits& limits)
    : limits_(limits),
      deadline_(std::chrono::steady_clock::now() + limits.time),
      stack_base_(stack_pointer()) {
  next_check_ = kStepsBetweenChecks;
  if (current_budget != nullptr)
    throw Failure{FailureKind::runtime_error, "a render cannot start inside another one"};
  current_budget = this;
}

Budget::~Budget() {
  current_budget = nullptr;
}

Budget* Budget::current() {
  return current_budget;
}

void Budget::check() {
  if (steps_ > limits_.steps)
    fail(FailureKind::limit, "the template ran more than {} steps (limit)", limits_.steps);
  if (std::chrono::steady_clock::now() > deadline_)
    fail(FailureKind::limit, "the template ran longer than {} ms (limit)", limits_.time.count());
  next_check_ = steps_ + kStepsBetweenChecks;
}

void Budget::fail_iterations() const {
  fail(FailureKind::limit, "the template ran more than {} loop iterations (limit)", limits_.loop_iterations);
}

void Budget::charge(size_t more) {
  if (more > limits_.memory_bytes || memory_ > limits_.memory_bytes - more)
    fail(FailureKind::limit, "the template's values need more than {} bytes of memory (limit)",
         limits_.memory_bytes);
  memory_ += more;
  work(more);
}

void Budget::check_stack() const {
  const std::ptrdiff_t used = stack_base_ - stack_pointer();
  if (used > static_cast<std::ptrdiff_t>(limits_.native_stack_bytes))
    fail(FailureKind::limit, "the template recurses too deeply (limit: {} bytes of stack)",
         limits_.native_stack_bytes);
}

void check_string_size(size_t bytes) {
  const size_t limit = limits_in_force().string_bytes;
  if (bytes > limit) fail(FailureKind::limit, "a string would be larger than {} bytes (limit)", limit);
}

void check_list_size(size_t items) {
  const size_t limit = limits_in_force().list_items;
  if (items > limit) fail(FailureKind::limit, "a list would have more than {} items (limit)", limit);
}

void check_integer_bits(size_t bits) {
  const size_t limit = limits_in_force().integer_bits;
  if (bits > limit) fail(FailureKind::limit, "an integer would have more than {} bits (limit)", limit);
}

size_t checked_repeat(size_t size, int64_t times, bool is_string) {
  if (times <= 0 || size == 0) return 0;
  const size_t limit = is_string ? limits_in_force().string_bytes : limits_in_force().list_items;
  if (static_cast<uint64_t>(times) > limit / size + 1) {
    if (is_string) check_string_size(limit + 1);
    check_list_size(limit + 1);
  }
  const size_t total = size * static_cast<size_t>(times);
  if (is_string)
    check_string_size(total);
  else
    check_list_size(total);
  return total;
}

DepthGuard::DepthGuard() {
  if (++value_depth > kMaxValueDepth) {
    --value_depth;
    fail(FailureKind::limit, "values are nested more than {} levels deep (limit)", kMaxValueDepth);
  }
}

DepthGuard::~DepthGuard() {
  --value_depth;
}

}  // namespace kvasir::jinja
