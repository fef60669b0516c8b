#include "formats/iq_grids.h"

#include <cstddef>

#include "formats/iq_grids_data.h"

namespace kvasir::formats {
namespace {

template <typename Row, size_t Rows, size_t Values>
constexpr std::array<Row, Rows> expand(const std::array<uint16_t, Rows>& packed,
                                       const std::array<int8_t, Values>& values) {
  constexpr unsigned kBits = Values <= 4 ? 2 : 3;
  std::array<Row, Rows> rows{};
  for (size_t r = 0; r < Rows; ++r)
    for (size_t j = 0; j < rows[r].size(); ++j)
      rows[r][j] = values[(packed[r] >> (j * kBits)) & ((1u << kBits) - 1u)];
  return rows;
}

constexpr std::array<int8_t, 3> kIq2Values = {8, 25, 43};
constexpr std::array<int8_t, 8> kIq3XxsValues = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<int8_t, 8> kIq3SValues = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr std::array<int8_t, 3> kIq1Values = {-1, 0, 1};

}  // namespace

constinit const std::array<IqRow8, 256> kIq2XxsGrid = expand<IqRow8>(kIq2XxsPacked, kIq2Values);
constinit const std::array<IqRow8, 512> kIq2XsGrid = expand<IqRow8>(kIq2XsPacked, kIq2Values);
constinit const std::array<IqRow8, 1024> kIq2SGrid = expand<IqRow8>(kIq2SPacked, kIq2Values);
constinit const std::array<IqRow4, 256> kIq3XxsGrid = expand<IqRow4>(kIq3XxsPacked, kIq3XxsValues);
constinit const std::array<IqRow4, 512> kIq3SGrid = expand<IqRow4>(kIq3SPacked, kIq3SValues);
constinit const std::array<IqRow8, 2048> kIq1Grid = expand<IqRow8>(kIq1SPacked, kIq1Values);

}  // namespace kvasir::formats
