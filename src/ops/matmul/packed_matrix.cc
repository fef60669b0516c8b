#include "ops/matmul/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "base/digest.h"
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
  if (!PackedMatrix::can_stack(parts, order))
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

template <typename Bits>
uint8_t* put_scales(const RowChunk* rows, int plane, int groups, uint8_t* out) {
  for (int g = 0; g < groups; ++g)
    for (int lane = 0; lane < kPanelRows; ++lane, out += sizeof(Bits)) {
      const auto bits = static_cast<Bits>(plane == 0 ? rows[lane].scales[g] : rows[lane].minima[g]);
      std::memcpy(out, &bits, sizeof bits);
    }
  return out;
}

void pack_zeros(bool nibbles, int groups, const RowChunk* rows, uint8_t* out) {
  for (int g = 0; g < groups; g += nibbles ? 2 : 1, out += kPanelRows)
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const uint32_t* zero = rows[lane].minima + g;
      out[lane] = static_cast<uint8_t>(nibbles && g + 1 < groups ? zero[0] | zero[1] << 4 : zero[0]);
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
  for (int plane = 0; plane < (layout.minima && !layout.zeros ? 2 : 1); ++plane) {
    switch (layout.scales) {
      case ScaleKind::f16:
      case ScaleKind::bf16:
        out = put_scales<uint16_t>(rows, plane, groups, out);
        break;
      case ScaleKind::f32:
        out = put_scales<uint32_t>(rows, plane, groups, out);
        break;
      default:
        out = put_scales<uint8_t>(rows, plane, groups, out);
    }
  }
  if (layout.zeros) pack_zeros(layout.bits <= 4, groups, rows, out);
}

// Sixteen streams of dwords as one: out [dword][16].
void interleave(const uint8_t* const* streams, size_t dwords, uint8_t* out) {
  for (size_t w = 0; w < dwords; ++w, out += 64)
    for (int lane = 0; lane < kPanelRows; ++lane) std::memcpy(out + 4 * lane, streams[lane] + 4 * w, 4);
}

void pack_code_chunk(const ComputeLayout& layout, int cols, const RowChunk* rows, uint8_t* out) {
  const uint8_t* streams[kPanelRows];
  if (layout.codes == CodeKind::trits || layout.codes == CodeKind::grid) {
    for (int lane = 0; lane < kPanelRows; ++lane)
      streams[lane] = reinterpret_cast<const uint8_t*>(rows[lane].dwords);
    interleave(streams, code_bytes(layout, cols) / 64, out);
  } else {
    alignas(64) uint8_t quads[kChunkCols / 4 * 64];
    for (int lane = 0; lane < kPanelRows; ++lane) streams[lane] = rows[lane].codes;
    interleave(streams, static_cast<size_t>(cols) / 4, quads);
    for (int block = 0; block < cols / kBlockCols; ++block)
      pack_planes(layout.bits, quads + 512 * block, out + 64 * layout.bits * block);
  }
  pack_scales(layout, cols, rows, out + code_bytes(layout, cols));
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

// The first element whose exponent bits are all set, or -1.
template <typename Bits>
int64_t find_non_finite(const uint8_t* row, int64_t count, Bits exponent) {
  Bits any = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, row + static_cast<size_t>(i) * sizeof bits, sizeof bits);
    any = static_cast<Bits>(any | ((bits & exponent) == exponent));
  }
  if (any == 0) return -1;
  for (int64_t i = 0;; ++i) {
    Bits bits;
    std::memcpy(&bits, row + static_cast<size_t>(i) * sizeof bits, sizeof bits);
    if ((bits & exponent) == exponent) return i;
  }
}

int64_t find_non_finite(CodeKind kind, const uint8_t* row, int64_t count) {
  if (kind == CodeKind::f32) return find_non_finite<uint32_t>(row, count, 0x7F800000u);
  return find_non_finite<uint16_t>(row, count, kind == CodeKind::bf16 ? uint16_t{0x7F80} : uint16_t{0x7C00});
}

