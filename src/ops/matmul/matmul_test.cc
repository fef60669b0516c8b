#include "ops/matmul/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "ops/activation/activation.h"
#include "ops/matmul/reference.h"
#include "ops/matmul/weight_cases.h"

namespace kvasir::ops {
namespace {

using formats::StorageFormat;

std::vector<IsaLevel> levels() {
  std::vector<IsaLevel> out;
  for (IsaLevel isa : compiled_isa_levels())
    if (machine_has(isa)) out.push_back(isa);
  return out;
}

std::vector<float> random_rows(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (float& x : out) x = normal(random);
  return out;
}

// Rows in a mode, and the memory that holds them.
struct Prepared {
  Prepared(ActivationMode mode, const std::vector<float>& input, int64_t rows, int64_t cols, IsaLevel isa)
      : bytes(prepared_row_bytes(cols, mode) * static_cast<size_t>(rows)) {
    view.mode = mode;
    view.rows = rows;
    view.cols = cols;
    view.stride = prepared_row_bytes(cols, mode);
    if (mode == ActivationMode::f32) {
      view.data = reinterpret_cast<const std::byte*>(input.data());
    } else {
      prepare_activations(mode, input.data(), cols, cols, 0, rows, bytes.span().data(), view.stride, isa);
      view.data = bytes.span().data();
    }
  }
  AlignedBytes bytes;
  PreparedRows view;
};

std::vector<float> multiply(const PackedMatrix& weight, const PreparedRows& input, IsaLevel isa,
                            int threads = 1, Matmul base = {}) {
  Matmul product = base;
  const int64_t cols = product.epilogue == Epilogue::none ? weight.rows() : weight.rows() / 2;
  std::vector<float> out(static_cast<size_t>(input.rows * cols), std::numeric_limits<float>::quiet_NaN());
  product.input = input;
  product.weight = &weight;
  product.out = out.data();
  product.out_stride = cols;
  product.isa = isa;
  check_matmul(product);
  for (int member = 0; member < threads; ++member) matmul(product, member, threads);
  return out;
}

PreparedRows slice(const PreparedRows& all, int64_t first, int64_t rows) {
  PreparedRows view = all;
  view.data += static_cast<size_t>(first) * all.stride;
  view.rows = rows;
  return view;
}

class EveryFormat : public testing::TestWithParam<WeightCase> {};

std::vector<ActivationMode> modes_of(StorageFormat format) {
  std::vector<ActivationMode> modes = {ActivationMode::f32, ActivationMode::bf16};
  for (ActivationMode mode : {ActivationMode::int8, ActivationMode::int16})
    if (supports(mode, format)) modes.push_back(mode);
  return modes;
}

// Every product is rounded once or twice and every sum once, to f32: |error| <= (cols + 8) * 2^-23 * sum |w
// x|. Minima enter as separate terms, so that |w| is bounded by |code * scale| + |minimum|; the constant
// covers them for the scales of RandomWeight. The bf16 dot product flushes subnormals, which do not occur
// here.
TEST_P(EveryFormat, AgreesWithTheReference) {
  ThreadTeam team(2);
  for (int64_t cols : columns_of(GetParam())) {
    const int64_t rows = 19, out = 35;
    const RandomWeight weight = make_weight(GetParam(), out, cols, 3);
    PackedWeight packed(weight.source(), team);
    const std::vector<float> input = random_rows(rows, cols, 5);
    for (ActivationMode mode : modes_of(GetParam().format)) {
      const auto expected = reference_matmul(mode, input.data(), rows, weight.source());
      for (IsaLevel isa : levels()) {
        const Prepared x(mode, input, rows, cols, isa);
        const std::vector<float> got = multiply(packed.matrix, x.view, isa);
        double magnitude = 0;
        for (const ReferenceValue& value : expected) magnitude = std::max(magnitude, value.magnitude);
        for (size_t i = 0; i < got.size(); ++i) {
          const double bound =
              static_cast<double>(cols + 8) * 0x1p-23 * (expected[i].magnitude + 0.25 * magnitude);
          ASSERT_NEAR(got[i], expected[i].value, bound)
              << name(isa) << " " << name(mode) << " " << cols << " columns, element " << i;
        }
      }
    }
  }
}

TEST_P(EveryFormat, BitsDoNotDependOnRowsOrThreads) {
  ThreadTeam team(2);
  const int64_t cols = columns_of(GetParam()).back(), rows = 512, out = 83;
  const RandomWeight weight = make_weight(GetParam(), out, cols, 3);
  PackedWeight packed(weight.source(), team);
  const std::vector<float> input = random_rows(rows, cols, 5);
  for (ActivationMode mode : modes_of(GetParam().format))
    for (IsaLevel isa : levels()) {
      const Prepared x(mode, input, rows, cols, isa);
      const std::vector<float> whole = multiply(packed.matrix, x.view, isa);
      for (int threads : {2, 3}) {
        const std::vector<float> shared = multiply(packed.matrix, x.view, isa, threads);
        ASSERT_EQ(std::memcmp(shared.data(), whole.data(), whole.size() * 4), 0)
            << name(isa) << " " << threads << " threads";
      }
      int64_t first = 0;
      for (int64_t count : {1, 2, 3, 4, 5, 7, 9, 13, 16, 33, 64, 100}) {
        for (int threads : {1, 3}) {
          const std::vector<float> part = multiply(packed.matrix, slice(x.view, first, count), isa, threads);
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + first * out, part.size() * 4), 0)
              << name(isa) << " " << name(mode) << " " << count << " rows at " << first;
        }
        first += count;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(weight_cases()),
                         [](const auto& test) { return case_name(test.param); });

// A row of int16 holds the codes of int8 first: the coarse rows of a weight read only those.
TEST(Matmul, CoarseRowsAreThoseOfInt8TheOthersThoseOfInt16) {
  ThreadTeam team(2);
  const int64_t rows = 70, cols = 352, out = 83;
  const RandomWeight weight(StorageFormat::q4_1, out, cols, 3);
  PackedWeight packed(weight.source(), team);
  const std::vector<float> input = random_rows(rows, cols, 5), bias = random_rows(1, out, 6);
  for (IsaLevel isa : levels()) {
    const Prepared coarse(ActivationMode::int8, input, rows, cols, isa),
        fine(ActivationMode::int16, input, rows, cols, isa);
    Matmul base;
    base.bias = bias.data();
    const std::vector<float> int8 = multiply(packed.matrix, coarse.view, isa, 1, base),
                             int16 = multiply(packed.matrix, fine.view, isa, 1, base);
    ASSERT_NE(int8, int16);
    for (int64_t coarse_rows : {int64_t{16}, int64_t{48}, out})
      for (int threads : {1, 2, 5})
        for (int64_t count : {int64_t{1}, int64_t{3}, rows}) {
          base.coarse_rows = coarse_rows;
          const std::vector<float> got =
              multiply(packed.matrix, slice(fine.view, 0, count), isa, threads, base);
          for (size_t i = 0; i < got.size(); ++i) {
            const bool from_int8 = static_cast<int64_t>(i) % out < coarse_rows;
            ASSERT_EQ(got[i], (from_int8 ? int8 : int16)[i])
                << name(isa) << " " << coarse_rows << " element " << i;
          }
        }
  }
}

TEST(Matmul, AddsBiasThenResidual) {
  ThreadTeam team(1);
  const int64_t rows = 5, cols = 64, out = 37;
  const RandomWeight weight(StorageFormat::q4_1, out, cols, 3);
  PackedWeight packed(weight.source(), team);
  const std::vector<float> input = random_rows(rows, cols, 5), bias = random_rows(1, out, 6),
                           residual = random_rows(rows, out, 7);
  for (IsaLevel isa : levels())
    for (ActivationMode mode : modes_of(StorageFormat::q4_1)) {
      const Prepared x(mode, input, rows, cols, isa);
      const std::vector<float> plain = multiply(packed.matrix, x.view, isa);
      Matmul base;
      base.bias = bias.data();
      base.residual = residual.data();
      base.residual_stride = out;
      const std::vector<float> fused = multiply(packed.matrix, x.view, isa, 2, base);
      for (int64_t i = 0; i < rows * out; ++i) {
        const float sum = plain[static_cast<size_t>(i)] + bias[static_cast<size_t>(i % out)];
        ASSERT_EQ(fused[static_cast<size_t>(i)], sum + residual[static_cast<size_t>(i)]);
      }
    }
}

// The fused form is the unfused program, bit for bit: two products, then the activation op's own kernel.
TEST(Matmul, CombinesGateAndUp) {
  ThreadTeam team(2);
  const int64_t rows = 21, cols = 96, out = 53;
  const RandomWeight gate(StorageFormat::q5_1, out, cols, 3), up(StorageFormat::q5_1, out, cols, 4);
  PackedWeight packed_gate(gate.source(), team), packed_up(up.source(), team);
  std::vector<PackPart> parts(2);
  parts[0].source = gate.source();
  parts[1].source = up.source();
  AlignedBytes memory(PackedMatrix::packed_bytes(parts, PartOrder::interleaved));
  PackOptions options;
  options.order = PartOrder::interleaved;
  const PackedMatrix both = PackedMatrix::pack(parts, memory.span(), team, options);
  const std::vector<float> input = random_rows(rows, cols, 5), bias = random_rows(2, out, 6);
  for (IsaLevel isa : levels())
    for (ActivationMode mode : modes_of(StorageFormat::q5_1))
      for (Epilogue epilogue : {Epilogue::swiglu, Epilogue::geglu}) {
        const Prepared x(mode, input, rows, cols, isa);
        Matmul base;
        base.bias = bias.data();
        std::vector<float> expected = multiply(packed_gate.matrix, x.view, isa, 1, base);
        base.bias = bias.data() + out;
        const std::vector<float> second = multiply(packed_up.matrix, x.view, isa, 1, base);
        activation_kernels(isa).apply(
            epilogue == Epilogue::swiglu ? ActivationFunction::silu : ActivationFunction::gelu_tanh, {},
            expected.data(), second.data(), expected.data(), rows * out);
        base.bias = bias.data();
        base.epilogue = epilogue;
        for (int threads : {1, 2}) {
          const std::vector<float> fused = multiply(both, x.view, isa, threads, base);
          ASSERT_EQ(std::memcmp(fused.data(), expected.data(), expected.size() * 4), 0)
              << name(isa) << " " << name(mode);
        }
      }
}

TEST(Matmul, MultipliesByTheTensorScale) {
  ThreadTeam team(1);
  RandomWeight weight(StorageFormat::nvfp4, 20, 64, 3);
  PackedWeight plain(weight.source(), team);
  weight.source().tensor_scale = 0.3f;
  PackedWeight scaled(weight.source(), team);
  const std::vector<float> input = random_rows(2, 64, 5);
  for (IsaLevel isa : levels()) {
    const Prepared x(ActivationMode::int8, input, 2, 64, isa);
    const std::vector<float> a = multiply(plain.matrix, x.view, isa),
                             b = multiply(scaled.matrix, x.view, isa);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(b[i], a[i] * 0.3f);
  }
}

TEST(Matmul, MultipliesARangeOfRows) {
  ThreadTeam team(1);
  const int64_t cols = 64, experts = 3, out = 32;
  const RandomWeight weight(StorageFormat::q8_0, experts * out, cols, 3);
  PackedWeight packed(weight.source(), team);
  const std::vector<float> input = random_rows(4, cols, 5);
  const Prepared x(ActivationMode::int8, input, 4, cols, best_isa_level());
  const std::vector<float> all = multiply(packed.matrix, x.view, best_isa_level());
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<float> part(4 * 32);
    Matmul product;
    product.input = x.view;
    product.weight = &packed.matrix;
    product.out = part.data();
    product.out_stride = out;
    product.weight_begin = e * out;
    product.weight_end = (e + 1) * out;
    product.isa = best_isa_level();
    check_matmul(product);
    for (int member = 0; member < 2; ++member) matmul(product, member, 2);
    for (int64_t r = 0; r < 4; ++r)
      EXPECT_EQ(std::memcmp(part.data() + r * out, all.data() + r * experts * out + e * out,
                            static_cast<size_t>(out) * 4),
                0);
  }
}

TEST(Matmul, RefusesInt8ForFloatWeights) {
  ThreadTeam team(1);
  const RandomWeight weight(StorageFormat::bf16, 20, 64, 3);
  PackedWeight packed(weight.source(), team);
  Matmul product;
  product.weight = &packed.matrix;
  product.input.mode = ActivationMode::int8;
  product.input.cols = 64;
  EXPECT_THROW(check_matmul(product), Error);
}

TEST(PrepareActivations, Int8RoundsToNearestAndSumsCodes) {
  for (IsaLevel isa : levels()) {
    std::vector<float> x(40, 0.0f);
    x[0] = 127.0f;
    x[1] = -126.5f;  // ties to even: -126
    x[2] = 0.5f;     // ties to even: 0
    x[3] = 1.5f;     // 2
    x[31] = -63.4f;
    x[35] = -2.0f;  // second block: scale 2 / 127
    x[36] = 1.0f;   // 63.5 -> 64
    const Prepared row(ActivationMode::int8, x, 1, 40, isa);
    const auto* codes = reinterpret_cast<const int8_t*>(row.view.data);
    EXPECT_EQ(codes[0], 127);
    EXPECT_EQ(codes[1], -126);
    EXPECT_EQ(codes[2], 0);
    EXPECT_EQ(codes[3], 2);
    EXPECT_EQ(codes[31], -63);
    EXPECT_EQ(codes[35], -127);
    EXPECT_EQ(codes[36], 64);
    for (int i = 40; i < 64; ++i) EXPECT_EQ(codes[i], 0);
    float scales[2], sums[2];
    std::memcpy(scales, row.view.data + int8_scales_offset(40), 8);
    std::memcpy(sums, row.view.data + int8_sums_offset(40), 8);
    EXPECT_EQ(scales[0], 1.0f);
    EXPECT_EQ(scales[1], 2.0f / 127.0f);
    EXPECT_EQ(sums[0], 127.0f - 126.0f + 2.0f - 63.0f);
    EXPECT_EQ(sums[1], (2.0f / 127.0f) * -63.0f);
    int16_t code_sums[4];
    std::memcpy(code_sums, row.view.data + int8_code_sums_offset(40), 8);
    EXPECT_THAT(code_sums, testing::ElementsAre(3, -63, -63, 0));
  }
}

// One int8 row (or one plane of int16) as prepared_rows.h lays it out.
struct StoredIntegers {
  std::vector<int8_t> codes;
  std::vector<float> scales, sums;
  std::vector<int16_t> code_sums;
  StoredIntegers(const std::byte* row, int64_t cols)
      : codes(static_cast<size_t>(prepared_cols(cols))),
        scales(static_cast<size_t>(prepared_blocks(cols))),
        sums(scales.size()),
        code_sums(2 * scales.size()) {
    std::memcpy(codes.data(), row, codes.size());
    std::memcpy(scales.data(), row + int8_scales_offset(cols), scales.size() * 4);
    std::memcpy(sums.data(), row + int8_sums_offset(cols), sums.size() * 4);
    std::memcpy(code_sums.data(), row + int8_code_sums_offset(cols), code_sums.size() * 2);
  }
};

// Blocks of every size of numbers, of zeros, with ties, and blocks that cannot be rounded: each element by
// the rule, a value at a time, on every level.
TEST(PrepareActivations, IntegersFollowTheRule) {
  std::mt19937 random(7);
  for (int64_t cols : {1, 31, 32, 33, 64, 255, 256, 257, 300, 512, 576, 1000}) {
    std::vector<float> x = random_rows(1, cols, static_cast<uint32_t>(cols));
    for (int64_t b = 0; b < cols; b += 32) {
      const uint32_t kind = random() % 16;
      const int exponent = static_cast<int>(random() % 250) - 150;
      for (int64_t c = b; c < std::min(cols, b + 32); ++c) {
        float& value = x[static_cast<size_t>(c)];
        value = kind == 0 ? 0.0f : std::ldexp(value, kind < 4 ? exponent : 0);
        if (kind == 5) value = static_cast<float>(static_cast<int>(random() % 255) - 127) + 0.5f;
        if (kind == 6 && c % 32 == 5) value = std::numeric_limits<float>::infinity();
        if (kind == 7 && c % 32 == 9) value = -std::numeric_limits<float>::quiet_NaN();
      }
    }
    for (IsaLevel isa : levels())
      for (ActivationMode mode : {ActivationMode::int8, ActivationMode::int16}) {
        const Prepared row(mode, x, 1, cols, isa);
        const StoredIntegers coarse(row.view.data, cols);
        const StoredIntegers fine(
            mode == ActivationMode::int16 ? row.view.data + row.view.stride / 2 : row.view.data, cols);
        for (int64_t b = 0; b < prepared_blocks(cols); ++b) {
          const auto at = static_cast<size_t>(b);
          float largest = 0;
          bool finite = true;
          for (int64_t c = 32 * b; c < std::min(cols, 32 * b + 32); ++c) {
            finite = finite && std::isfinite(x[static_cast<size_t>(c)]);
            largest = std::max(largest, std::fabs(x[static_cast<size_t>(c)]));
          }
          const bool rounded = finite && largest >= 0x1p-120f;
          const float scale = rounded ? largest / 127.0f : 0.0f;
          if (finite) {
            EXPECT_EQ(coarse.scales[at], scale) << cols << " block " << b;
          } else {
            EXPECT_FALSE(std::isfinite(coarse.scales[at])) << cols << " block " << b;
          }
          int sum[2] = {}, rest_sum[2] = {};
          for (int64_t c = 32 * b; c < std::min(prepared_cols(cols), 32 * b + 32); ++c) {
            const float value = rounded && c < cols ? x[static_cast<size_t>(c)] * (127.0f / largest) : 0.0f;
            const float code = std::nearbyint(value), rest = std::nearbyint((value - code) * 254.0f);
            ASSERT_EQ(coarse.codes[static_cast<size_t>(c)], code) << cols << " column " << c;
            sum[c / 16 % 2] += static_cast<int>(code);
            rest_sum[c / 16 % 2] += static_cast<int>(rest);
            if (mode != ActivationMode::int16) continue;
            ASSERT_EQ(fine.codes[static_cast<size_t>(c)], rest) << cols << " column " << c;
          }
          const auto check_sums = [&](const StoredIntegers& plane, float by, const int(&of)[2]) {
            EXPECT_EQ(plane.code_sums[2 * at], of[0]);
            EXPECT_EQ(plane.code_sums[2 * at + 1], of[1]);
            if (!finite) return;
            EXPECT_EQ(plane.sums[at], by * static_cast<float>(of[0] + of[1]));
          };
          check_sums(coarse, scale, sum);
          if (mode != ActivationMode::int16) continue;
          EXPECT_EQ(fine.scales[at], scale * (1.0f / 254.0f));
          check_sums(fine, scale * (1.0f / 254.0f), rest_sum);
        }
      }
  }
}

TEST(PrepareActivations, NonFiniteInputsShowInTheResult) {
  ThreadTeam team(1);
  const RandomWeight weight(StorageFormat::q4_0, 16, 64, 3);
  PackedWeight packed(weight.source(), team);
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (IsaLevel isa : levels()) {
      std::vector<float> input = random_rows(1, 64, 5);
      input[40] = bad;
      const Prepared x(ActivationMode::int8, input, 1, 64, isa);
      for (float y : multiply(packed.matrix, x.view, isa)) EXPECT_FALSE(std::isfinite(y));
    }
}

TEST(PrepareActivations, Bf16IsBaseRounding) {
  const std::vector<float> x = random_rows(1, 77, 9);
  for (IsaLevel isa : levels()) {
    const Prepared row(ActivationMode::bf16, x, 1, 77, isa);
    for (size_t i = 0; i < 96; ++i) {
      uint16_t bits;
      std::memcpy(&bits, row.view.data + 2 * i, 2);
      EXPECT_EQ(bits, i < 77 ? f32_to_bf16(x[i]) : 0);
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
