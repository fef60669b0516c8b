#include "ops/matmul/packed_matrix.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/memory.h"
#include "ops/matmul/kernels.h"
#include "ops/matmul/row_chunk.h"

namespace kvasir::ops {
namespace {

using formats::WeightSource;

// Source bytes between two calls of PackOptions::done_with.
constexpr size_t kReleaseBytes = size_t{1} << 20;

PackPart whole(const WeightSource& source) {
  PackPart part;
  part.source = source;
  return part;
}

int64_t panels_of(std::span<const PackPart> parts, PartOrder order) {
  int64_t rows = 0;
  for (const PackPart& part : parts) rows += part.rows();
  if (order == PartOrder::stacked) return (rows + kPanelRows - 1) / kPanelRows;
  return 2 * ((rows / 2 + kPanelRows - 1) / kPanelRows);
}

void check_parts(std::span<const PackPart> parts, PartOrder order) {
  KVASIR_CHECK(!parts.empty());
  for (const PackPart& part : parts) {
    const WeightSource& source = part.source;
    if (source.rows <= 0 || source.cols <= 0 || part.rows() <= 0)
      throw_error(ErrorCode::corrupt_file,
                  "{}: a weight of shape [{}, {}], expected at least one row and column",
                  printable(source.name), source.rows, source.cols);
    for (int32_t row : part.row_map) KVASIR_CHECK(row >= 0 && row < source.rows);
    if (part.col_end > part.col_begin) {
      const formats::StorageFormatInfo& format = formats::info(source.format);
      const int multiple = format.block_elements > 0 ? format.block_elements : source.group_size;
      if (part.col_begin < 0 || part.col_end > source.cols || part.col_begin % multiple != 0 ||
          part.col_end % multiple != 0)
        throw_error(
            ErrorCode::unsupported,
            "{}: columns {} to {} cannot be taken out of {} columns of {}, whole blocks of {} are needed",
            printable(source.name), part.col_begin, part.col_end, source.cols, format.name, multiple);
    }
  }
  if (!PackedMatrix::can_stack(parts))
    throw_error(ErrorCode::unsupported,
                "{} and {}: different formats or widths cannot be packed into one matrix",
                printable(parts.front().source.name), printable(parts.back().source.name));
  if (order == PartOrder::interleaved) KVASIR_CHECK(parts.size() == 2 && parts[0].rows() == parts[1].rows());
}

// Where the 16 rows of a panel come from; a lane without a row has part == nullptr.
struct PanelRows {
  const PackPart* part[kPanelRows];
  int64_t row[kPanelRows];  // of the part
};

PanelRows rows_of_panel(std::span<const PackPart> parts, PartOrder order, int64_t panel) {
  PanelRows rows{};
  const auto source_row = [](const PackPart& part, int64_t row) {
    return part.row_map.empty() ? row : static_cast<int64_t>(part.row_map[static_cast<size_t>(row)]);
  };
  if (order == PartOrder::interleaved) {
    const PackPart& part = parts[static_cast<size_t>(panel % 2)];
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t row = panel / 2 * kPanelRows + lane;
      if (row >= part.rows()) break;
      rows.part[lane] = &part;
      rows.row[lane] = source_row(part, row);
    }
    return rows;
  }
  size_t index = 0;
  int64_t row = panel * kPanelRows;
  while (index < parts.size() && row >= parts[index].rows()) row -= parts[index++].rows();
  for (int lane = 0; lane < kPanelRows && index < parts.size(); ++lane) {
    rows.part[lane] = &parts[index];
    rows.row[lane] = source_row(parts[index], row);
    if (++row == parts[index].rows()) {
      row = 0;
      ++index;
    }
  }
  return rows;
}

// Bit planes of one block: quads [8][64] -> bits * 64 bytes (compute_layout.h).
void pack_planes(int bits, const uint8_t* quads, uint8_t* out) {
  const auto nibbles = [&] {
    for (int i = 0; i < 4; ++i, out += 64)
      for (int j = 0; j < 64; ++j)
        out[j] = static_cast<uint8_t>((quads[64 * i + j] & 15) | (quads[64 * (i + 4) + j] & 15) << 4);
  };
  const auto pairs = [&](int shift) {
    for (int i = 0; i < 2; ++i, out += 64)
      for (int j = 0; j < 64; ++j) {
        const uint8_t* q = quads + 256 * i + j;
        out[j] = static_cast<uint8_t>(((q[0] >> shift) & 3) | ((q[64] >> shift) & 3) << 2 |
                                      ((q[128] >> shift) & 3) << 4 | ((q[192] >> shift) & 3) << 6);
      }
  };
  const auto singles = [&](int shift) {
    for (int j = 0; j < 64; ++j) {
      unsigned byte = 0;
      for (int q = 0; q < 8; ++q) byte |= ((quads[64 * q + j] >> shift) & 1u) << q;
      out[j] = static_cast<uint8_t>(byte);
    }
    out += 64;
  };
  switch (bits) {
    case 1:
      return singles(0);
    case 2:
      return pairs(0);
    case 3:
      pairs(0);
      return singles(2);
    case 4:
      return nibbles();
    case 5:
      nibbles();
      return singles(4);
    case 6:
      nibbles();
      return pairs(4);
    default:
      std::memcpy(out, quads, 512);
  }
}

void put16(uint8_t* out, uint32_t value) {
  const auto bits = static_cast<uint16_t>(value);
  std::memcpy(out, &bits, 2);
}

// Sixteen 6-bit fields of each row as three dwords: five in each, the last split over their top bits.
void pack_six_bit_fields(const RowChunk* rows, bool with_minima, uint8_t* out) {
  for (int lane = 0; lane < kPanelRows; ++lane) {
    const RowChunk& row = rows[lane];
    const auto field = [&](int i) -> uint32_t {
      return with_minima && i >= 8 ? row.sub_minima[i - 8] : row.sub_scales[i];
    };
    for (int w = 0; w < 3; ++w) {
      uint32_t word = ((field(15) >> (2 * w)) & 3u) << 30;
      for (int i = 0; i < 5; ++i) word |= field(5 * w + i) << (6 * i);
      std::memcpy(out + 64 * w + 4 * lane, &word, 4);
    }
  }
}

void pack_scales(const ComputeLayout& layout, int cols, const RowChunk* rows, uint8_t* out) {
  const auto d = [&] {
    for (int lane = 0; lane < kPanelRows; ++lane, out += 2) put16(out, rows[lane].d);
  };
  const auto dmin = [&] {
    for (int lane = 0; lane < kPanelRows; ++lane, out += 2) put16(out, rows[lane].dmin);
  };
  switch (layout.scales) {
    case ScaleKind::none:
      return;
    case ScaleKind::k4:
      pack_six_bit_fields(rows, true, out);
      out += 192;
      d();
      return dmin();
    case ScaleKind::k3:
      pack_six_bit_fields(rows, false, out);
      out += 192;
      return d();
    case ScaleKind::k6:
      for (int g = 0; g < 16; ++g)
        for (int lane = 0; lane < kPanelRows; ++lane) *out++ = rows[lane].sub_scales[g];
      return d();
    case ScaleKind::k2:
      for (int g = 0; g < 16; ++g)
        for (int lane = 0; lane < kPanelRows; ++lane)
          *out++ = static_cast<uint8_t>(rows[lane].sub_scales[g] | rows[lane].sub_minima[g] << 4);
      d();
      return dmin();
    case ScaleKind::iq4_xs:
      for (int lane = 0; lane < kPanelRows; ++lane) {
        const uint8_t* s = rows[lane].sub_scales;
        const uint32_t word =
            s[0] | s[1] << 6 | s[2] << 12 | s[3] << 18 | s[4] << 24 | static_cast<uint32_t>(s[7] >> 4) << 30;
        std::memcpy(out + 4 * lane, &word, 4);
        put16(out + 64 + 2 * lane, static_cast<uint32_t>(s[5] | s[6] << 6 | (s[7] & 15) << 12));
      }
      out += 96;
      return d();
    case ScaleKind::grid:
      if (layout.grid != formats::StorageFormat::iq1_m) d();
      return;
    default:
      break;
  }
  const int groups = (cols + layout.group - 1) / layout.group;
  for (int plane = 0; plane < (layout.minima ? 2 : 1); ++plane)
    for (int g = 0; g < groups; ++g)
      for (int lane = 0; lane < kPanelRows; ++lane) {
        const uint32_t bits = plane == 0 ? rows[lane].scales[g] : rows[lane].minima[g];
        switch (layout.scales) {
          case ScaleKind::f16:
          case ScaleKind::bf16:
            put16(out, bits);
            out += 2;
            break;
          case ScaleKind::f32:
            std::memcpy(out, &bits, 4);
            out += 4;
            break;
          default:
            *out++ = static_cast<uint8_t>(bits);
        }
      }
}

void pack_code_chunk(const ComputeLayout& layout, int cols, const RowChunk* rows, uint8_t* out) {
  if (layout.codes == CodeKind::trits || layout.codes == CodeKind::grid) {
    const size_t dwords = code_bytes(layout, cols) / 64;
    for (size_t w = 0; w < dwords; ++w)
      for (int lane = 0; lane < kPanelRows; ++lane, out += 4) std::memcpy(out, &rows[lane].dwords[w], 4);
  } else {
    alignas(64) uint8_t quads[8 * 64];
    for (int block = 0; block < cols / kBlockCols; ++block, out += 64 * layout.bits) {
      for (int lane = 0; lane < kPanelRows; ++lane)
        for (int q = 0; q < 8; ++q)
          std::memcpy(quads + 64 * q + 4 * lane, rows[lane].codes + kBlockCols * block + 4 * q, 4);
      pack_planes(layout.bits, quads, out);
    }
  }
  pack_scales(layout, cols, rows, out);
}

// Element (row, col) of a plain source as the bits that the layout holds.
uint32_t plain_bits(const WeightSource& source, int64_t row, int64_t col) {
  const std::byte* data = source.data + static_cast<size_t>(row) * source.row_bytes;
  switch (source.format) {
    case formats::StorageFormat::f64: {
      double value;
      std::memcpy(&value, data + static_cast<size_t>(col) * 8, 8);
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    }
    case formats::StorageFormat::f32: {
      uint32_t bits;
      std::memcpy(&bits, data + static_cast<size_t>(col) * 4, 4);
      return bits;
    }
    default: {
      uint16_t bits;
      std::memcpy(&bits, data + static_cast<size_t>(col) * 2, 2);
      return bits;
    }
  }
}

[[noreturn]] void refuse_non_finite(const PackPart& part, int64_t row, int64_t col) {
  const formats::StorageFormatInfo& format = formats::info(part.source.format);
  const int block = format.block_elements > 0 ? format.block_elements : part.source.group_size;
  throw_error(ErrorCode::corrupt_file,
              "{}: row {}, {} {}: {} not finite ({}), expected finite numbers: the file is damaged or was "
              "badly converted",
              printable(part.source.name), row, block > 1 ? "block" : "column",
              (part.col_begin + col) / block, block > 1 ? "a scale is" : "an element is", format.name);
}

void pack_plain_panel(const ComputeLayout& layout, int64_t cols, const PanelRows& rows, uint8_t* out) {
  const int64_t padded = padded_cols(layout, cols);
  const bool pairs = layout.codes == CodeKind::bf16;
  const uint32_t exponent = layout.codes == CodeKind::f32    ? 0x7F800000u
                            : layout.codes == CodeKind::bf16 ? 0x7F80u
                                                             : 0x7C00u;
  const size_t size = layout.codes == CodeKind::f32 ? 4 : 2;
  std::memset(out, 0, static_cast<size_t>(padded) * kPanelRows * size);
  for (int lane = 0; lane < kPanelRows; ++lane) {
    const PackPart* part = rows.part[lane];
    if (part == nullptr) continue;
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t bits = plain_bits(part->source, rows.row[lane], part->col_begin + c);
      if ((bits & exponent) == exponent) refuse_non_finite(*part, rows.row[lane], c);
      const int64_t at = pairs ? (c / 2 * kPanelRows + lane) * 2 + c % 2 : c * kPanelRows + lane;
      std::memcpy(out + static_cast<size_t>(at) * size, &bits, size);
    }
  }
}

