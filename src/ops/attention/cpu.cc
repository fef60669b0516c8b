// Attention over one segment of 256 keys, as two small matrix products with a softmax between them:
//
//   scores [rows, keys] = Q [rows, channels] K^T      channels ascend, keys in the lanes
//   out [rows, channels] += P [rows, keys] V          keys ascend, channels in the lanes
//
// Both have the same shape: an element of the left matrix (a pair of bf16 elements) is broadcast against
// vectors of 16 lanes. An output element is one chain of additions whatever the register tile, so tiles may
// differ between one query and 2,048 without a trace in the bits. Blocks are read from the page as they are
// where they hold f32 or bf16; codes are decoded, 64 keys or 64 channels at a time, into a tile of the
// first-level cache that all rows of the query tile use.
#include <math.h>
#include <string.h>

#include <hwy/highway.h>

#include "ops/attention/attention_kernels.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using kv::DecodeTable;
using kv::kBlockTokens;
using kv::PlaneFormat;
using kv::PlaneRole;

#include "kv/codecs/rotation-inl.h"

#if defined(__AVX512BF16__)
constexpr bool kHasDot = true;
#else
constexpr bool kHasDot = false;
#endif
#if defined(__AVX512F__)
constexpr int kMaxRows = 6, kMaxVectors = 4;  // register tile: 24 of 32 accumulators
#else
constexpr int kMaxRows = 3, kMaxVectors = 2;  // times 2 (avx2) or 4 registers each
#endif

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = 16 / kLanes;

// 16 lanes of f32 on any level.
struct V16 {
  V part[kParts];
};
#define FOR_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

HWY_INLINE V16 load(const float* p) {
  V16 r;
  FOR_PARTS r.part[i] = hn::LoadU(D(), p + i * kLanes);
  return r;
}
HWY_INLINE void store(const V16& v, float* p) {
  FOR_PARTS hn::StoreU(v.part[i], D(), p + i * kLanes);
}
HWY_INLINE V16 set(float x) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Set(D(), x);
  return r;
}
HWY_INLINE V16 fma(const V16& a, const V16& b, const V16& c) {
  V16 r;
  FOR_PARTS r.part[i] = hn::MulAdd(a.part[i], b.part[i], c.part[i]);
  return r;
}
HWY_INLINE V16 add(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Add(a.part[i], b.part[i]);
  return r;
}
HWY_INLINE V16 sub(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Sub(a.part[i], b.part[i]);
  return r;
}
HWY_INLINE V16 mul(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Mul(a.part[i], b.part[i]);
  return r;
}
HWY_INLINE V16 div(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Div(a.part[i], b.part[i]);
  return r;
}
// a > b ? a : b, so a NaN in `a` gives b.
HWY_INLINE V16 max(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::IfThenElse(hn::Gt(a.part[i], b.part[i]), a.part[i], b.part[i]);
  return r;
}
// x where keep != 0, else other: NaN in a dropped lane is dropped.
HWY_INLINE V16 select_nonzero(const V16& keep, const V16& x, const V16& other) {
  V16 r;
  FOR_PARTS r.part[i] = hn::IfThenElse(hn::Ne(keep.part[i], hn::Zero(D())), x.part[i], other.part[i]);
  return r;
}
// Elements 2i + 1 and 2i of 16 pairs of bf16.
HWY_INLINE void load_pairs(const std::byte* p, V16& even, V16& odd) {
  const DU du;
  FOR_PARTS {
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(p) + i * kLanes);
    even.part[i] = hn::BitCast(D(), hn::ShiftLeft<16>(bits));
    odd.part[i] = hn::BitCast(D(), hn::And(bits, hn::Set(du, 0xFFFF0000u)));
  }
}
// Rounded to bf16, kept as f32. For finite values.
HWY_INLINE V16 round_bf16(const V16& x) {
  const DU du;
  V16 r;
  FOR_PARTS {
    const auto bits = hn::BitCast(du, x.part[i]);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
    r.part[i] = hn::BitCast(D(), hn::And(up, hn::Set(du, 0xFFFF0000u)));
  }
  return r;
}

// e^x for x <= 0; 0 below -87. e^0 is exactly 1. Taylor to r^7 for |r| <= ln(2)/2: the rest is below 6e-9.
HWY_INLINE V16 exp_negative(const V16& x) {
  const D d;
  const DI di;
  V16 out;
  FOR_PARTS {
    const V v = hn::Max(x.part[i], hn::Set(d, -88.0f));
    const V n = hn::Round(hn::Mul(v, hn::Set(d, 0x1.715476p+0f)));
    V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), v);  // ln 2 in two parts, n times the first is exact
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
    V y = hn::Set(d, 1.0f / 5040.0f);
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 720.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 120.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 24.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 6.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 0.5f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
    const V scaled = hn::Mul(y, hn::BitCast(d, power));
    out.part[i] = hn::IfThenElse(hn::Ge(x.part[i], hn::Set(d, -87.0f)), scaled, hn::Zero(d));
  }
  return out;
}

HWY_INLINE float exp_negative(float x) {
  float lanes[16];
  store(exp_negative(set(x)), lanes);
  return lanes[0];
}

// c tanh(s / c), through e^(-2|s/c|).
HWY_INLINE V16 soft_cap(const V16& s, float cap) {
  const D d;
  const V16 x = div(s, set(cap));
  V16 doubled;
  FOR_PARTS doubled.part[i] = hn::Mul(hn::Abs(x.part[i]), hn::Set(d, -2.0f));
  const V16 e = exp_negative(doubled);
  V16 out;
  FOR_PARTS {
    const V t = hn::Div(hn::Sub(hn::Set(d, 1.0f), e.part[i]), hn::Add(hn::Set(d, 1.0f), e.part[i]));
    out.part[i] = hn::Mul(hn::CopySign(t, x.part[i]), hn::Set(d, cap));
  }
  return out;
}

