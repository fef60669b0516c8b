#include "chat/jinja/big_integer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "chat/jinja/budget.h"

namespace kvasir::jinja {

BigInteger::BigInteger(int64_t value) : negative_(value < 0) {
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  for (; magnitude != 0; magnitude >>= 32) limbs_.push_back(static_cast<uint32_t>(magnitude));
}

void BigInteger::trim() {
  while (!limbs_.empty() && limbs_.back() == 0) limbs_.pop_back();
  if (limbs_.empty()) negative_ = false;
}

size_t BigInteger::bits() const {
  return limbs_.empty() ? 0 : limbs_.size() * 32 - static_cast<size_t>(std::countl_zero(limbs_.back()));
}

BigInteger BigInteger::from_double(double value) {
  BigInteger out;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(std::trunc(value)), &exponent);
  if (fraction == 0) return out;
  // The 53-bit significand, then a shift.
  auto significand = static_cast<uint64_t>(std::ldexp(fraction, 53));
  int shift = exponent - 53;
  if (shift < 0) {
    significand >>= -shift;
    shift = 0;
  }
  out.limbs_.assign(static_cast<size_t>(shift) / 32, 0);
  const int rest = shift % 32;
  const uint64_t low = significand << rest;
  const uint64_t high = rest == 0 ? 0 : significand >> (64 - rest);
  out.limbs_.push_back(static_cast<uint32_t>(low));
  out.limbs_.push_back(static_cast<uint32_t>(low >> 32));
  out.limbs_.push_back(static_cast<uint32_t>(high));
  out.negative_ = value < 0;
  out.trim();
  return out;
}

BigInteger BigInteger::from_digits(std::string_view digits, int base) {
  check_integer_bits(digits.size());  // at least one bit a digit
  BigInteger out;
  for (const char c : digits) {
    const auto digit = static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    uint64_t carry = digit;
    for (uint32_t& limb : out.limbs_) {
      carry += static_cast<uint64_t>(limb) * static_cast<uint32_t>(base);
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) out.limbs_.push_back(static_cast<uint32_t>(carry));
  }
  return out;
}

std::optional<int64_t> BigInteger::to_int64() const {
  if (limbs_.size() > 2) return std::nullopt;
  uint64_t magnitude = 0;
  for (size_t i = 0; i < limbs_.size(); ++i) magnitude |= static_cast<uint64_t>(limbs_[i]) << (32 * i);
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (magnitude > kMax + (negative_ ? 1 : 0)) return std::nullopt;
  return negative_ ? static_cast<int64_t>(0 - magnitude) : static_cast<int64_t>(magnitude);
}

double BigInteger::to_double() const {
  const size_t length = bits();
  if (length == 0) return 0;
  if (length > 1024) return negative_ ? -HUGE_VAL : HUGE_VAL;
  // The top 64 bits, with the lowest one sticky for everything below: 64 -> 53 then rounds exactly once.
  uint64_t top = 0;
  bool sticky = false;
  const size_t drop = length > 64 ? length - 64 : 0;
  for (size_t i = 0; i < limbs_.size(); ++i) {
    for (int b = 0; b < 32; ++b) {
      if (((limbs_[i] >> b) & 1) == 0) continue;
      const size_t position = i * 32 + static_cast<size_t>(b);
      if (position < drop)
        sticky = true;
      else
        top |= uint64_t{1} << (position - drop);
    }
  }
  if (sticky) top |= 1;
  const double value = std::ldexp(static_cast<double>(top), static_cast<int>(drop));
  return negative_ ? -value : value;
}

uint32_t BigInteger::divide_small(std::vector<uint32_t>& limbs, uint32_t divisor) {
  uint64_t remainder = 0;
  for (size_t i = limbs.size(); i-- > 0;) {
    remainder = (remainder << 32) | limbs[i];
    limbs[i] = static_cast<uint32_t>(remainder / divisor);
    remainder %= divisor;
  }
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  return static_cast<uint32_t>(remainder);
}

std::string BigInteger::to_string(int base) const {
  if (is_zero()) return "0";
  std::string out;
  std::vector<uint32_t> rest = limbs_;
  const uint32_t chunk = base == 10 ? 1'000'000'000U : static_cast<uint32_t>(base);
  const int digits_per_chunk = base == 10 ? 9 : 1;
  while (!rest.empty()) {
    uint32_t part = divide_small(rest, chunk);
    for (int i = 0; i < digits_per_chunk && (!rest.empty() || part != 0); ++i) {
      out += "0123456789abcdef"[part % static_cast<uint32_t>(base)];
      part /= static_cast<uint32_t>(base);
    }
  }
  if (negative_) out += '-';
  std::reverse(out.begin(), out.end());
  return out;
}

BigInteger BigInteger::negated() const {
  BigInteger out = *this;
  out.negative_ = !negative_ && !is_zero();
  return out;
}

int BigInteger::compare_magnitude(const BigInteger& a, const BigInteger& b) {
  if (a.limbs_.size() != b.limbs_.size()) return a.limbs_.size() < b.limbs_.size() ? -1 : 1;
  for (size_t i = a.limbs_.size(); i-- > 0;)
    if (a.limbs_[i] != b.limbs_[i]) return a.limbs_[i] < b.limbs_[i] ? -1 : 1;
  return 0;
}