void pack_panel(const ComputeLayout& layout, int64_t cols, const PanelRows& rows, uint8_t* out,
                size_t stride) {
  if (layout.codes == CodeKind::f32 || layout.codes == CodeKind::f16 || layout.codes == CodeKind::bf16) {
    pack_plain_panel(layout, cols, rows, out);
    const size_t used = static_cast<size_t>(padded_cols(layout, cols)) * kPanelRows * layout.bits / 8;
    std::memset(out + used, 0, stride - used);
    return;
  }
  RowChunk chunks[kPanelRows];
  uint8_t* const end = out + stride;
  for (int64_t col = 0; col < cols; col += kChunkCols) {
    const int count = static_cast<int>(std::min<int64_t>(kChunkCols, cols - col));
    const int padded = static_cast<int>(padded_cols(layout, count));
    for (int lane = 0; lane < kPanelRows; ++lane) {
      RowChunk& chunk = chunks[lane];
      const PackPart* part = rows.part[lane];
      if (part == nullptr) {
        if (col == 0) chunk = RowChunk{};
        continue;
      }
      if (count != padded) chunk = RowChunk{};
      extract(part->source, layout, rows.row[lane], part->col_begin + col, count, chunk);
      const int bad = non_finite_column(layout, count, chunk);
      if (bad >= 0) refuse_non_finite(*part, rows.row[lane], col + bad);
    }
    const size_t bytes = chunk_bytes(layout, padded);
    // The bytes that align a chunk are zero, so that digests are a function of the weight.
    if (bytes >= kCacheLine) std::memset(out + bytes - kCacheLine, 0, kCacheLine);
    pack_code_chunk(layout, padded, chunks, out);
    out += bytes;
  }
  std::memset(out, 0, static_cast<size_t>(end - out));
}