// Sum and maximum over the lanes in a fixed tree.
HWY_INLINE float sum_of(const V16& v) {
  float x[16];
  store(v, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}
HWY_INLINE float max_of(const V16& v) {
  float x[16];
  store(v, x);
  float best = x[0];
  for (int i = 1; i < 16; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// ---- how a plane enters its product
// -------------------------------------------------------------------------------------------

enum class Operand {
  dot,    // both sides bf16 pairs, dpbf16ps
  pairs,  // left f32, right bf16 pairs
  f32,    // left f32, right f32
};

Operand operand_of(const PlaneFormat& f, bool bf16) {
  if (f.plain()) {
    if (f.codec.plain != Dtype::bf16) return Operand::f32;
    return kHasDot && bf16 ? Operand::dot : Operand::pairs;
  }
  return kHasDot && bf16 ? Operand::dot : Operand::f32;
}

// The right matrix of a product: block n starts at block[n]; vector (step k, 16 lanes v) lies k * step + v *
// 64 bytes on. A step is a pair (dot, pairs) or one element (f32).
#if defined(__AVX512BF16__)
HWY_INLINE __m512 dot(__m512 acc, uint32_t a, __m512i b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a))),
                          reinterpret_cast<__m512bh>(b));
}
#endif
HWY_INLINE uint32_t load_u32(const void* p) {
  uint32_t x;
  memcpy(&x, p, 4);
  return x;
}

template <int MR, int NR>
struct Accumulators {
  V16 at[MR][NR];
  HWY_INLINE void clear() {
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n)
        at[m][n] = set(0.0f);
  }
  // One step: row m's left element(s) at left + m * left_stride, right vectors right[n].
  template <Operand kOperand>
  HWY_INLINE void step(const std::byte* left, size_t left_stride, const std::byte* const (&right)[NR]) {
    if constexpr (kOperand == Operand::dot) {
#if defined(__AVX512BF16__)
      __m512i b[NR];
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) b[n] = _mm512_loadu_si512(right[n]);
      _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
        const uint32_t a = load_u32(left + static_cast<size_t>(m) * left_stride);
        _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) at[m][n].part[0].raw =
            dot(at[m][n].part[0].raw, a, b[n]);
      }
#endif
    } else if constexpr (kOperand == Operand::pairs) {
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
        V16 even, odd;
        load_pairs(right[n], even, odd);
        _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
          const float* a = reinterpret_cast<const float*>(left + static_cast<size_t>(m) * left_stride);
          at[m][n] = fma(set(a[1]), odd, at[m][n]);
          at[m][n] = fma(set(a[0]), even, at[m][n]);
        }
      }
    } else {
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
        const V16 b = load(reinterpret_cast<const float*>(right[n]));
        _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
          const float* a = reinterpret_cast<const float*>(left + static_cast<size_t>(m) * left_stride);
          at[m][n] = fma(set(a[0]), b, at[m][n]);
        }
      }
    }
  }
};
constexpr size_t left_step(Operand operand) {
  return operand == Operand::pairs ? 8 : 4;
}

// ---- scores = Q K^T
// -----------------------------------------------------------------------------------------------------------

struct ScoreTask {
  const std::byte* queries;  // row 0
  size_t query_stride;       // bytes
  const std::byte* keys[4];  // blocks
  int columns[4];            // first column of each block's scores
  int group_steps;           // steps of one scale group (plain: all)
  int groups;
  const float* scales;   // [groups][256], null: plain
  const float* offsets;  // null: none
  const float* query_sums;
  size_t query_sum_stride;
  float* scores;  // row 0, 256 columns
};

template <Operand kOperand, int MR, int NR>
void score_block(const ScoreTask& t) {
  const std::byte* right[NR];
  _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] = t.keys[n];
  const std::byte* left = t.queries;
  Accumulators<MR, NR> acc;
  if (t.scales == nullptr) {
    acc.clear();
    for (int k = 0; k < t.group_steps; ++k) {
      acc.template step<kOperand>(left, t.query_stride, right);
      left += left_step(kOperand);
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] += 64;
    }
    for (int m = 0; m < MR; ++m)
      for (int n = 0; n < NR; ++n) store(acc.at[m][n], t.scores + m * kSegmentKeys + t.columns[n]);
    return;
  }
  for (int g = 0; g < t.groups; ++g) {
    acc.clear();
    for (int k = 0; k < t.group_steps; ++k) {
      acc.template step<kOperand>(left, t.query_stride, right);
      left += left_step(kOperand);
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] += 64;
    }
    const float* scales = t.scales + g * kSegmentKeys;
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m)
        _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
      float* out = t.scores + m * kSegmentKeys + t.columns[n];
      V16 total = g == 0 ? set(0.0f) : load(out);
      total = fma(acc.at[m][n], load(scales + t.columns[n]), total);
      if (t.offsets != nullptr)
        total = fma(set(t.query_sums[static_cast<size_t>(m) * t.query_sum_stride + static_cast<size_t>(g)]),
                    load(t.offsets + g * kSegmentKeys + t.columns[n]), total);
      store(total, out);
    }
  }
}

// ---- out = out * a + (P V + bias) * b
// -------------------------------------------------------------------------------------------

