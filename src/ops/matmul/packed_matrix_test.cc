#include "ops/matmul/packed_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/memory.h"
#include "formats/dequantize.h"
#include "ops/matmul/weight_cases.h"

namespace kvasir::ops {
namespace {

using formats::StorageFormat;

std::vector<float> dequantized(const formats::WeightSource& source, int64_t row) {
  std::vector<float> out(static_cast<size_t>(source.cols));
  formats::dequantize_row(source, row, out);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

class PackedFormats : public testing::TestWithParam<WeightCase> {};

TEST_P(PackedFormats, UnpacksToTheDefinitionBitForBit) {
  ThreadTeam team(2);
  for (int64_t rows : {1, 5, 16, 17, 40})
    for (int64_t cols : columns_of(GetParam())) {
      const RandomWeight weight = make_weight(GetParam(), rows, cols, 7);
      PackedWeight packed(weight.source(), team);
      for (IsaLevel isa : compiled_isa_levels()) {
        if (!machine_has(isa)) continue;
        for (int64_t row = 0; row < rows; ++row) {
          std::vector<float> out(static_cast<size_t>(cols));
          packed.matrix.unpack_row(row, 0, out, isa);
          ASSERT_TRUE(same_bits(out, dequantized(weight.source(), row)))
              << name(isa) << " row " << row << " of " << rows << "x" << cols;
        }
      }
      // A range in the middle.
      if (cols > 70) {
        std::vector<float> out(static_cast<size_t>(cols - 70)), all = dequantized(weight.source(), rows - 1);
        packed.matrix.unpack_row(rows - 1, 33, out);
        ASSERT_TRUE(same_bits(out, {all.begin() + 33, all.begin() + 33 + static_cast<int64_t>(out.size())}));
      }
    }
}

TEST_P(PackedFormats, TakesNoMoreThanThreePercentOverTheStoredBytes) {
  if (GetParam().format == StorageFormat::f64) return;  // held as f32
  for (int64_t cols : {2048, 11008}) {
    const int64_t rows = 160;
    if (cols % multiple_of(GetParam()) != 0) continue;
    const RandomWeight weight = make_weight(GetParam(), 1, cols, 7);
    formats::WeightSource source = weight.source();
    source.rows = rows;  // sizes come from shapes alone
    EXPECT_LE(static_cast<double>(PackedMatrix::packed_bytes(source)),
              1.03 * static_cast<double>(source.stored_bytes()))
        << cols;
  }
}

TEST_P(PackedFormats, DigestDependsOnContentNotOnThreads) {
  const int64_t cols = columns_of(GetParam()).back();
  const RandomWeight weight = make_weight(GetParam(), 50, cols, 7),
                     other = make_weight(GetParam(), 50, cols, 8);
  ThreadTeam one(1), three(3);
  PackedWeight a(weight.source(), one), b(weight.source(), three), c(other.source(), one);
  EXPECT_EQ(a.matrix.digest(), b.matrix.digest());
  EXPECT_NE(a.matrix.digest(), c.matrix.digest());
  EXPECT_TRUE(a.memory == b.memory);
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedFormats, testing::ValuesIn(weight_cases()),
                         [](const auto& test) { return case_name(test.param); });

TEST(PackedMatrix, StacksParts) {
  ThreadTeam team(2);
  const RandomWeight q(StorageFormat::q4_0, 40, 64, 1), k(StorageFormat::q4_0, 9, 64, 2),
      v(StorageFormat::q4_0, 9, 64, 3);
  std::vector<PackPart> parts(3);
  parts[0].source = q.source();
  parts[1].source = k.source();
  parts[2].source = v.source();
  AlignedBytes memory(PackedMatrix::packed_bytes(parts));
  const PackedMatrix matrix = PackedMatrix::pack(parts, memory.span(), team);
  EXPECT_EQ(matrix.rows(), 58);
  EXPECT_EQ(matrix.panels(), 4);
  std::vector<float> out(64);
  for (int64_t row = 0; row < 58; ++row) {
    matrix.unpack_row(row, 0, out);
    const auto expected = row < 40   ? dequantized(q.source(), row)
                          : row < 49 ? dequantized(k.source(), row - 40)
                                     : dequantized(v.source(), row - 49);
    ASSERT_TRUE(same_bits(out, expected)) << row;
  }
}

TEST(PackedMatrix, InterleavesGateAndUp) {
  ThreadTeam team(2);
  const RandomWeight gate(StorageFormat::q8_0, 40, 64, 1), up(StorageFormat::q8_0, 40, 64, 2);
  std::vector<PackPart> parts(2);
  parts[0].source = gate.source();
  parts[1].source = up.source();
  AlignedBytes memory(PackedMatrix::packed_bytes(parts, PartOrder::interleaved));
  PackOptions options;
  options.order = PartOrder::interleaved;
  const PackedMatrix matrix = PackedMatrix::pack(parts, memory.span(), team, options);
  EXPECT_EQ(matrix.rows(), 80);
  EXPECT_EQ(matrix.panels(), 6);
  std::vector<float> out(64);
  for (int64_t row = 0; row < 80; ++row) {
    matrix.unpack_row(row, 0, out);
    ASSERT_TRUE(
        same_bits(out, row < 40 ? dequantized(gate.source(), row) : dequantized(up.source(), row - 40)))
        << row;
  }
}

TEST(PackedMatrix, PermutesRowsAndTakesColumnShards) {
  ThreadTeam team(1);
  const RandomWeight weight(StorageFormat::q4_k, 24, 768, 1);
  PackPart part;
  part.source = weight.source();
  for (int32_t row = 23; row >= 0; row -= 3) part.row_map.push_back(row);
  part.col_begin = 256;
  part.col_end = 768;
  AlignedBytes memory(PackedMatrix::packed_bytes({&part, 1}));
  const PackedMatrix matrix = PackedMatrix::pack({&part, 1}, memory.span(), team);
  EXPECT_EQ(matrix.rows(), 8);
  EXPECT_EQ(matrix.cols(), 512);
  std::vector<float> out(512);
  for (int64_t row = 0; row < 8; ++row) {
    matrix.unpack_row(row, 0, out);
    const std::vector<float> all = dequantized(weight.source(), part.row_map[static_cast<size_t>(row)]);
    ASSERT_TRUE(same_bits(out, {all.begin() + 256, all.end()})) << row;
  }
}

TEST(PackedMatrix, GivesEverySourceByteBack) {
  ThreadTeam team(3);
  const RandomWeight weight(StorageFormat::q8_0, 3000, 1024, 1);
  PackPart part;
  part.source = weight.source();
  AlignedBytes memory(PackedMatrix::packed_bytes({&part, 1}));
  std::mutex mutex;
  std::set<std::pair<const std::byte*, size_t>> ranges;
  PackOptions options;
  options.done_with = [&](std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex);
    ranges.emplace(bytes.data(), bytes.size());
  };
  PackedMatrix::pack({&part, 1}, memory.span(), team, options);
  const std::byte* next = weight.source().data;
  for (const auto& [begin, size] : ranges) {
    EXPECT_EQ(begin, next);
    next = begin + size;
  }
  EXPECT_EQ(next, weight.source().data + 3000 * weight.source().row_bytes);
  EXPECT_GE(ranges.size(), 3u);
}

TEST(PackedMatrix, RefusesScalesThatAreNotFinite) {
  ThreadTeam team(2);
  RandomWeight weight(StorageFormat::q4_k, 20, 512, 1);
  std::vector<std::byte> copy(weight.source().data, weight.source().data + 20 * weight.source().row_bytes);
  copy[13 * weight.source().row_bytes + 144 + 3] = std::byte{0x7C};  // high byte of dmin of row 13, block 1
  weight.source().data = copy.data();
  weight.source().name = "blk.0.attn_q.weight";
  AlignedBytes memory(PackedMatrix::packed_bytes(weight.source()));
  try {
    PackedMatrix::pack(weight.source(), memory.span(), team);
    FAIL() << "packed an infinite scale";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
    EXPECT_THAT(error.what(), testing::HasSubstr("blk.0.attn_q.weight"));
    EXPECT_THAT(error.what(), testing::HasSubstr("row 13, block 1"));
  }
}

TEST(PackedMatrix, RefusesPlainElementsThatAreNotFinite) {
  ThreadTeam team(1);
  for (StorageFormat format :
       {StorageFormat::f32, StorageFormat::f16, StorageFormat::bf16, StorageFormat::f8_e4m3}) {
    RandomWeight weight(format, 3, 40, 1);
    std::vector<std::byte> copy(weight.source().data, weight.source().data + 3 * weight.source().row_bytes);
    const size_t size = weight.source().row_bytes / 40;
    std::memset(copy.data() + weight.source().row_bytes + 7 * size, 0x7F, size);
    if (format == StorageFormat::bf16) copy[weight.source().row_bytes + 7 * size] = std::byte{0x80};
    if (format == StorageFormat::f32) copy[weight.source().row_bytes + 7 * size + 2] = std::byte{0x80};
    weight.source().data = copy.data();
    AlignedBytes memory(PackedMatrix::packed_bytes(weight.source()));
    try {
      PackedMatrix::pack(weight.source(), memory.span(), team);
      FAIL() << formats::name(format);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("row 1, column 7")) << error.what();
    }
  }
}

TEST(PackedMatrix, RefusesColumnsThatAreNoWholeBlocks) {
  formats::WeightSource source;
  source.name = "w";
  source.format = StorageFormat::q4_0;
  source.rows = 16;
  source.cols = 48;
  EXPECT_THROW(PackedMatrix::packed_bytes(source), Error);
  source.format = StorageFormat::i32;
  EXPECT_THROW(PackedMatrix::packed_bytes(source), Error);
}

}  // namespace
}  // namespace kvasir::ops
