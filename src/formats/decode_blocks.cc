#include "formats/decode_blocks.h"

#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

// In blocks of 32 with 16 bytes of nibbles, byte j holds element j (low) and element j + 16 (high).

void decode_q4_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((block[2 + j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((block[2 + j] >> 4) - 8) * d;
  }
}

void decode_q4_1(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(block[4 + j] & 15) * d + m;
    out[j + 16] = static_cast<float>(block[4 + j] >> 4) * d + m;
  }
}

void decode_q5_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const uint32_t high = load_u32(block + 2);
  for (int j = 0; j < 16; ++j) {
    const int low_code = (block[6 + j] & 15) | static_cast<int>((high >> j) & 1u) << 4;
    const int high_code = (block[6 + j] >> 4) | static_cast<int>((high >> (j + 16)) & 1u) << 4;
    out[j] = static_cast<float>(low_code - 16) * d;
    out[j + 16] = static_cast<float>(high_code - 16) * d;
  }
}

void decode_q5_1(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  const uint32_t high = load_u32(block + 4);
  for (int j = 0; j < 16; ++j) {
    const int low_code = (block[8 + j] & 15) | static_cast<int>((high >> j) & 1u) << 4;
    const int high_code = (block[8 + j] >> 4) | static_cast<int>((high >> (j + 16)) & 1u) << 4;
    out[j] = static_cast<float>(low_code) * d + m;
    out[j + 16] = static_cast<float>(high_code) * d + m;
  }
}

void decode_q8_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
}

void decode_iq4_nl(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(kIq4Values[block[2 + j] & 15]);
    out[j + 16] = d * static_cast<float>(kIq4Values[block[2 + j] >> 4]);
  }
}

void decode_mxfp4(const uint8_t* block, float* out) {
  const float half_scale = e8m0_half_to_f32(block[0]);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(kE2m1Doubled[block[1 + j] & 15]) * half_scale;
    out[j + 16] = static_cast<float>(kE2m1Doubled[block[1 + j] >> 4]) * half_scale;
  }
}

void decode_nvfp4(const uint8_t* block, float* out) {
  for (int s = 0; s < 4; ++s) {
    const float half_scale = ue4m3_to_f32(block[s]) * 0.5f;
    for (int t = 0; t < 8; ++t) {
      const uint8_t byte = block[4 + 8 * s + t];
      out[16 * s + t] = static_cast<float>(kE2m1Doubled[byte & 15]) * half_scale;
      out[16 * s + t + 8] = static_cast<float>(kE2m1Doubled[byte >> 4]) * half_scale;
    }
  }
}

void decode_q1_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int i = 0; i < 128; ++i) out[i] = (block[2 + i / 8] >> (i % 8)) & 1 ? d : -d;
}

void decode_q2_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int i = 0; i < 64; ++i) out[i] = static_cast<float>(((block[2 + i / 4] >> (2 * (i % 4))) & 3) - 1) * d;
}

}  // namespace

BlockDecoder block_decoder(StorageFormat format) {
  switch (format) {
    case StorageFormat::q4_0:
      return decode_q4_0;
    case StorageFormat::q4_1:
      return decode_q4_1;
    case StorageFormat::q5_0:
      return decode_q5_0;
    case StorageFormat::q5_1:
      return decode_q5_1;
    case StorageFormat::q8_0:
      return decode_q8_0;
    case StorageFormat::iq4_nl:
      return decode_iq4_nl;
    case StorageFormat::mxfp4:
      return decode_mxfp4;
    case StorageFormat::nvfp4:
      return decode_nvfp4;
    case StorageFormat::q1_0:
      return decode_q1_0;
    case StorageFormat::q2_0:
      return decode_q2_0;
    case StorageFormat::q2_k:
      return decode_q2_k;
    case StorageFormat::q3_k:
      return decode_q3_k;
    case StorageFormat::q4_k:
      return decode_q4_k;
    case StorageFormat::q5_k:
      return decode_q5_k;
    case StorageFormat::q6_k:
      return decode_q6_k;
    case StorageFormat::iq4_xs:
      return decode_iq4_xs;
    case StorageFormat::tq1_0:
      return decode_tq1_0;
    case StorageFormat::tq2_0:
      return decode_tq2_0;
    case StorageFormat::iq1_s:
      return decode_iq1_s;
    case StorageFormat::iq1_m:
      return decode_iq1_m;
    case StorageFormat::iq2_xxs:
      return decode_iq2_xxs;
    case StorageFormat::iq2_xs:
      return decode_iq2_xs;
    case StorageFormat::iq2_s:
      return decode_iq2_s;
    case StorageFormat::iq3_xxs:
      return decode_iq3_xxs;
    case StorageFormat::iq3_s:
      return decode_iq3_s;
    default:
      return nullptr;
  }
}

}  // namespace kvasir::formats
