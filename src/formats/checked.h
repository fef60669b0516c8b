// Arithmetic on sizes that a file declares: every step says whether it overflowed.
#pragma once

#include <cstdint>

namespace kvasir::formats {

// False on overflow; *out is then unspecified.
inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}
inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

// `alignment` is a power of two.
inline bool checked_align_up(uint64_t value, uint64_t alignment, uint64_t* out) {
  if (!checked_add(value, alignment - 1, out)) return false;
  *out &= ~(alignment - 1);
  return true;
}

}  // namespace kvasir::formats