struct ValueTask {
  const std::byte* weights;  // row 0, 256 columns
  size_t weight_stride;      // bytes
  int blocks;
  const std::byte* values[kSegmentBlocks];  // first channel of the tile
  size_t steps[kSegmentBlocks];             // bytes from one step (pair of keys, or key) to the next
  int columns[kSegmentBlocks];              // first column of each block's weights
  const float* bias;                        // [rows]
  const float* keep;                        // [rows] a
  const float* take;                        // [rows] b
  float* out;                               // row 0, first channel of the tile
  size_t out_stride;                        // floats
};

template <Operand kOperand, int MR, int NR>
void value_block(const ValueTask& t) {
  constexpr int kSteps = kOperand == Operand::f32 ? kBlockTokens : kBlockTokens / 2;
  constexpr size_t kColumn = kOperand == Operand::dot ? 2 : 4;
  Accumulators<MR, NR> acc;
  acc.clear();
  for (int b = 0; b < t.blocks; ++b) {
    const std::byte* left = t.weights + static_cast<size_t>(t.columns[b]) * kColumn;
    const std::byte* right[NR];
    _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] = t.values[b] + n * 64;
    _Pragma("GCC unroll 2") for (int k = 0; k < kSteps; ++k) {
      acc.template step<kOperand>(left, t.weight_stride, right);
      left += left_step(kOperand);
      _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) right[n] += t.steps[b];
    }
  }
  _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
    const V16 bias = set(t.bias[m]), keep = set(t.keep[m]), take = set(t.take[m]);
    _Pragma("GCC unroll 4") for (int n = 0; n < NR; ++n) {
      float* out = t.out + static_cast<size_t>(m) * t.out_stride + n * 16;
      store(fma(load(out), keep, mul(add(acc.at[m][n], bias), take)), out);
    }
  }
}

// ---- dispatch on the register tile
// ---------------------------------------------------------------------------------------------

template <Operand kOperand, int MR>
void score_rows(int vectors, const ScoreTask& t) {
  if constexpr (kMaxVectors >= 4) {
    if (vectors == 4) return score_block<kOperand, MR, 4>(t);
    if (vectors == 3) return score_block<kOperand, MR, 3>(t);
  }
  if (vectors == 2) return score_block<kOperand, MR, 2>(t);
  return score_block<kOperand, MR, 1>(t);
}
template <Operand kOperand, int MR>
void value_rows(int vectors, const ValueTask& t) {
  if constexpr (kMaxVectors >= 4) {
    if (vectors == 4) return value_block<kOperand, MR, 4>(t);
    if (vectors == 3) return value_block<kOperand, MR, 3>(t);
  }
  if (vectors == 2) return value_block<kOperand, MR, 2>(t);
  return value_block<kOperand, MR, 1>(t);
}
template <Operand kOperand>
void score_tile(int rows, int vectors, const ScoreTask& t) {
  if constexpr (kMaxRows >= 6) {
    if (rows == 6) return score_rows<kOperand, 6>(vectors, t);
    if (rows == 5) return score_rows<kOperand, 5>(vectors, t);
    if (rows == 4) return score_rows<kOperand, 4>(vectors, t);
  }
  if (rows == 3) return score_rows<kOperand, 3>(vectors, t);
  if (rows == 2) return score_rows<kOperand, 2>(vectors, t);
  return score_rows<kOperand, 1>(vectors, t);
}
template <Operand kOperand>
void value_tile(int rows, int vectors, const ValueTask& t) {
  if constexpr (kMaxRows >= 6) {
    if (rows == 6) return value_rows<kOperand, 6>(vectors, t);
    if (rows == 5) return value_rows<kOperand, 5>(vectors, t);
    if (rows == 4) return value_rows<kOperand, 4>(vectors, t);
  }
  if (rows == 3) return value_rows<kOperand, 3>(vectors, t);
  if (rows == 2) return value_rows<kOperand, 2>(vectors, t);
  return value_rows<kOperand, 1>(vectors, t);
}
void score_tile(Operand operand, int rows, int vectors, const ScoreTask& t) {
  if (kHasDot && operand == Operand::dot)
    return score_tile < kHasDot ? Operand::dot : Operand::f32 > (rows, vectors, t);
  if (operand == Operand::pairs) return score_tile<Operand::pairs>(rows, vectors, t);
  return score_tile<Operand::f32>(rows, vectors, t);
}
void value_tile(Operand operand, int rows, int vectors, const ValueTask& t) {
  if (kHasDot && operand == Operand::dot)
    return value_tile < kHasDot ? Operand::dot : Operand::f32 > (rows, vectors, t);
  if (operand == Operand::pairs) return value_tile<Operand::pairs>(rows, vectors, t);
  return value_tile<Operand::f32>(rows, vectors, t);
}

// ---- decoding blocks into the tile
// -----------------------------------------------------------------------------------------------

inline float half_to_float(uint16_t bits) {
  // Exact in every case: the exponent is moved by a multiplication, which also normalises subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFFu) << 13;
  uint32_t word = magnitude;
  float x;
  if (magnitude >= 0x0F800000u) {  // infinity, NaN
    word |= 0x70000000u;
    memcpy(&x, &word, 4);
  } else {
    memcpy(&x, &word, 4);
    x *= 0x1p+112f;
  }
  uint32_t out;
  memcpy(&out, &x, 4);
  out |= static_cast<uint32_t>(bits & 0x8000u) << 16;
  memcpy(&x, &out, 4);
  return x;
}
void halves_to_floats(const std::byte* in, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    uint16_t bits;
    memcpy(&bits, in + i * 2, 2);
    out[i] = half_to_float(bits);
  }
}
void scales_to_floats(const std::byte* in, Dtype type, int count, float* out) {
  if (type == Dtype::f32) {
    memcpy(out, in, static_cast<size_t>(count) * 4);
  } else if (type == Dtype::f16) {
    halves_to_floats(in, count, out);
  } else {
    for (int i = 0; i < count; ++i) {
      uint16_t bits;
      memcpy(&bits, in + i * 2, 2);
      const uint32_t word = static_cast<uint32_t>(bits) << 16;
      memcpy(out + i, &word, 4);
    }
  }
}

