// The encoders of kv-cache.md 3.2 and 3.3, operation by operation in IEEE f32.
#include <math.h>

#include "kv/codecs/codec_kernels.h"
#include "kv/codecs/rotation_tables.h"

namespace kvasir::kv {
namespace KVASIR_ISA_NAMESPACE {
namespace {

#include "kv/codecs/block_access-inl.h"
#include "kv/codecs/rotation-inl.h"

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline uint16_t round_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

void round_to_plain(const float* x, Dtype type, float* out, int dim) {
  if (type == Dtype::bf16) {
    for (int i = 0; i < dim; ++i) out[i] = float_of(static_cast<uint32_t>(round_bf16(x[i])) << 16);
  } else if (type == Dtype::f16) {
    for (int i = 0; i < dim; ++i) out[i] = f16_to_f32(f32_to_f16(x[i]));
  } else {
    for (int i = 0; i < dim; ++i) out[i] = x[i];
  }
}

uint32_t scale_bits(float x, Dtype type) {
  if (type == Dtype::f16) return f32_to_f16(x);
  if (type == Dtype::bf16) return round_bf16(x);
  return bits_of(x);
}

// v limited to [low, high] as an integer; NaN gives low.
inline int clamped(float v, float low, float high) {
  v = v > low ? v : low;
  return static_cast<int>(v < high ? v : high);
}
// Least and largest of n values (a multiple of 16), as a scan from the first one finds them: NaN is passed
// over unless it comes first, and of zeros of both signs the first one counts.
inline void range_of(const float* x, int n, float& low, float& high) {
  float lows[16], highs[16];
  for (int i = 0; i < 16; ++i) lows[i] = highs[i] = x[0];
  for (int at = 0; at < n; at += 16) {
    for (int i = 0; i < 16; ++i) lows[i] = x[at + i] < lows[i] ? x[at + i] : lows[i];
    for (int i = 0; i < 16; ++i) highs[i] = x[at + i] > highs[i] ? x[at + i] : highs[i];
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lows[i] = lows[i + width] < lows[i] ? lows[i + width] : lows[i];
    for (int i = 0; i < width; ++i) highs[i] = highs[i + width] > highs[i] ? highs[i + width] : highs[i];
  }
  low = lows[0];
  high = highs[0];
  if (low != 0.0f && high != 0.0f) return;
  low = high = x[0];
  for (int i = 1; i < n; ++i) low = x[i] < low ? x[i] : low;
  for (int i = 1; i < n; ++i) high = x[i] > high ? x[i] : high;
}

// Ties away from zero.
inline float round_away(float x) {
  return copysignf(floorf(fabsf(x) + 0.5f), x);
}

void encode_affine(const PlaneFormat& f, const float* x, TokenCodes& out) {
  const bool gpu = f.codec.gpu_compat;
  const auto round = [gpu](float v) { return gpu ? round_away(v) : rintf(v); };
  const float top = static_cast<float>((1 << f.codec.bits) - 1);
  for (int g = 0; g < f.groups; ++g, x += f.group) {
    float lo, hi;
    range_of(x, f.group, lo, hi);
    if (gpu) hi = hi > 0.0f ? hi : 0.0f;
    const bool low_end = fabsf(lo) > fabsf(hi);
    float s = (hi - lo) / top;
    s = s > 1e-7f ? s : 1e-7f;
    if (!low_end) s = -s;
    const float e = low_end ? lo : hi;
    const float q0 = round(e / s);
    float beta = 0.0f;
    if (q0 != 0.0f) {
      s = e / q0;
      beta = e;
    }
    uint8_t* codes = out.codes + g * f.group;
    for (int i = 0; i < f.group; ++i)
      codes[i] = static_cast<uint8_t>(clamped(round((x[i] - beta) / s), 0.0f, top));
    out.scales[g] = scale_bits(s, f.codec.scale_dtype);
    out.offsets[g] = scale_bits(beta, f.codec.scale_dtype);
  }
}

inline bool zero_in_f16(float x) {
  return (f32_to_f16(x) & 0x7FFFu) == 0;
}

void encode_turbo_key(const PlaneFormat& f, const float* x, TokenCodes& out) {
  const bool is_signed = f.codec.bits == 8;
  const float top = is_signed ? 127.0f : static_cast<float>((1 << f.codec.bits) - 1);
  const float bottom = is_signed ? -127.0f : 0.0f;
  for (int g = 0; g < f.groups; ++g, x += 32) {
    uint8_t* codes = out.codes + g * 32;
    float lo, hi;
    range_of(x, 32, lo, hi);
    float s = (hi - lo) / (is_signed ? 254.0f : top);
    const float d = s + 1e-8f;
    float z = is_signed ? rintf((hi + lo) / (2.0f * d)) : rintf(lo / d);
    // The guard: a zero point or scale that f16 cannot hold.
    if (f.codec.guard && (!(fabsf(z) < 65520.0f) || (zero_in_f16(s) && (lo != 0.0f || hi != 0.0f)))) {
      z = 0.0f;
      s = (fabsf(lo) > fabsf(hi) ? lo : hi) / top;
      if (zero_in_f16(s)) {
        for (int i = 0; i < 32; ++i) codes[i] = 0;
      } else {
        for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(clamped(rintf(x[i] / s), bottom, top));
      }
    } else {
      for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(clamped(rintf(x[i] / d - z), bottom, top));
    }
    if (f.codec.guard) s = s > 65504.0f ? 65504.0f : s < -65504.0f ? -65504.0f : s;
    out.scales[g] = f32_to_f16(s);
    out.offsets[g] = f32_to_f16(z);
  }
}

void encode_rotated(const PlaneFormat& f, const float* x, TokenCodes& out) {
  float y[kMaxCodecDim];
  rotate(x, rotation_signs(f.dim), y, f.dim);
  const Codebook book = codebook(f.codec.bits);
  for (int g = 0; g < f.groups; ++g) {
    float* v = y + g * 32;
    float total = 0.0f;
    for (int i = 0; i < 32; ++i) total = total + v[i] * v[i];
    const float r = sqrtf(total * 0.03125f);
    const float d = r + 1e-8f;
    for (int i = 0; i < 32; ++i) v[i] = v[i] / d;
    uint8_t* codes = out.codes + g * 32;
    if (book.size <= 32) {  // a count of boundaries below the value, for all of them at once
      int32_t counts[32] = {};
      for (int b = 0; b < book.size - 1; ++b) {
        const float boundary = float_of(book.boundaries[b]);
        for (int i = 0; i < 32; ++i) counts[i] += v[i] > boundary ? 1 : 0;
      }
      for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(counts[i]);
    } else {  // the same by bisection: they ascend
      for (int i = 0; i < 32; ++i) {
        int code = 0;
        for (int step = book.size / 2; step > 0; step /= 2)
          if (v[i] > float_of(book.boundaries[code + step - 1])) code += step;
        codes[i] = static_cast<uint8_t>(code);
      }
    }
    out.scales[g] = f32_to_f16(r < 65504.0f || !f.codec.guard ? r : 65504.0f);
    out.offsets[g] = 0;
  }
}

// One scale a group: the largest magnitude becomes 127. The divisor is the scale as f16 holds it, so that an
// element is at most half a step off.
void encode_q8_0(const PlaneFormat& f, const float* x, TokenCodes& out) {
  for (int g = 0; g < f.groups; ++g, x += 32) {
    float lo, hi;
    range_of(x, 32, lo, hi);
    const float top = fabsf(lo) > fabsf(hi) ? fabsf(lo) : fabsf(hi);
    const float s = top / 127.0f;
    out.scales[g] = f32_to_f16(s < 65504.0f ? s : 65504.0f);
    out.offsets[g] = 0;
    const float d = f16_to_f32(static_cast<uint16_t>(out.scales[g]));
    uint8_t* codes = out.codes + g * 32;
    for (int i = 0; i < 32; ++i)
      codes[i] = d == 0.0f ? uint8_t{0} : static_cast<uint8_t>(clamped(rintf(x[i] / d), -127.0f, 127.0f));
  }
}

// Codes of fewer bits, n = 2^(bits - 1): whole numbers -n to n - 1, lying in memory plus n. The largest
// magnitude becomes n - 1, n - 1/2, n or n + 1/2 steps of the other sign, whichever leaves the least squared
// error with the scale that suits its codes best (least squares); then codes are chosen again by that scale
// as f16 holds it. Sums are kept in eight parts, added in pairs.
void encode_q_0(const PlaneFormat& f, const float* x, TokenCodes& out) {
  const int zero = 1 << (f.codec.bits - 1);
  const auto n = static_cast<float>(zero);
  const auto sum = [](const float* part) {
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
  };
  for (int g = 0; g < f.groups; ++g, x += 32) {
    float lo, hi;
    range_of(x, 32, lo, hi);
    const float top = fabsf(lo) > fabsf(hi) ? lo : hi;
    float best = -1.0f, s = 0.0f;
    for (int tried = 0; tried < 4 && top != 0.0f; ++tried) {
      const float inverse = -(n - 1.0f + 0.5f * static_cast<float>(tried)) / top;
      float with[8] = {}, squares[8] = {};
      for (int i = 0; i < 32; i += 8)
        for (int j = 0; j < 8; ++j) {
          const auto code = static_cast<float>(clamped(rintf(x[i + j] * inverse), -n, n - 1.0f));
          with[j] = with[j] + x[i + j] * code;
          squares[j] = squares[j] + code * code;
        }
      // What the codes explain of the group's sum of squares, at the best scale.
      const float product = sum(with), square = sum(squares), explained = product * (product / square);
      if (explained > best) {
        best = explained;
        s = product / square;
      }
    }
    out.scales[g] = f32_to_f16(s > 65504.0f ? 65504.0f : s < -65504.0f ? -65504.0f : s);
    out.offsets[g] = 0;
    const float d = f16_to_f32(static_cast<uint16_t>(out.scales[g]));
    uint8_t* codes = out.codes + g * 32;
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>((d == 0.0f ? 0 : clamped(rintf(x[i] / d), -n, n - 1.0f)) + zero);
  }
}

void encode(const PlaneFormat& f, const float* x, TokenCodes& out) {
  float rounded[kMaxCodecDim];
  round_to_plain(x, f.codec.plain, rounded, f.dim);
  switch (f.codec.kind) {
    case PlaneCodec::Kind::affine:
      return encode_affine(f, rounded, out);
    case PlaneCodec::Kind::turbo_key:
      return encode_turbo_key(f, rounded, out);
    case PlaneCodec::Kind::rotated:
      return encode_rotated(f, rounded, out);
    case PlaneCodec::Kind::q_0:
      return f.codec.bits == 8 ? encode_q8_0(f, rounded, out) : encode_q_0(f, rounded, out);
    case PlaneCodec::Kind::rotated_q_0: {
      float turned[kMaxCodecDim];
      rotate(rounded, rotation_signs(f.dim), turned, f.dim);
      return f.codec.bits == 8 ? encode_q8_0(f, turned, out) : encode_q_0(f, turned, out);
    }
    case PlaneCodec::Kind::plain:
      return;
  }
}

// Keys: pairs of channels are words of a vector that are the token's alone. Values: a token's elements are
// halves of words whose other halves are the next token's, or the last one's.
void append_bf16(const PlaneFormat& f, std::byte* block, int slot, const float* x) {
  constexpr int kTogether = 64;
  uint32_t bits[kTogether];
  for (int first = 0; first < f.dim; first += kTogether) {
    const int count = f.dim - first < kTogether ? f.dim - first : kTogether;
    for (int i = 0; i < count; ++i) bits[i] = round_bf16(x[first + i]);
    std::byte* at = block + plain_offset(f, slot, first);
    if (f.role == PlaneRole::key) {
      for (int i = 0; i + 2 <= count; i += 2, at += kBlockTokens * 4) {
        const uint32_t pair = bits[i] | (bits[i + 1] << 16);
        memcpy(at, &pair, 4);
      }
      if (count % 2 != 0) memcpy(at, &bits[count - 1], 2);
      continue;
    }
    at -= slot % 2 * 2;
    const int shift = slot % 2 * 16;
    uint32_t words[kTogether];
    memcpy(words, at, static_cast<size_t>(count) * 4);
    for (int i = 0; i < count; ++i) words[i] = (words[i] & ~(0xFFFFu << shift)) | (bits[i] << shift);
    memcpy(at, words, static_cast<size_t>(count) * 4);
  }
}

void append(const PlaneFormat& f, std::byte* block, int slot, const float* x) {
  if (!f.plain()) {
    TokenCodes codes;
    encode(f, x, codes);
    put_codes(f, block, slot, codes);
    return;
  }
  if (f.codec.plain == Dtype::f32) {
    for (int i = 0; i < f.dim; ++i) memcpy(block + plain_offset(f, slot, i), x + i, 4);
    return;
  }
  if (f.codec.plain == Dtype::bf16) {
    append_bf16(f, block, slot, x);
  } else {
    for (int i = 0; i < f.dim; ++i) {
      const uint16_t bits = f32_to_f16(x[i]);
      memcpy(block + plain_offset(f, slot, i), &bits, 2);
    }
  }
  if (f.codec.plain == Dtype::bf16 && f.role == PlaneRole::key && f.dim % 2 != 0)
    memset(block + plain_offset(f, slot, f.dim), 0, 2);
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const CodecKernels KVASIR_ISA_SYMBOL(codec_kernels);
const CodecKernels KVASIR_ISA_SYMBOL(codec_kernels) = {KVASIR_ISA_NAMESPACE::append,
                                                       KVASIR_ISA_NAMESPACE::encode};

}  // namespace kvasir::kv