// The source rows that one member has packed since it last gave pages back.
class Release {
 public:
  Release(std::span<const PackPart> parts, const PackOptions& options) : options_(options) {
    ranges_.resize(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) ranges_[i] = {&parts[i], 0, 0};
  }
  void add(const PanelRows& rows) {
    if (!options_.done_with) return;
    for (int lane = 0; lane < kPanelRows; ++lane) {
      if (rows.part[lane] == nullptr) continue;
      for (Range& range : ranges_) {
        if (range.part != rows.part[lane]) continue;
        const int64_t row = rows.row[lane];
        range.begin = range.begin == range.end ? row : std::min(range.begin, row);
        range.end = std::max(range.end, row + 1);
        pending_ += range.part->source.row_bytes;
      }
    }
    if (pending_ >= kReleaseBytes) flush();
  }
  void flush() {
    if (!options_.done_with) return;
    for (Range& range : ranges_) {
      if (range.begin == range.end) continue;
      const WeightSource& source = range.part->source;
      const auto first = static_cast<size_t>(range.begin),
                 count = static_cast<size_t>(range.end - range.begin);
      options_.done_with({source.data + first * source.row_bytes, count * source.row_bytes});
      if (source.scales != nullptr && source.group_size > 0) {
        const size_t row = static_cast<size_t>(source.cols / source.group_size) * size_of(source.scale_dtype);
        options_.done_with({source.scales + first * row, count * row});
        if (source.biases != nullptr) options_.done_with({source.biases + first * row, count * row});
      }
      range.begin = range.end = 0;
    }
    pending_ = 0;
  }

