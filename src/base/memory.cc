#include "base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace kvasir {
namespace {

size_t system_page() {
  static const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

size_t status_field(const char* field) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return 0;
  char line[256];
  size_t kib = 0;
  const size_t length = std::strlen(field);
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::strncmp(line, field, length) == 0) {
      std::sscanf(line + length, " %zu", &kib);
      break;
    }
  std::fclose(file);
  return kib * 1024;
}

}  // namespace

void MemoryLedger::add(MemoryCategory category, size_t bytes) {
  const int i = static_cast<int>(category);
  const size_t now = current_[i].fetch_add(bytes) + bytes;
  size_t high = high_[i].load();
  while (now > high && !high_[i].compare_exchange_weak(high, now)) {
  }
}

void MemoryLedger::remove(MemoryCategory category, size_t bytes) {
  const size_t before = current_[static_cast<int>(category)].fetch_sub(bytes);
  KVASIR_CHECK(before >= bytes);
}

size_t MemoryLedger::bytes(MemoryCategory category) const {
  return current_[static_cast<int>(category)].load();
}
size_t MemoryLedger::high_water(MemoryCategory category) const {
  return high_[static_cast<int>(category)].load();
}

size_t MemoryLedger::total() const {
  size_t sum = 0;
  for (const auto& bytes : current_) sum += bytes.load();
  return sum;
}

Reservation::Reservation(size_t reserve, MemoryLedger* ledger, MemoryCategory category)
    : ledger_(ledger), category_(category) {
  if (reserve == 0) return;
  const size_t rounded = align_up(reserve, system_page());
  void* address = ::mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    throw_error(ErrorCode::resource_exhausted, "cannot reserve {} bytes of address space: {}", rounded,
                std::strerror(errno));
  data_ = static_cast<std::byte*>(address);
  reserved_ = rounded;
}

Reservation::Reservation(Reservation&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      reserved_(std::exchange(other.reserved_, 0)),
      committed_(std::exchange(other.committed_, 0)),
      ledger_(other.ledger_),
      category_(other.category_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    reserved_ = std::exchange(other.reserved_, 0);
    committed_ = std::exchange(other.committed_, 0);
    ledger_ = other.ledger_;
    category_ = other.category_;
  }
  return *this;
}

Reservation::~Reservation() {
  release();
}

void Reservation::release() {
  if (data_ == nullptr) return;
  ::munmap(data_, reserved_);
  if (ledger_ != nullptr) ledger_->remove(category_, committed_);
  data_ = nullptr;
}

void Reservation::commit(size_t bytes) {
  if (bytes <= committed_) return;
  if (bytes > reserved_)
    throw_error(ErrorCode::resource_exhausted, "memory plan exceeded: {} bytes wanted of {} reserved", bytes,
                reserved_);
  const size_t from = align_up(committed_, system_page());
  size_t to = align_up(bytes, system_page());
  // Weights are committed tensor by tensor and stream through every step: their range is opened in whole
  // large pages, so that the first touch can take one. Nothing is resident before it is touched, and the
  // ledger counts what was asked for.
  constexpr size_t kLargePage = size_t{2} << 20;
  const bool weights = category_ == MemoryCategory::weights && reserved_ >= kLargePage;
  if (weights) {
    const size_t skew = reinterpret_cast<uintptr_t>(data_) % kLargePage;
    to = std::min(align_up(to + skew, kLargePage) - skew, reserved_);
  }
  if (to > from) {
    if (::mprotect(data_ + from, to - from, PROT_READ | PROT_WRITE) != 0)
      throw_error(ErrorCode::resource_exhausted, "cannot commit {} bytes: {}", to - from,
                  std::strerror(errno));
    // Large ranges want large pages: fewer TLB misses. A refusal changes nothing but speed.
    if (weights || to - from >= kLargePage) ::madvise(data_ + from, to - from, MADV_HUGEPAGE);
  }
  if (ledger_ != nullptr) ledger_->add(category_, bytes - committed_);
  committed_ = bytes;
}

void Reservation::shrink(size_t bytes) {
  if (bytes >= committed_) return;
  const size_t from = align_up(bytes, system_page());
  const size_t to = align_up(committed_, system_page());
  if (to > from) {
    ::madvise(data_ + from, to - from, MADV_DONTNEED);
    ::mprotect(data_ + from, to - from, PROT_NONE);
  }
  if (bytes < from) std::memset(data_ + bytes, 0, (from < committed_ ? from : committed_) - bytes);
  if (ledger_ != nullptr) ledger_->remove(category_, committed_ - bytes);
  committed_ = bytes;
}

std::byte* Arena::allocate(size_t bytes, size_t alignment) {
  const size_t begin = align_up(used_, alignment);
  reservation_.commit(begin + bytes);
  used_ = begin + bytes;
  return reservation_.data() + begin;
}

size_t resident_bytes() {
  return status_field("VmRSS:");
}
size_t peak_resident_bytes() {
  return status_field("VmHWM:");
}

}  // namespace kvasir