// A chunk at a time, so that sixteen rows are read in pieces that the first-level cache holds.
void pack_plain_panel(const ComputeLayout& layout, int64_t cols, const PanelRows& rows, uint8_t* out) {
  static constexpr uint8_t kZeros[kChunkCols * 4] = {};
  const auto size = static_cast<size_t>(layout.bits / 8);
  alignas(64) float narrowed[kPanelRows][kChunkCols];    // of f64 sources
  alignas(64) uint8_t last[kPanelRows][kChunkCols * 4];  // an odd last column of bf16, padded
  for (int64_t col = 0; col < cols; col += kChunkCols) {
    const auto count = static_cast<size_t>(std::min<int64_t>(kChunkCols, cols - col));
    const uint8_t* streams[kPanelRows];
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const PackPart* part = rows.part[lane];
      streams[lane] = kZeros;
      if (part == nullptr) continue;
      const WeightSource& source = part->source;
      const auto* row = reinterpret_cast<const uint8_t*>(source.data) +
                        static_cast<size_t>(rows.row[lane]) * source.row_bytes;
      const auto first = static_cast<size_t>(part->col_begin + col);
      streams[lane] = row + first * size;
      if (source.format == formats::StorageFormat::f64) {
        for (size_t c = 0; c < count; ++c) {
          double value;
          std::memcpy(&value, row + (first + c) * 8, 8);
          narrowed[lane][c] = static_cast<float>(value);
        }
        streams[lane] = reinterpret_cast<const uint8_t*>(narrowed[lane]);
      }
      const int64_t bad = find_non_finite(layout.codes, streams[lane], static_cast<int64_t>(count));
      if (bad >= 0) refuse_non_finite(*part, rows.row[lane], col + bad);
      if (layout.codes == CodeKind::bf16 && count % 2 != 0) {
        std::memcpy(last[lane], streams[lane], count * 2);
        std::memset(last[lane] + count * 2, 0, 2);
        streams[lane] = last[lane];
      }
    }
    if (layout.codes == CodeKind::f16) {
      for (size_t c = 0; c < count; ++c, out += 32)
        for (int lane = 0; lane < kPanelRows; ++lane) std::memcpy(out + 2 * lane, streams[lane] + 2 * c, 2);
    } else {
      const size_t dwords = (count * size + 3) / 4;
      interleave(streams, dwords, out);
      out += 64 * dwords;
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
      if (source.reader != nullptr) continue;  // its rows may lie across the whole of the file's tensor
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

// The digest of a matrix from those of its panels, in order.
Digest128 combine(const std::vector<Digest128>& panels) {
  return xxh3_128(std::as_bytes(std::span(panels)));
}

}  // namespace

bool PackedMatrix::can_stack(std::span<const PackPart> parts, PartOrder order) {
  if (parts.empty()) return false;
  const PackPart& first = parts.front();
  const ComputeLayout layout = compute_layout(first.source);
  const bool stacked = order == PartOrder::stacked;
  if (stacked && parts.size() > 1 &&
      std::any_of(parts.begin(), parts.end(), [](const PackPart& part) { return part.source.own_scale; }))
    return false;
  return std::all_of(parts.begin() + 1, parts.end(), [&](const PackPart& part) {
    return compute_layout(part.source) == layout && part.cols() == first.cols() &&
           (!stacked || part.source.tensor_scale == first.source.tensor_scale);
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
  matrix.tensor_scales_[0] = parts.front().source.tensor_scale;
  matrix.tensor_scales_[1] = parts[order == PartOrder::interleaved ? 1 : 0].source.tensor_scale;
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

PackedMatrix PackedMatrix::placed(std::span<const PackPart> parts, std::span<const std::byte> memory,
                                  PartOrder order) {
  PackedMatrix matrix = planned(parts, order);
  matrix.memory_ = memory.data();
  KVASIR_CHECK_MSG(memory.size() == matrix.bytes(), "{}: {} bytes of memory for {}", matrix.name_,
                   memory.size(), matrix.bytes());
  KVASIR_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kCacheLine == 0);
  return matrix;
}

PackedMatrix PackedMatrix::pack(std::span<const PackPart> parts, std::span<std::byte> memory,
                                ThreadTeam& team, const PackOptions& options) {
  PackedMatrix matrix = placed(parts, memory, options.order);

  std::vector<Digest128> hashes(static_cast<size_t>(matrix.panels_));
  team.run([&](int member) {
    Release release(parts, options);
    const WorkRange range = split_work(matrix.panels_, team.size(), member);
    for (int64_t panel = range.begin; panel < range.end; ++panel) {
      const PanelRows rows = rows_of_panel(parts, options.order, panel);
      auto* out =
          reinterpret_cast<uint8_t*>(memory.data()) + static_cast<size_t>(panel) * matrix.panel_stride_;
      pack_panel(matrix.layout_, matrix.cols_, rows, out, matrix.panel_stride_);
      hashes[static_cast<size_t>(panel)] =
          xxh3_128({reinterpret_cast<const std::byte*>(out), matrix.panel_stride_});
      release.add(rows);
    }
    release.flush();
  });
  matrix.digest_ = combine(hashes);
  return matrix;
}

PackedMatrix PackedMatrix::mapped(std::span<const PackPart> parts, std::span<const std::byte> memory,
                                  ThreadTeam& team, PartOrder order) {
  PackedMatrix matrix = placed(parts, memory, order);
  std::vector<Digest128> hashes(static_cast<size_t>(matrix.panels_));
  team.run([&](int member) {
    const WorkRange range = split_work(matrix.panels_, team.size(), member);
    for (int64_t panel = range.begin; panel < range.end; ++panel)
      hashes[static_cast<size_t>(panel)] = xxh3_128({matrix.panel(panel), matrix.panel_stride_});
  });
  matrix.digest_ = combine(hashes);
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