// Codes of pair vector `vector` of a unit.
void unit_codes(const std::byte* unit, int bits, int vector, uint8_t* codes) {
  const kv::BitPlanes planes = kv::bit_planes(bits);
  const auto plane = [&](const std::byte* base, int width, int lane) {
    const int slots = 16 / width;
    uint16_t word;
    memcpy(&word, base + ((vector / slots) * 32 + lane) * 2, 2);
    return (static_cast<unsigned>(word) >> ((vector % slots) * width)) & ((1u << width) - 1u);
  };
  for (int lane = 0; lane < 32; ++lane) {
    unsigned code = plane(unit, planes.first, lane);
    if (planes.second != 0) code |= plane(unit + planes.first * 64, planes.second, lane) << planes.first;
    codes[lane] = static_cast<uint8_t>(code);
  }
}

// Codes of one K block: bf16 pairs [dim / 2][16][2], or f32 [dim][16].
void decode_keys(const PlaneFormat& f, const DecodeTable& table, const std::byte* block, Operand operand,
                 std::byte* out) {
  uint8_t codes[32];
  for (int u = 0; u < f.dim / 32; ++u) {
    const std::byte* unit = block + u * f.codec.bits * 64;
    for (int i = 0; i < 16; ++i) {
      unit_codes(unit, f.codec.bits, i, codes);
      if (operand == Operand::dot) {
        uint16_t* to = reinterpret_cast<uint16_t*>(out) + (u * 16 + i) * 32;
        for (int e = 0; e < 32; ++e) to[e] = table.bf16[codes[e]];
      } else {
        float* to = reinterpret_cast<float*>(out) + (u * 16 + i) * 32;
        for (int e = 0; e < 32; ++e) to[(e % 2) * 16 + e / 2] = table.values[codes[e]];
      }
    }
  }
}

// Codes of channels [first, first + width) of one V block: bf16 pairs [8][width][2], or f32 [16][width];
// multiples of 32.
void decode_values(const PlaneFormat& f, const DecodeTable& table, const std::byte* block, int first,
                   int width, Operand operand, std::byte* out) {
  uint8_t codes[32];
  for (int u = 0; u < width / 32; ++u) {
    const std::byte* unit = block + (first / 32 + u) * f.codec.bits * 64;
    for (int i = 0; i < 16; ++i) {
      const int pair = i % 8, channel = u * 32 + (i / 8) * 16;
      unit_codes(unit, f.codec.bits, i, codes);
      if (operand == Operand::dot) {
        uint16_t* to = reinterpret_cast<uint16_t*>(out) + (pair * width + channel) * 2;
        for (int e = 0; e < 32; ++e) to[e] = table.bf16[codes[e]];
      } else {
        float* to = reinterpret_cast<float*>(out) + pair * 2 * width + channel;
        for (int e = 0; e < 32; ++e) to[(e % 2) * width + e / 2] = table.values[codes[e]];
      }
    }
  }
}

// ---- visibility
// ----------------------------------------------------------------------------------------------------------------

bool sees_all(const Visibility& v, int32_t first, int32_t count) {
  return first >= v.begin && first + count <= v.end &&
         (v.draft == ~uint64_t{0} || first + count <= v.end - 64);
}
bool sees(const Visibility& v, int sinks, int32_t key) {
  if (key >= v.end) return false;
  if (key < sinks) return true;
  if (key < v.begin) return false;
  const int32_t age = v.end - 1 - key;
  return age >= 64 || ((v.draft >> age) & 1u) != 0;
}
bool may_see(const Visibility& v, int sinks, int32_t first, int32_t count) {
  return first < v.end && (first + count > v.begin || first < sinks);
}

struct SeenBlock {
  int block;
  bool whole;  // every row sees every key
};
struct SeenBlocks {
  int count = 0;
  SeenBlock at[kSegmentBlocks];
};
SeenBlocks seen_blocks(const AttentionTile& tile, const KeySegment& segment) {
  SeenBlocks out;
  for (int b = 0; b < kSegmentBlocks; ++b) {
    if (segment.keys[b] == nullptr) continue;
    const int32_t first = segment.first_key + b * kBlockTokens;
    bool any = false, all = true;
    for (int t = 0; t < tile.tokens; ++t) {
      any = any || may_see(tile.visible[t], tile.sinks, first, kBlockTokens);
      all = all && sees_all(tile.visible[t], first, kBlockTokens);
    }
    if (any) out.at[out.count++] = {b, all};
  }
  return out;
}

// ---- the segment
// -----------------------------------------------------------------------------------------------------------------

size_t query_stride(const AttentionTile& tile) {
  const size_t dims = static_cast<size_t>((tile.key->dim + 1) / 2 * 2);
  return dims * (operand_of(*tile.key, tile.bf16) == Operand::dot ? 2 : 4);
}