int BigInteger::compare(const BigInteger& a, const BigInteger& b) {
  if (a.negative_ != b.negative_) return a.negative_ ? -1 : 1;
  const int magnitude = compare_magnitude(a, b);
  return a.negative_ ? -magnitude : magnitude;
}

std::vector<uint32_t> BigInteger::add_magnitude(const std::vector<uint32_t>& a,
                                                const std::vector<uint32_t>& b) {
  std::vector<uint32_t> out;
  out.reserve(std::max(a.size(), b.size()) + 1);
  uint64_t carry = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()) || carry != 0; ++i) {
    carry += (i < a.size() ? a[i] : 0);
    carry += (i < b.size() ? b[i] : 0);
    out.push_back(static_cast<uint32_t>(carry));
    carry >>= 32;
  }
  return out;
}

// |a| >= |b|
std::vector<uint32_t> BigInteger::subtract_magnitude(const std::vector<uint32_t>& a,
                                                     const std::vector<uint32_t>& b) {
  std::vector<uint32_t> out;
  out.reserve(a.size());
  int64_t borrow = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t difference = static_cast<int64_t>(a[i]) - (i < b.size() ? b[i] : 0) - borrow;
    borrow = difference < 0 ? 1 : 0;
    if (difference < 0) difference += int64_t{1} << 32;
    out.push_back(static_cast<uint32_t>(difference));
  }
  return out;
}

BigInteger operator+(const BigInteger& a, const BigInteger& b) {
  BigInteger out;
  if (a.negative_ == b.negative_) {
    out.limbs_ = BigInteger::add_magnitude(a.limbs_, b.limbs_);
    out.negative_ = a.negative_;
  } else if (BigInteger::compare_magnitude(a, b) >= 0) {
    out.limbs_ = BigInteger::subtract_magnitude(a.limbs_, b.limbs_);
    out.negative_ = a.negative_;
  } else {
    out.limbs_ = BigInteger::subtract_magnitude(b.limbs_, a.limbs_);
    out.negative_ = b.negative_;
  }
  out.trim();
  check_integer_bits(out.bits());
  return out;
}

BigInteger operator*(const BigInteger& a, const BigInteger& b) {
  check_integer_bits(a.bits() + b.bits() == 0 ? 0 : a.bits() + b.bits() - 1);
  count_work(a.limbs_.size() * b.limbs_.size() * 2);
  BigInteger out;
  out.limbs_.assign(a.limbs_.size() + b.limbs_.size(), 0);
  for (size_t i = 0; i < a.limbs_.size(); ++i) {
    uint64_t carry = 0;
    for (size_t j = 0; j < b.limbs_.size() || carry != 0; ++j) {
      carry += out.limbs_[i + j];
      if (j < b.limbs_.size()) carry += static_cast<uint64_t>(a.limbs_[i]) * b.limbs_[j];
      out.limbs_[i + j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  out.negative_ = a.negative_ != b.negative_;
  out.trim();
  return out;
}

void BigInteger::divide_floor(const BigInteger& a, const BigInteger& b, BigInteger& quotient,
                              BigInteger& remainder) {
  count_work(a.limbs_.size() * b.limbs_.size() * 64);
  quotient = BigInteger();
  remainder = BigInteger();
  if (b.limbs_.size() == 1) {
    quotient.limbs_ = a.limbs_;
    const uint32_t rest = divide_small(quotient.limbs_, b.limbs_[0]);
    if (rest != 0) remainder.limbs_.push_back(rest);
  } else {
    // Schoolbook, one bit at a time: rare, and bounded by the limit on integers.
    std::vector<uint32_t> rest;
    quotient.limbs_.assign(a.limbs_.size(), 0);
    BigInteger divisor = b, part;
    divisor.negative_ = false;
    for (size_t bit = a.bits(); bit-- > 0;) {
      uint32_t carry = (a.limbs_[bit / 32] >> (bit % 32)) & 1;
      for (uint32_t& limb : part.limbs_) {
        const uint32_t out = limb >> 31;
        limb = (limb << 1) | carry;
        carry = out;
      }
      if (carry != 0) part.limbs_.push_back(carry);
      if (compare_magnitude(part, divisor) >= 0) {
        part.limbs_ = subtract_magnitude(part.limbs_, divisor.limbs_);
        part.trim();
        quotient.limbs_[bit / 32] |= uint32_t{1} << (bit % 32);
      }
    }
    remainder = part;
  }
  quotient.negative_ = a.negative_ != b.negative_;
  remainder.negative_ = a.negative_;
  quotient.trim();
  remainder.trim();
  if (!remainder.is_zero() && a.negative_ != b.negative_) {
    quotient = quotient - BigInteger(1);
    remainder = remainder + b;
  }
}

uint64_t BigInteger::hash() const {
  uint64_t out = negative_ ? 0x9E3779B97F4A7C15ULL : 0;
  for (const uint32_t limb : limbs_) out = (out ^ limb) * 0x100000001B3ULL;
  return out;
}

}  // namespace kvasir::jinja
