// Python's integers beyond 64 bits, as far as chat templates can meet them: exact, bounded by
// Limits::integer_bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::jinja {

// Sign and magnitude, 32 bits a limb, least significant first, no leading zero limbs; zero is never negative.
class BigInteger {
 public:
  BigInteger() = default;
  explicit BigInteger(int64_t value);
  // Truncates towards zero; the value must be finite.
  static BigInteger from_double(double value);
  // Digits of `base` (2..36) only, no sign, no prefix.
  static BigInteger from_digits(std::string_view digits, int base);

  bool negative() const { return negative_; }
  bool is_zero() const { return limbs_.empty(); }
  size_t bits() const;
  std::optional<int64_t> to_int64() const;
  // Rounded to nearest even; +-infinity beyond the range.
  double to_double() const;
  // base 2, 8, 10 or 16, lower case, with a leading '-' when negative.
  std::string to_string(int base = 10) const;

  BigInteger negated() const;
  friend BigInteger operator+(const BigInteger& a, const BigInteger& b);
  friend BigInteger operator-(const BigInteger& a, const BigInteger& b) { return a + b.negated(); }
  friend BigInteger operator*(const BigInteger& a, const BigInteger& b);
  // Floor division and the remainder with the divisor's sign; b must not be zero.
  static void divide_floor(const BigInteger& a, const BigInteger& b, BigInteger& quotient,
                           BigInteger& remainder);
  // -1, 0, 1
  static int compare(const BigInteger& a, const BigInteger& b);
  uint64_t hash() const;

 private:
  static int compare_magnitude(const BigInteger& a, const BigInteger& b);
  static std::vector<uint32_t> add_magnitude(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b);
  static std::vector<uint32_t> subtract_magnitude(const std::vector<uint32_t>& a,
                                                  const std::vector<uint32_t>& b);
  // Divides in place by a small divisor, returns the remainder.
  static uint32_t divide_small(std::vector<uint32_t>& limbs, uint32_t divisor);
  void trim();

  std::vector<uint32_t> limbs_;
  bool negative_ = false;
};

}  // namespace kvasir::jinja
