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

// Reads or writes the `width` bits of quad vector `vector`, byte `byte`, in a plane that starts at `plane`.
static inline unsigned get_bits(const std::byte* plane, int width, int vector, int byte) {
  const int slots = 8 / width;
  const unsigned word = static_cast<unsigned>(plane[(vector / slots) * 64 + byte]);
  return (word >> ((vector % slots) * width)) & ((1u << width) - 1u);
}
static inline void set_bits(std::byte* plane, int width, int vector, int byte, unsigned value) {
  const int slots = 8 / width, shift = (vector % slots) * width;
  const unsigned mask = ((1u << width) - 1u) << shift;
  std::byte& at = plane[(vector / slots) * 64 + byte];
  at = static_cast<std::byte>((static_cast<unsigned>(at) & ~mask) | ((value << shift) & mask));
}

static inline unsigned stored_flip(const PlaneFormat& f) {
  return f.codec.kind == PlaneCodec::Kind::turbo_key && f.codec.bits == 8 ? 0x80u : 0u;
}

static inline void put_codes(const PlaneFormat& f, std::byte* block, int token, const TokenCodes& in) {
  const BitPlanes planes = bit_planes(f.codec.bits);
  const size_t unit_bytes = static_cast<size_t>(f.codec.bits) * 64;
  const unsigned flip = stored_flip(f);
  for (int c = 0; c < f.dim; ++c) {
    const CodePlace at = code_place(f.role, token, c);
    const unsigned code = in.codes[c] ^ flip;
    std::byte* unit = block + static_cast<size_t>(at.unit) * unit_bytes;
    set_bits(unit, planes.first, at.vector, at.byte, code);
    if (planes.second != 0)
      set_bits(unit + planes.first * 64, planes.second, at.vector, at.byte, code >> planes.first);
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
