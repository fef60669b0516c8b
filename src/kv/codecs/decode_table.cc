#include "kv/codecs/decode_table.h"

#include <bit>

#include "kv/codecs/rotation_tables.h"

namespace kvasir::kv {

DecodeTable make_decode_table(const PlaneFormat& format) {
  DecodeTable out = {};
  if (format.plain()) return out;
  const int bits = format.codec.bits, size = 1 << bits;
  const bool is_signed = format.codec.kind == PlaneCodec::Kind::turbo_key && bits == 8;
  const bool is_book = format.codec.kind == PlaneCodec::Kind::rotated;
  if (!is_signed && !is_book) out.center = static_cast<float>(size / 2);
  for (int i = 0; i < 256; ++i) {
    const int code = i % size;
    if (is_book) {
      out.values[i] = std::bit_cast<float>(codebook(bits).centroids[code]);
    } else if (is_signed) {
      out.values[i] = static_cast<float>(static_cast<int8_t>(code));
    } else {
      out.values[i] = static_cast<float>(code) - out.center;
    }
    out.bf16[i] = f32_to_bf16(out.values[i]);
  }
  return out;
}

}  // namespace kvasir::kv
