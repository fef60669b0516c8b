#include "formats/storage_format.h"

#include <gtest/gtest.h>

namespace kvasir::formats {
namespace {

TEST(StorageFormat, NamesRoundTripInAnyCase) {
  for (const StorageFormatInfo& row : all_storage_formats()) {
    EXPECT_EQ(storage_format_from_name(row.name), row.format);
    EXPECT_EQ(&info(row.format), &row);
  }
  EXPECT_EQ(storage_format_from_name("Q4_K"), StorageFormat::q4_k);
  EXPECT_EQ(storage_format_from_name("BF16"), StorageFormat::bf16);
  EXPECT_EQ(storage_format_from_name("q4_K_M"), std::nullopt);
  EXPECT_EQ(storage_format_from_name(""), std::nullopt);
}

TEST(StorageFormat, StoredBytesCountEveryPlane) {
  WeightSource source;
  source.rows = 3;
  source.cols = 256;
  source.row_bytes = 144;
  EXPECT_EQ(source.stored_bytes(), 432u);
  source.bits = 4;
  source.group_size = 64;
  source.row_bytes = 128;
  source.format = StorageFormat::mlx_affine;
  source.scale_dtype = Dtype::bf16;
  EXPECT_EQ(source.stored_bytes(), 3u * 128 + 2 * 3 * 4 * 2);
  source.format = StorageFormat::mlx_nvfp4;
  source.group_size = 16;
  source.scale_dtype = Dtype::u8;
  EXPECT_EQ(source.stored_bytes(), 3u * 128 + 3 * 16);
}

}  // namespace
}  // namespace kvasir::formats