 private:
  struct Range {
    const PackPart* part;
    int64_t begin;
    int64_t end;
  };
  const PackOptions& options_;
  std::vector<Range> ranges_;
  size_t pending_ = 0;
};

}  // namespace

bool PackedMatrix::can_stack(std::span<const PackPart> parts) {
  if (parts.empty()) return false;
  const PackPart& first = parts.front();
  const ComputeLayout layout = compute_layout(first.source);
  return std::all_of(parts.begin() + 1, parts.end(), [&](const PackPart& part) {
    return compute_layout(part.source) == layout && part.cols() == first.cols() &&
           part.source.tensor_scale == first.source.tensor_scale;
  });
}

size_t PackedMatrix::packed_bytes(std::span<const PackPart> parts, PartOrder order) {
  KVASIR_CHECK(!parts.empty());
  return static_cast<size_t>(panels_of(parts, order)) *
         panel_bytes(compute_layout(parts.front().source), parts.front().cols());
}

size_t PackedMatrix::packed_bytes(const WeightSource& source) {
  const PackPart part = whole(source);
  return packed_bytes({&part, 1});
}

PackedMatrix PackedMatrix::pack(const WeightSource& source, std::span<std::byte> memory, ThreadTeam& team,
                                const PackOptions& options) {
  const PackPart part = whole(source);
  return pack({&part, 1}, memory, team, options);
}

