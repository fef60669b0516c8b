// Where a code, scale or plain element lies in a block (plane.h). Included inside a namespace of its own by
// each translation unit that needs it, so that every instruction-set level has its own copy.
#include <string.h>

// Byte offset of plain element (token, channel).
static inline size_t plain_offset(const PlaneFormat& f, int token, int channel) {
  if (f.codec.plain == Dtype::bf16) {
    if (f.role == PlaneRole::key)
      return static_cast<size_t>(((channel / 2) * kBlockTokens + token) * 2 + channel % 2) * 2;
    return static_cast<size_t>(((token / 2) * f.dim + channel) * 2 + token % 2) * 2;
  }
  const size_t size = f.codec.plain == Dtype::f32 ? 4 : 2;
  if (f.role == PlaneRole::key) return static_cast<size_t>(channel * kBlockTokens + token) * size;
  return static_cast<size_t>(token * f.dim + channel) * size;
}

// Quad vector and byte of code (token, channel); unit = 32 channels.
struct CodePlace {
  int unit, vector, byte;
};
static inline CodePlace code_place(PlaneRole role, int token, int channel) {
  const int unit = channel / 32, c = channel % 32;
  if (role == PlaneRole::key) return {unit, c / 4, token * 4 + c % 4};
  return {unit, (c / 16) * 4 + token / 4, (c % 16) * 4 + token % 4};
}

// The `width` bits of quad vector `vector`, byte `byte`, in a plane that starts at `plane`.
static inline unsigned get_bits(const std::byte* plane, int width, int vector, int byte) {
  const int slots = 8 / width;
  const unsigned word = static_cast<unsigned>(plane[(vector / slots) * 64 + byte]);
  return (word >> ((vector % slots) * width)) & ((1u << width) - 1u);
}
static inline unsigned stored_flip(const PlaneFormat& f) {
  return f.signed_codes ? 0x80u : 0u;
}

// The codes of 32 channels of one token, plane of `width` bits from bit `from` of the codes on. K: a quad of
// channels is 32 bits of a vector that are the token's alone. V: 16 channels lie 32 bits apart, beside those
// of three other tokens.
static inline void put_unit(PlaneRole role, std::byte* plane, int width, int from, int token,
                            const uint8_t* codes) {
  const int slots = 8 / width;
  const uint32_t mask = (1u << width) - 1u;
  if (role == PlaneRole::key) {
    for (int word = 0; word < 8 / slots; ++word) {
      uint32_t bits = 0;
      for (int slot = 0; slot < slots; ++slot) {
        uint32_t quad;
        memcpy(&quad, codes + (word * slots + slot) * 4, 4);
        bits |= ((quad >> from) & (mask * 0x01010101u)) << (slot * width);
      }
      memcpy(plane + word * 64 + token * 4, &bits, 4);
    }
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int vector = half * 4 + token / 4, shift = (token % 4) * 8 + vector % slots * width;
    const uint32_t keep = ~(mask << shift);
    std::byte* at = plane + vector / slots * 64;
    uint32_t words[16];
    memcpy(words, at, sizeof(words));
    for (int c = 0; c < 16; ++c)
      words[c] =
          (words[c] & keep) | (((static_cast<uint32_t>(codes[half * 16 + c]) >> from) & mask) << shift);
    memcpy(at, words, sizeof(words));
  }
}

static inline void put_codes(const PlaneFormat& f, std::byte* block, int token, const TokenCodes& in) {
  const BitPlanes planes = bit_planes(f.codec.bits);
  const size_t unit_bytes = static_cast<size_t>(f.codec.bits) * 64;
  const unsigned flip = stored_flip(f);
  for (int u = 0; u < f.dim / 32; ++u) {
    std::byte* unit = block + static_cast<size_t>(u) * unit_bytes;
    uint8_t codes[32];
    for (int c = 0; c < 32; ++c) codes[c] = static_cast<uint8_t>(in.codes[u * 32 + c] ^ flip);
    put_unit(f.role, unit, planes.first, 0, token, codes);
    if (planes.second != 0)
      put_unit(f.role, unit + planes.first * 64, planes.second, planes.first, token, codes);
  }
  for (int g = 0; g < f.groups; ++g) {
    const size_t at = static_cast<size_t>(g * kBlockTokens + token) * static_cast<size_t>(f.scale_size);
    memcpy(block + f.scale_offset + at, &in.scales[g], static_cast<size_t>(f.scale_size));
    if (f.has_offset) memcpy(block + f.offset_offset + at, &in.offsets[g], static_cast<size_t>(f.scale_size));
  }
}

static inline void get_codes(const PlaneFormat& f, const std::byte* block, int token, TokenCodes& out) {
  const BitPlanes planes = bit_planes(f.codec.bits);
  const size_t unit_bytes = static_cast<size_t>(f.codec.bits) * 64;
  const unsigned flip = stored_flip(f);
  for (int c = 0; c < f.dim; ++c) {
    const CodePlace at = code_place(f.role, token, c);
    const std::byte* unit = block + static_cast<size_t>(at.unit) * unit_bytes;
    unsigned code = get_bits(unit, planes.first, at.vector, at.byte);
    if (planes.second != 0)
      code |= get_bits(unit + planes.first * 64, planes.second, at.vector, at.byte) << planes.first;
    out.codes[c] = static_cast<uint8_t>(code ^ flip);
  }
  for (int g = 0; g < f.groups; ++g) {
    const size_t at = static_cast<size_t>(g * kBlockTokens + token) * static_cast<size_t>(f.scale_size);
    out.scales[g] = out.offsets[g] = 0;
    memcpy(&out.scales[g], block + f.scale_offset + at, static_cast<size_t>(f.scale_size));
    if (f.has_offset)
      memcpy(&out.offsets[g], block + f.offset_offset + at, static_cast<size_t>(f.scale_size));
  }
}
