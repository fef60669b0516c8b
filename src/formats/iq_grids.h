// The grid tables of ggml's IQ formats: each row holds the magnitudes (IQ1: the values) of 8 or 4
// neighbouring weights.
#pragma once

#include <array>
#include <cstdint>

namespace kvasir::formats {

using IqRow8 = std::array<int8_t, 8>;
using IqRow4 = std::array<int8_t, 4>;

extern const std::array<IqRow8, 256> kIq2XxsGrid;  // values 8, 25, 43
extern const std::array<IqRow8, 512> kIq2XsGrid;   // values 8, 25, 43
extern const std::array<IqRow8, 1024> kIq2SGrid;   // values 8, 25, 43
extern const std::array<IqRow4, 256> kIq3XxsGrid;  // values 4, 12, 20, 28, 36, 44, 52, 62
extern const std::array<IqRow4, 512> kIq3SGrid;    // values 1, 3, 5, ..., 15
extern const std::array<IqRow8, 2048> kIq1Grid;    // values -1, 0, 1; shared by IQ1_S and IQ1_M

// The eight signs of IQ2_XXS, IQ2_XS and IQ3_XXS by their 7-bit index: bit e set means weight e is negative.
// The eighth sign makes their number even.
constexpr uint8_t iq_sign_byte(uint32_t index) {
  uint32_t parity = index;
  parity ^= parity >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return static_cast<uint8_t>(index | (parity & 1u) << 7);
}

}  // namespace kvasir::formats