void load_queries(const AttentionTile& tile) {
  const PlaneFormat& key = *tile.key;
  const int dim = key.dim, even = (dim + 1) / 2 * 2;
  const bool dot = operand_of(key, tile.bf16) == Operand::dot;
  const size_t stride = query_stride(tile);
  float row[2048 + 16];
  for (int m = 0; m < tile.rows; ++m) {
    if (tile.key_signs != nullptr) {
      rotate(tile.queries[m], tile.key_signs, row, dim);
    } else {
      memcpy(row, tile.queries[m], static_cast<size_t>(dim) * 4);
    }
    if (even != dim) row[dim] = 0.0f;
    if (tile.bf16) {
      for (int i = 0; i < even; i += 16) store(round_bf16(load(row + i)), row + i);
    }
    std::byte* to = tile.scratch.queries + static_cast<size_t>(m) * stride;
    if (dot) {
      for (int i = 0; i < even; ++i) {
        uint32_t bits;
        memcpy(&bits, row + i, 4);
        const uint16_t upper = static_cast<uint16_t>(bits >> 16);
        memcpy(to + i * 2, &upper, 2);
      }
    } else {
      memcpy(to, row, static_cast<size_t>(even) * 4);
    }
    for (int g = 0; g < key.groups; ++g) {
      float sum = 0.0f;
      for (int i = 0; i < key.group; ++i) sum += row[g * key.group + i];
      tile.scratch.query_sums[m * key.groups + g] = sum;
    }
  }
}

void clear(const AttentionTile& tile, const AttentionState& state) {
  for (int m = 0; m < tile.rows; ++m) {
    state.max[m] = -INFINITY;
    state.sum[m] = 0.0f;
  }
  memset(state.out, 0, static_cast<size_t>(tile.rows) * tile.out_stride * 4);
}

// Scales (and offsets' form of decode_table.h) of the seen blocks: [groups][256] each.
void load_scales(const PlaneFormat& f, const DecodeTable& table, const SeenBlocks& seen,
                 const std::byte* const* blocks, float* scales, float* offsets) {
  const bool affine = f.codec.kind == kv::PlaneCodec::Kind::affine;
  const Dtype type = affine ? f.codec.scale_dtype : Dtype::f16;
  const size_t bytes = static_cast<size_t>(f.scale_size) * kBlockTokens;
  for (int i = 0; i < seen.count; ++i) {
    const int b = seen.at[i].block;
    for (int g = 0; g < f.groups; ++g) {
      float* s = scales + g * kSegmentKeys + b * kBlockTokens;
      scales_to_floats(blocks[b] + f.scale_offset + static_cast<size_t>(g) * bytes, type, kBlockTokens, s);
      if (!f.has_offset) continue;
      float* o = offsets + g * kSegmentKeys + b * kBlockTokens;
      scales_to_floats(blocks[b] + f.offset_offset + static_cast<size_t>(g) * bytes, type, kBlockTokens, o);
      const V16 scale = load(s), center = set(table.center);
      store(affine ? fma(scale, center, load(o)) : mul(scale, add(load(o), center)), o);
    }
  }
}

void compute_scores(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen) {
  const PlaneFormat& f = *tile.key;
  const Operand operand = operand_of(f, tile.bf16);
  const bool decode = !f.plain() || f.codec.plain == Dtype::f16;
  const int even = (f.dim + 1) / 2 * 2;
  const size_t tile_bytes = static_cast<size_t>(even) * kBlockTokens * (operand == Operand::dot ? 2 : 4);
  const size_t stride = query_stride(tile);
  float* offsets = tile.scratch.scales + f.groups * kSegmentKeys;
  if (!f.plain()) load_scales(f, *tile.key_table, seen, segment.keys, tile.scratch.scales, offsets);
  for (int first = 0; first < seen.count; first += kMaxVectors) {
    const int vectors = seen.count - first < kMaxVectors ? seen.count - first : kMaxVectors;
    ScoreTask task = {};
    for (int n = 0; n < vectors; ++n) {
      const int b = seen.at[first + n].block;
      task.columns[n] = b * kBlockTokens;
      task.keys[n] = segment.keys[b];
      if (decode) {
        std::byte* to = tile.scratch.tile + static_cast<size_t>(n) * tile_bytes;
        if (f.plain()) {
          halves_to_floats(segment.keys[b], f.dim * kBlockTokens, reinterpret_cast<float*>(to));
        } else {
          decode_keys(f, *tile.key_table, segment.keys[b], operand, to);
        }
        task.keys[n] = to;
      }
    }
    const int channels = operand == Operand::f32 ? 1 : 2;  // of one step
    task.group_steps = f.plain() ? (f.dim + channels - 1) / channels : f.group / channels;
    task.groups = f.groups;
    task.scales = f.plain() ? nullptr : tile.scratch.scales;
    task.offsets = f.has_offset ? offsets : nullptr;
    task.query_stride = stride;
    task.query_sum_stride = static_cast<size_t>(f.groups);
    for (int m = 0; m < tile.rows; m += kMaxRows) {
      task.queries = tile.scratch.queries + static_cast<size_t>(m) * stride;
      task.query_sums = tile.scratch.query_sums + m * f.groups;
      task.scores = tile.scratch.scores + m * kSegmentKeys;
      score_tile(operand, tile.rows - m < kMaxRows ? tile.rows - m : kMaxRows, vectors, task);
    }
  }
}

