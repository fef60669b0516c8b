// The idea: enough independent accumulators that only the execution units limit the rate, and nothing from
// memory.
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "ops/machine_limits/machine_limits.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int kAccumulators = 24;
using Floats = __m512;
using Integers = __m512i;
inline Floats zero_f() {
  return _mm512_setzero_ps();
}
inline Floats fill_f(float x) {
  return _mm512_set1_ps(x);
}
inline Floats fma_f(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Integers zero_i() {
  return _mm512_setzero_si512();
}
inline Integers fill_i(int x) {
  return _mm512_set1_epi32(x);
}
inline Integers xor_i(Integers a, Integers b) {
  return _mm512_xor_si512(a, b);
}
inline Integers load_i(const void* p) {
  return _mm512_loadu_si512(p);
}
inline Integers dot_i(Integers a, Integers b, Integers c) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(c, a, b);
#else
  return _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
#endif
}
#elif defined(__AVX2__)
constexpr int kAccumulators = 12;
using Floats = __m256;
using Integers = __m256i;
inline Floats zero_f() {
  return _mm256_setzero_ps();
}
inline Floats fill_f(float x) {
  return _mm256_set1_ps(x);
}
inline Floats fma_f(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Integers zero_i() {
  return _mm256_setzero_si256();
}
inline Integers fill_i(int x) {
  return _mm256_set1_epi32(x);
}
inline Integers xor_i(Integers a, Integers b) {
  return _mm256_xor_si256(a, b);
}
inline Integers load_i(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Integers dot_i(Integers a, Integers b, Integers c) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(c, a, b);
#else
  return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
}
#elif defined(__x86_64__)
constexpr int kAccumulators = 12;
using Floats = __m128;
using Integers = __m128i;
inline Floats zero_f() {
  return _mm_setzero_ps();
}
inline Floats fill_f(float x) {
  return _mm_set1_ps(x);
}
inline Floats fma_f(Floats a, Floats b, Floats c) {
  return _mm_add_ps(_mm_mul_ps(a, b), c);
}
inline Integers zero_i() {
  return _mm_setzero_si128();
}
inline Integers fill_i(int x) {
  return _mm_set1_epi32(x);
}
inline Integers xor_i(Integers a, Integers b) {
  return _mm_xor_si128(a, b);
}
inline Integers load_i(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
// SSE2 has 16-bit multiply-adds only: two for sixteen 8-bit products.
inline Integers dot_i(Integers a, Integers b, Integers c) {
  return _mm_add_epi32(_mm_add_epi32(c, _mm_madd_epi16(a, b)), _mm_madd_epi16(b, a));
}
#elif defined(__aarch64__)
constexpr int kAccumulators = 16;
using Floats = float32x4_t;
using Integers = int32x4_t;
inline Floats zero_f() {
  return vdupq_n_f32(0);
}
inline Floats fill_f(float x) {
  return vdupq_n_f32(x);
}
inline Floats fma_f(Floats a, Floats b, Floats c) {
  return vfmaq_f32(c, a, b);
}
inline Integers zero_i() {
  return vdupq_n_s32(0);
}
inline Integers fill_i(int x) {
  return vdupq_n_s32(x);
}
inline Integers xor_i(Integers a, Integers b) {
  return veorq_s32(a, b);
}
inline Integers load_i(const void* p) {
  return vld1q_s32(static_cast<const int32_t*>(p));
}
inline Integers dot_i(Integers a, Integers b, Integers c) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(c, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
#else
  return vmlaq_s32(c, a, b);
#endif
}
#endif

constexpr int kLanes = sizeof(Floats) / sizeof(float);

// Tells the compiler that a value changes here, so that it neither hoists nor drops the arithmetic on it.
template <typename Vector>
inline void opaque(Vector& v) {
#if defined(__aarch64__)
  __asm__ volatile("" : "+w"(v));
#else
  __asm__ volatile("" : "+x"(v));
#endif
}
#if defined(__AVX512F__)
template <>
inline void opaque<__m512>(__m512& v) {
  __asm__ volatile("" : "+v"(v));
}
template <>
inline void opaque<__m512i>(__m512i& v) {
  __asm__ volatile("" : "+v"(v));
}
#endif

double run_f32(int64_t loops) {
  Floats sums[kAccumulators];
  // Unrolled like the loops below: one rolled loop over the array would keep the accumulators in memory.
#pragma GCC unroll 24
  for (int j = 0; j < kAccumulators; ++j) sums[j] = zero_f();
  Floats a = fill_f(0.5f), b = fill_f(0.25f);
  opaque(a);
  opaque(b);
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) sums[j] = fma_f(a, b, sums[j]);
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) opaque(sums[j]);
  }
  return static_cast<double>(loops) * kAccumulators * kLanes * 2;
}

