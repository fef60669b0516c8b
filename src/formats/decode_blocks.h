// Decoders of one GGUF block each, found by format. Internal to formats/; dequantize.h is the public face.
//
// The evaluation order in f32 is ggml's (spec: formats.md 4.3-4.5); nearly every product is exact, so that
// only a final addition or subtraction rounds.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

// Decodes one block of block_bytes at `block` (any alignment) to block_elements floats.
using BlockDecoder = void (*)(const uint8_t* block, float* out);

BlockDecoder block_decoder(StorageFormat format);  // null: the format has no blocks

inline uint16_t load_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}
inline uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}
inline float load_f16(const uint8_t* bytes) {
  return f16_to_f32(load_u16(bytes));
}

void decode_q2_k(const uint8_t* block, float* out);
void decode_q3_k(const uint8_t* block, float* out);
void decode_q4_k(const uint8_t* block, float* out);
void decode_q5_k(const uint8_t* block, float* out);
void decode_q6_k(const uint8_t* block, float* out);
void decode_iq4_xs(const uint8_t* block, float* out);
void decode_tq1_0(const uint8_t* block, float* out);
void decode_tq2_0(const uint8_t* block, float* out);
void decode_iq1_s(const uint8_t* block, float* out);
void decode_iq1_m(const uint8_t* block, float* out);
void decode_iq2_xxs(const uint8_t* block, float* out);
void decode_iq2_xs(const uint8_t* block, float* out);
void decode_iq2_s(const uint8_t* block, float* out);
void decode_iq3_xxs(const uint8_t* block, float* out);
void decode_iq3_s(const uint8_t* block, float* out);

}  // namespace kvasir::formats