// Scores of one row become unnormalised weights, in place, rounded if asked. Returns the row's maximum and
// sum.
void softmax_row(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen, int m,
                 float& row_max, float& row_sum) {
  const Visibility& visible = tile.visible[tile.row_token[m]];
  float* scores = tile.scratch.scores + m * kSegmentKeys;
  const V16 scale = set(tile.scale), none = set(-INFINITY);
  V16 best = none;
  for (int i = 0; i < seen.count; ++i) {
    float* at = scores + seen.at[i].block * kBlockTokens;
    V16 s = mul(load(at), scale);
    if (tile.softcap != 0.0f) s = soft_cap(s, tile.softcap);
    const int32_t first = segment.first_key + seen.at[i].block * kBlockTokens;
    if (!seen.at[i].whole && !sees_all(visible, first, kBlockTokens)) {
      float keep[16];
      for (int j = 0; j < 16; ++j) keep[j] = sees(visible, tile.sinks, first + j) ? 1.0f : 0.0f;
      s = select_nonzero(load(keep), s, none);
    }
    best = max(s, best);
    store(s, at);
  }
  row_max = max_of(best);
  V16 sum = set(0.0f);
  const V16 top = set(row_max == -INFINITY ? 0.0f : row_max);
  // Plain values meet rounded weights, so the sum is of those; quantized ones meet weights times scales.
  const bool round = tile.bf16 && tile.value->plain();
  for (int i = 0; i < seen.count; ++i) {
    float* at = scores + seen.at[i].block * kBlockTokens;
    V16 p = exp_negative(sub(load(at), top));
    if (round) p = round_bf16(p);
    sum = add(sum, p);
    store(p, at);
  }
  row_sum = sum_of(sum);
}

// f32 rows of weights (exactly bf16 already) as bf16.
void pack_bf16(const float* from, const SeenBlocks& seen, uint16_t* to) {
  for (int i = 0; i < seen.count; ++i) {
    const int column = seen.at[i].block * kBlockTokens;
    for (int j = 0; j < kBlockTokens; ++j) {
      uint32_t bits;
      memcpy(&bits, from + column + j, 4);
      to[column + j] = static_cast<uint16_t>(bits >> 16);
    }
  }
}

// Which keys of a block some token of [token_begin, token_end) sees.
void seen_keys(const AttentionTile& tile, int32_t first_key, int token_begin, int token_end, bool* keep) {
  for (int j = 0; j < kBlockTokens; ++j) {
    keep[j] = false;
    for (int t = token_begin; t < token_end; ++t)
      keep[j] = keep[j] || sees(tile.visible[t], tile.sinks, first_key + j);
  }
}

// Channels [first, first + width) of a plain V block into the tile, as zero where keep is not set.
void blend_values(const PlaneFormat& f, const std::byte* block, const bool* keep, int first, int width,
                  std::byte* out) {
  if (f.codec.plain == Dtype::bf16) {
    uint16_t* to = reinterpret_cast<uint16_t*>(out);
    for (int pair = 0; pair < kBlockTokens / 2; ++pair) {
      const std::byte* from = block + (pair * f.dim + first) * 4;
      for (int i = 0; i < width * 2; ++i) {
        uint16_t bits = 0;
        if (keep[pair * 2 + i % 2] && first + i / 2 < f.dim) memcpy(&bits, from + i * 2, 2);
        to[pair * width * 2 + i] = bits;
      }
    }
    return;
  }
  float* to = reinterpret_cast<float*>(out);
  const int size = f.codec.plain == Dtype::f32 ? 4 : 2;
  for (int j = 0; j < kBlockTokens; ++j) {
    const int count = f.dim - first < width ? f.dim - first : width;
    const std::byte* from = block + (j * f.dim + first) * size;
    for (int i = 0; i < width; ++i) to[j * width + i] = 0.0f;
    if (!keep[j]) continue;
    if (size == 4) {
      memcpy(to + j * width, from, static_cast<size_t>(count) * 4);
    } else {
      halves_to_floats(from, count, to + j * width);
    }
  }
}

// Whether the seen keys of the partly seen blocks are free of infinities and NaN. If not, a weight of zero
// does not hide a key from the rows that must not see it.
bool values_finite(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen) {
  const PlaneFormat& f = *tile.value;
  const int size = f.codec.plain == Dtype::f32 ? 4 : 2;
  const unsigned exponent = size == 4 ? 0x7F800000u : f.codec.plain == Dtype::bf16 ? 0x7F80u : 0x7C00u;
  const bool paired = f.codec.plain == Dtype::bf16;
  for (int i = 0; i < seen.count; ++i) {
    if (seen.at[i].whole) continue;
    const std::byte* block = segment.values[seen.at[i].block];
    bool keep[kBlockTokens];
    seen_keys(tile, segment.first_key + seen.at[i].block * kBlockTokens, 0, tile.tokens, keep);
    for (int j = 0; j < kBlockTokens; ++j) {
      if (!keep[j]) continue;
      unsigned found = 0;
      for (int c = 0; c < f.dim; ++c) {
        uint32_t bits = 0;
        const int at = paired ? ((j / 2) * f.dim + c) * 2 + j % 2 : j * f.dim + c;
        memcpy(&bits, block + at * size, size == 4 ? 4 : 2);
        found |= (bits & exponent) == exponent ? 1u : 0u;
      }
      if (found != 0) return false;
    }
  }
  return true;
}

