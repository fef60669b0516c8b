#include "kv/codecs/decode_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kv/codecs/rotation_tables.h"

namespace kvasir::kv {
namespace {

// Puts the codebook on bytes around 128. Of 256 scales up to the one at which the largest entry becomes 127,
// the one with the least squared error of the entries.
void byte_codebook(const Codebook& book, DecodeTable& out) {
  double largest = 0;
  for (int i = 0; i < book.size; ++i)
    largest = std::max(largest, std::abs(static_cast<double>(std::bit_cast<float>(book.centroids[i]))));
  double best = HUGE_VAL;
  for (int tried = 0; tried < 256; ++tried) {
    const float scale = static_cast<float>(largest / (127.0 - tried * 0.125));
    double error = 0;
    for (int i = 0; i < book.size; ++i) {
      const double entry = std::bit_cast<float>(book.centroids[i]);
      const double rest = entry - std::rint(entry / scale) * scale;
      error += rest * rest;
    }
    if (error < best) {
      best = error;
      out.byte_scale = scale;
    }
  }
  for (int i = 0; i < 64; ++i) {
    const double entry = std::bit_cast<float>(book.centroids[i % book.size]);
    out.bytes[i] = static_cast<uint8_t>(128 + static_cast<int>(std::rint(entry / out.byte_scale)));
  }
  out.has_bytes = out.looks_up = true;
  out.byte_center = 128;
}

}  // namespace

DecodeTable make_decode_table(const PlaneFormat& format) {
  DecodeTable out = {};
  if (format.plain()) return out;
  const int bits = format.codec.bits, size = 1 << bits;
  if (format.codec.kind == PlaneCodec::Kind::rotated) {
    const Codebook book = codebook(bits);
    for (int i = 0; i < 256; ++i) {
      const uint32_t bits_of_entry = book.centroids[i % size];
      out.values[i] = std::bit_cast<float>(bits_of_entry);
      for (int b = 0; b < 4; ++b) out.value_bytes[b][i] = static_cast<uint8_t>(bits_of_entry >> (8 * b));
    }
    if (size <= 64) byte_codebook(book, out);
    return out;
  }
  out.center = static_cast<float>(size >> 1);
  for (int i = 0; i < 256; ++i) out.values[i] = static_cast<float>(i % size) - out.center;
  if (format.signed_codes && format.has_offset) out.stored_bias = 128;
  if (!format.has_offset) out.byte_center = size >> 1;
  out.has_bytes = true;
  return out;
}

}  // namespace kvasir::kv