double run_int8(int64_t loops) {
  Integers sums[kAccumulators];
  // Unrolled like the loops below: one rolled loop over the array would keep the accumulators in memory.
#pragma GCC unroll 24
  for (int j = 0; j < kAccumulators; ++j) sums[j] = zero_i();
  Integers a = fill_i(0x01020304), b = fill_i(0x04030201);
  opaque(a);
  opaque(b);
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) sums[j] = dot_i(a, b, sums[j]);
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) opaque(sums[j]);
  }
  return static_cast<double>(loops) * kAccumulators * kLanes * 4 * 2;
}

double run_bf16(int64_t loops) {
#if defined(__AVX512BF16__)
  __m512 sums[kAccumulators];
  // Unrolled like the loops below: one rolled loop over the array would keep the accumulators in memory.
#pragma GCC unroll 24
  for (int j = 0; j < kAccumulators; ++j) sums[j] = _mm512_setzero_ps();
  __m512i bits_a = _mm512_set1_epi16(0x3F00), bits_b = _mm512_set1_epi16(0x3E80);
  opaque(bits_a);
  opaque(bits_b);
  const auto a = reinterpret_cast<__m512bh>(bits_a);
  const auto b = reinterpret_cast<__m512bh>(bits_b);
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) sums[j] = _mm512_dpbf16_ps(sums[j], a, b);
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) opaque(sums[j]);
  }
  return static_cast<double>(loops) * kAccumulators * 16 * 2 * 2;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  float32x4_t sums[kAccumulators];
  // Unrolled like the loops below: one rolled loop over the array would keep the accumulators in memory.
#pragma GCC unroll 24
  for (int j = 0; j < kAccumulators; ++j) sums[j] = vdupq_n_f32(0);
  uint16x8_t bits_a = vdupq_n_u16(0x3F00), bits_b = vdupq_n_u16(0x3E80);
  opaque(bits_a);
  opaque(bits_b);
  for (int64_t i = 0; i < loops; ++i) {
    for (int j = 0; j < kAccumulators; ++j)
      sums[j] = vbfdotq_f32(sums[j], vreinterpretq_bf16_u16(bits_a), vreinterpretq_bf16_u16(bits_b));
    for (int j = 0; j < kAccumulators; ++j) opaque(sums[j]);
  }
  return static_cast<double>(loops) * kAccumulators * 4 * 2 * 2;
#else
  return run_f32(loops);
#endif
}

uint64_t run_read(const std::byte* data, size_t bytes) {
  // Eight independent streams of loads; the exclusive or costs nothing beside them.
  Integers sums[8];
  for (Integers& sum : sums) sum = zero_i();
  constexpr size_t kStep = 8 * sizeof(Integers);
  for (size_t at = 0; at + kStep <= bytes; at += kStep) {
    __builtin_prefetch(data + at + 4096);
    __builtin_prefetch(data + at + 4096 + 64);
    if (kStep > 128) {
      __builtin_prefetch(data + at + 4096 + 128);
      __builtin_prefetch(data + at + 4096 + 192);
    }
    if (kStep > 256)
      for (size_t line = 256; line < kStep; line += 64) __builtin_prefetch(data + at + 4096 + line);
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; ++j) sums[j] = xor_i(sums[j], load_i(data + at + j * sizeof(Integers)));
  }
  uint64_t result = 0;
  for (Integers& sum : sums) {
    alignas(64) uint64_t words[sizeof(Integers) / 8];
    __builtin_memcpy(words, &sum, sizeof sum);
    for (uint64_t word : words) result ^= word;
  }
  return result;
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const LimitKernels KVASIR_ISA_SYMBOL(limit_kernels);
const LimitKernels KVASIR_ISA_SYMBOL(limit_kernels) = {
    KVASIR_ISA_NAMESPACE::run_f32, KVASIR_ISA_NAMESPACE::run_bf16, KVASIR_ISA_NAMESPACE::run_int8,
    KVASIR_ISA_NAMESPACE::run_read};

}  // namespace kvasir::ops