// Rows [row_begin, row_end), which belong to tokens [token_begin, token_end), of a plain V.
void weigh_plain(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen, int row_begin,
                 int row_end, int token_begin, int token_end, const float* keep, const float* take,
                 const AttentionState& state) {
  const PlaneFormat& f = *tile.value;
  const Operand operand = operand_of(f, tile.bf16);
  const bool half = f.codec.plain == Dtype::f16;
  const size_t element = operand == Operand::f32 ? 4 : 2;
  const size_t weight_bytes = operand == Operand::dot ? 2 : 4;
  constexpr size_t kStored = 4;  // bytes from one channel to the next: a pair of bf16, or one f32
  for (int first = 0; first < f.dim; first += kMaxVectors * 16) {
    const int left = (f.dim - first + 15) / 16, vectors = left < kMaxVectors ? left : kMaxVectors,
              width = vectors * 16;
    ValueTask task = {};
    task.blocks = seen.count;
    const size_t tile_bytes = static_cast<size_t>(width) * kBlockTokens * element;
    for (int i = 0; i < seen.count; ++i) {
      const int b = seen.at[i].block;
      task.columns[i] = b * kBlockTokens;
      if (seen.at[i].whole && !half) {
        task.values[i] = segment.values[b] + static_cast<size_t>(first) * kStored;
        task.steps[i] = static_cast<size_t>(f.dim) * kStored;
        continue;
      }
      std::byte* to = tile.scratch.tile + static_cast<size_t>(i) * tile_bytes;
      bool seen_key[kBlockTokens];
      seen_keys(tile, segment.first_key + b * kBlockTokens, token_begin, token_end, seen_key);
      blend_values(f, segment.values[b], seen_key, first, width, to);
      task.values[i] = to;
      task.steps[i] = static_cast<size_t>(width) * 4;
    }
    task.weight_stride = kSegmentKeys * weight_bytes;
    task.out_stride = tile.out_stride;
    for (int m = row_begin; m < row_end; m += kMaxRows) {
      task.weights = operand == Operand::dot
                         ? tile.scratch.weights + static_cast<size_t>(m) * task.weight_stride
                         : reinterpret_cast<const std::byte*>(tile.scratch.scores + m * kSegmentKeys);
      task.bias = tile.scratch.bias + m;
      task.keep = keep + m;
      task.take = take + m;
      task.out = state.out + static_cast<size_t>(m) * tile.out_stride + first;
      value_tile(operand, row_end - m < kMaxRows ? row_end - m : kMaxRows, vectors, task);
    }
  }
}

// Quantized V: one scale group after the other, weights times the keys' scales.
void weigh_codes(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen,
                 const float* keep, const float* take, const AttentionState& state) {
  const PlaneFormat& f = *tile.value;
  const Operand operand = operand_of(f, tile.bf16);
  const size_t element = operand == Operand::dot ? 2 : 4;
  float* scales = tile.scratch.scales;
  float* offsets = scales + f.groups * kSegmentKeys;
  load_scales(f, *tile.value_table, seen, segment.values, scales, offsets);
  const V16 zero = set(0.0f);
  for (int g = 0; g < f.groups; ++g) {
    for (int m = 0; m < tile.rows; ++m) {
      const float* p = tile.scratch.scores + m * kSegmentKeys;
      std::byte* row = tile.scratch.weights + static_cast<size_t>(m) * kSegmentKeys * element;
      V16 bias = zero;
      for (int i = 0; i < seen.count; ++i) {
        const int column = seen.at[i].block * kBlockTokens;
        const V16 weight = load(p + column);
        // A weight of zero stays zero whatever lies in the slots of keys that are not seen.
        V16 scaled = select_nonzero(weight, mul(weight, load(scales + g * kSegmentKeys + column)), zero);
        if (f.has_offset) {
          const V16 offset = select_nonzero(weight, load(offsets + g * kSegmentKeys + column), zero);
          bias = fma(weight, offset, bias);
        }
        if (tile.bf16) scaled = round_bf16(scaled);
        if (operand == Operand::dot) {
          float lanes[16];
          store(scaled, lanes);
          uint16_t* to = reinterpret_cast<uint16_t*>(row) + column;
          for (int j = 0; j < 16; ++j) {
            uint32_t bits;
            memcpy(&bits, lanes + j, 4);
            to[j] = static_cast<uint16_t>(bits >> 16);
          }
        } else {
          store(scaled, reinterpret_cast<float*>(row) + column);
        }
      }
      tile.scratch.bias[m] = f.has_offset ? sum_of(bias) : 0.0f;
    }
    for (int first = g * f.group; first < (g + 1) * f.group; first += kMaxVectors * 16) {
      const int left = ((g + 1) * f.group - first) / 16, vectors = left < kMaxVectors ? left : kMaxVectors,
                width = vectors * 16;
      ValueTask task = {};
      task.blocks = seen.count;
      for (int i = 0; i < seen.count; ++i) {
        const int b = seen.at[i].block;
        std::byte* to = tile.scratch.tile + static_cast<size_t>(i * width * kBlockTokens) * element;
        decode_values(f, *tile.value_table, segment.values[b], first, width, operand, to);
        task.columns[i] = b * kBlockTokens;
        task.values[i] = to;
        task.steps[i] = static_cast<size_t>(width) * 4;
      }
      task.weight_stride = kSegmentKeys * element;
      task.out_stride = tile.out_stride;
      for (int m = 0; m < tile.rows; m += kMaxRows) {
        task.weights = tile.scratch.weights + static_cast<size_t>(m) * task.weight_stride;
        task.bias = tile.scratch.bias + m;
        task.keep = keep + m;
        task.take = take + m;
        task.out = state.out + static_cast<size_t>(m) * tile.out_stride + first;
        value_tile(operand, tile.rows - m < kMaxRows ? tile.rows - m : kMaxRows, vectors, task);
      }
    }
  }
}