PackedMatrix PackedMatrix::planned(std::span<const PackPart> parts, PartOrder order) {
  check_parts(parts, order);
  PackedMatrix matrix;
  matrix.layout_ = compute_layout(parts.front().source);
  matrix.format_ = parts.front().source.format;
  matrix.order_ = order;
  matrix.cols_ = parts.front().cols();
  matrix.tensor_scale_ = parts.front().source.tensor_scale;
  for (const PackPart& part : parts) {
    matrix.name_ += (matrix.name_.empty() ? "" : "+") + part.source.name;
    matrix.rows_ += part.rows();
    matrix.stored_bytes_ +=
        static_cast<size_t>(static_cast<double>(part.source.stored_bytes()) *
                            static_cast<double>(part.rows()) / static_cast<double>(part.source.rows) *
                            static_cast<double>(part.cols()) / static_cast<double>(part.source.cols));
  }
  matrix.panels_ = panels_of(parts, order);
  matrix.panel_stride_ = panel_bytes(matrix.layout_, matrix.cols_);
  return matrix;
}

PackedMatrix PackedMatrix::pack(std::span<const PackPart> parts, std::span<std::byte> memory,
                                ThreadTeam& team, const PackOptions& options) {
  PackedMatrix matrix = planned(parts, options.order);
  matrix.memory_ = memory.data();
  KVASIR_CHECK_MSG(memory.size() == matrix.bytes(), "{}: {} bytes of memory for {}", matrix.name_,
                   memory.size(), matrix.bytes());
  KVASIR_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kCacheLine == 0);

  std::vector<XXH128_hash_t> hashes(static_cast<size_t>(matrix.panels_));
  team.run([&](int member) {
    Release release(parts, options);
    const WorkRange range = split_work(matrix.panels_, team.size(), member);
    for (int64_t panel = range.begin; panel < range.end; ++panel) {
      const PanelRows rows = rows_of_panel(parts, options.order, panel);
      auto* out =
          reinterpret_cast<uint8_t*>(memory.data()) + static_cast<size_t>(panel) * matrix.panel_stride_;
      pack_panel(matrix.layout_, matrix.cols_, rows, out, matrix.panel_stride_);
      hashes[static_cast<size_t>(panel)] = XXH3_128bits(out, matrix.panel_stride_);
      release.add(rows);
    }
    release.flush();
  });
  const XXH128_hash_t hash = XXH3_128bits(hashes.data(), hashes.size() * sizeof(hashes[0]));
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::memcpy(matrix.digest_.data(), canonical.digest, matrix.digest_.size());
  return matrix;
}

void PackedMatrix::unpack_row(int64_t row, int64_t col_begin, std::span<float> out, IsaLevel isa) const {
  KVASIR_CHECK(row >= 0 && row < rows_ && col_begin >= 0 &&
               col_begin + static_cast<int64_t>(out.size()) <= cols_);
  const Place at = place(row);
  matmul_kernels(isa).unpack_lane(kernel_weight(*this), at.panel, at.lane, col_begin,
                                  static_cast<int64_t>(out.size()), out.data());
}

}  // namespace kvasir::ops