// What a part with maximum `part` does to a state with maximum `max`: factors of the old and the new sums.
HWY_INLINE void merge_factors(float part, float& max, float& keep, float& take) {
  if (part == -INFINITY) {
    keep = 1.0f;
    take = 0.0f;
    return;
  }
  const float top = part > max ? part : max;
  keep = max == -INFINITY ? 0.0f : exp_negative(max - top);
  take = exp_negative(part - top);
  max = top;
}

void segment(const AttentionTile& tile, const KeySegment& segment, const AttentionState& state) {
  const SeenBlocks seen = seen_blocks(tile, segment);
  if (seen.count == 0) return;
  compute_scores(tile, segment, seen);
  float keep[kTileRows], take[kTileRows];
  for (int m = 0; m < tile.rows; ++m) {
    float row_max, row_sum;
    softmax_row(tile, segment, seen, m, row_max, row_sum);
    merge_factors(row_max, state.max[m], keep[m], take[m]);
    state.sum[m] = hn::GetLane(
        hn::MulAdd(hn::Set(D(), state.sum[m]), hn::Set(D(), keep[m]), hn::Set(D(), row_sum * take[m])));
    tile.scratch.bias[m] = 0.0f;
  }
  if (!tile.value->plain()) {
    weigh_codes(tile, segment, seen, keep, take, state);
    return;
  }
  if (operand_of(*tile.value, tile.bf16) == Operand::dot) {
    for (int m = 0; m < tile.rows; ++m)
      pack_bf16(tile.scratch.scores + m * kSegmentKeys, seen,
                reinterpret_cast<uint16_t*>(tile.scratch.weights) + m * kSegmentKeys);
  }
  if (tile.tokens == 1 || values_finite(tile, segment, seen)) {
    weigh_plain(tile, segment, seen, 0, tile.rows, 0, tile.tokens, keep, take, state);
    return;
  }
  for (int begin = 0; begin < tile.rows;) {
    int end = begin;
    const int token = tile.row_token[begin];
    while (end < tile.rows && tile.row_token[end] == token) ++end;
    weigh_plain(tile, segment, seen, begin, end, token, token + 1, keep, take, state);
    begin = end;
  }
}

void merge(const AttentionTile& tile, const AttentionState& part, const AttentionState& state) {
  for (int m = 0; m < tile.rows; ++m) {
    float keep, take;
    merge_factors(part.max[m], state.max[m], keep, take);
    state.sum[m] = hn::GetLane(
        hn::MulAdd(hn::Set(D(), state.sum[m]), hn::Set(D(), keep), hn::Set(D(), part.sum[m] * take)));
    float* out = state.out + static_cast<size_t>(m) * tile.out_stride;
    const float* from = part.out + static_cast<size_t>(m) * tile.out_stride;
    const V16 k = set(keep), t = set(take);
    for (size_t i = 0; i < tile.out_stride; i += 16)
      store(fma(load(out + i), k, mul(load(from + i), t)), out + i);
  }
}

void finish(const AttentionTile& tile, const AttentionState& state, const float* const* sink_logits,
            float* const* out) {
  const int dim = tile.value->dim;
  for (int m = 0; m < tile.rows; ++m) {
    float sum = state.sum[m], factor = 1.0f;
    if (sink_logits != nullptr) {
      const float logit = *sink_logits[m], top = logit > state.max[m] ? logit : state.max[m];
      factor = state.max[m] == -INFINITY ? 0.0f : exp_negative(state.max[m] - top);
      sum = sum * factor + exp_negative(logit - top);
    }
    factor = sum > 0.0f ? factor / sum : 0.0f;
    float* from = state.out + static_cast<size_t>(m) * tile.out_stride;
    // + 0: a zero has one sign, whether it came from keys that were masked or from none.
    for (size_t i = 0; i < tile.out_stride; i += 16)
      store(fma(load(from + i), set(factor), set(0.0f)), from + i);
    if (tile.value_signs != nullptr) unrotate(from, tile.value_signs, dim);
    memcpy(out[m], from, static_cast<size_t>(dim) * 4);
  }
}

// The highest rate of the multiply-add that products use: independent chains in registers.
constexpr int kPeakChains = kHasDot ? 24 : 8;
void peak(int loops) {
  V16 acc[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) acc[i] = set(static_cast<float>(i));
  float seed = 1e-30f;
  const V16 a = set(seed);
  for (int loop = 0; loop < loops; ++loop) {
    _Pragma("GCC unroll 32") for (int i = 0; i < kPeakChains; ++i) {
#if defined(__AVX512BF16__)
      const __m512bh operand = reinterpret_cast<__m512bh>(a.part[0].raw);
      acc[i].part[0].raw = _mm512_dpbf16_ps(acc[i].part[0].raw, operand, operand);
#else
      acc[i] = fma(a, a, acc[i]);
#endif
    }
  }
  for (int i = 1; i < kPeakChains; ++i) acc[0] = add(acc[0], acc[i]);
  float lanes[16];
  store(acc[0], lanes);
  asm volatile("" : : "g"(lanes[0]) : "memory");
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const AttentionKernels KVASIR_ISA_SYMBOL(attention_kernels);
const AttentionKernels KVASIR_ISA_SYMBOL(attention_kernels) = {
    KVASIR_ISA_NAMESPACE::load_queries, KVASIR_ISA_NAMESPACE::clear, KVASIR_ISA_NAMESPACE::segment,
    KVASIR_ISA_NAMESPACE::merge, KVASIR_ISA_NAMESPACE::finish,
    KVASIR_ISA_NAMESPACE::peak,
    double{KVASIR_ISA_NAMESPACE::kPeakChains} * (KVASIR_ISA_NAMESPACE::kHasDot ? 64 : 32)};

}  // namespace kvasir::ops
