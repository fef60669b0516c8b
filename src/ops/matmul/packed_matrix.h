// A weight in a compute layout: what matmul multiplies with, and what embeddings are gathered from.
//
// The memory is the caller's (a span of an Arena), filled once by pack() and never changed. Values are
// exactly those of formats::dequantize_row, and the bytes at most 1.03x of the stored ones, but for the
// padding of the last panel: rows are held in panels of 16, so a matrix of few rows pays for up to 15 more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/thread_team.h"
#include "formats/storage_format.h"
#include "ops/matmul/compute_layout.h"

namespace kvasir::ops {

// Changes whenever pack() would write other bytes for some format: files of packed weights carry it.
inline constexpr uint32_t kComputeLayoutVersion = 2;

// What is packed into one matrix: sources stacked along their rows (out features) in the order given.
struct PackPart {
  formats::WeightSource source;
  // Row i of the packed part is row row_map[i] of the source; empty: the source's own order. Must name each
  // of its indices within [0, source.rows); its size is the number of rows packed.
  std::vector<int32_t> row_map;
  // Columns [col_begin, col_end) of the source (a shard of the in features), whole blocks; {0, 0}: all.
  int64_t col_begin = 0;
  int64_t col_end = 0;

  int64_t rows() const { return row_map.empty() ? source.rows : static_cast<int64_t>(row_map.size()); }
  int64_t cols() const { return col_end > col_begin ? col_end - col_begin : source.cols; }
};

enum class PartOrder : uint8_t {
  stacked,      // all rows of part 0, then all rows of part 1, ...
  interleaved,  // two parts of equal rows (gate, up): their panels alternate, each part padded to whole
                // panels
};

struct PackOptions {
  PartOrder order = PartOrder::stacked;
  // Told that these source bytes are not needed again (MappedFile::done). Called from every member.
  std::function<void(std::span<const std::byte>)> done_with;
};

class PackedMatrix {
 public:
  // Whether the parts can share one matrix: same layout and columns; when stacked, no scales of whole
  // tensors.
  static bool can_stack(std::span<const PackPart> parts, PartOrder order = PartOrder::stacked);
  // Bytes of the packed form, from shapes alone: exactly what pack() needs.
  static size_t packed_bytes(std::span<const PackPart> parts, PartOrder order = PartOrder::stacked);
  static size_t packed_bytes(const formats::WeightSource& source);

  // Packs on all members of the team. `memory` is 64-byte aligned and has packed_bytes(). Throws
  // Error{corrupt_file} for a scale or plain element that is not finite (naming tensor, row and block),
  // Error{unsupported} for formats without weights or parts that cannot be stacked.
  static PackedMatrix pack(std::span<const PackPart> parts, std::span<std::byte> memory, ThreadTeam& team,
                           const PackOptions& options = {});
  static PackedMatrix pack(const formats::WeightSource& source, std::span<std::byte> memory, ThreadTeam& team,
                           const PackOptions& options = {});

  // The matrix over memory that an earlier pack() of the same parts filled (a mapped file). The team hashes
  // it: digest() tells the caller whether the bytes are those.
  static PackedMatrix mapped(std::span<const PackPart> parts, std::span<const std::byte> memory,
                             ThreadTeam& team, PartOrder order = PartOrder::stacked);

  // The matrix that pack() would make, without memory: sizes and names are known, values are not (panel() and
  // unpack_row must not be used). Programs are planned with these before any weight is read.
  static PackedMatrix planned(std::span<const PackPart> parts, PartOrder order = PartOrder::stacked);

  PackedMatrix() = default;

  bool is_packed() const { return memory_ != nullptr; }
  const std::string& name() const { return name_; }  // of its tensors, joined with '+'
  const ComputeLayout& layout() const { return layout_; }
  formats::StorageFormat format() const { return format_; }  // of the first part
  int64_t rows() const { return rows_; }                     // out features, padding rows not counted
  int64_t cols() const { return cols_; }                     // in features
  int64_t padded_columns() const { return padded_cols(layout_, cols_); }
  int64_t panels() const { return panels_; }
  PartOrder order() const { return order_; }
  size_t panel_stride() const { return panel_stride_; }
  const std::byte* panel(int64_t index) const { return memory_ + static_cast<size_t>(index) * panel_stride_; }
  size_t bytes() const { return static_cast<size_t>(panels_) * panel_stride_; }
  size_t stored_bytes() const { return stored_bytes_; }  // of the sources
  // Multiplies the product's result. Of an interleaved matrix: the scale of its first or second part.
  float tensor_scale(int part = 0) const { return tensor_scales_[part]; }
  // XXH3-128 of the packed panels, combined in panel order: independent of threads and of the file's layout.
  const std::array<uint8_t, 16>& digest() const { return digest_; }

  // Values of row `row`, columns [col_begin, col_begin + out.size()), tensor_scale not applied: bit for bit
  // those of formats::dequantize_row. `row` counts the rows of the parts in their order, also when
  // interleaved.
  void unpack_row(int64_t row, int64_t col_begin, std::span<float> out,
                  IsaLevel isa = best_isa_level()) const;

  // The panel and lane that hold a row.
  struct Place {
    int64_t panel;
    int lane;
  };
  Place place(int64_t row) const {
    if (order_ == PartOrder::stacked) return {row / kPanelRows, static_cast<int>(row % kPanelRows)};
    const int64_t half = rows_ / 2, part = row / half, r = row % half;
    return {2 * (r / kPanelRows) + part, static_cast<int>(r % kPanelRows)};
  }

 private:
  // planned(), over memory of its size.
  static PackedMatrix placed(std::span<const PackPart> parts, std::span<const std::byte> memory,
                             PartOrder order);

  std::string name_;
  ComputeLayout layout_;
  formats::StorageFormat format_ = formats::StorageFormat::f32;
  PartOrder order_ = PartOrder::stacked;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t panels_ = 0;
  size_t panel_stride_ = 0;
  size_t stored_bytes_ = 0;
  float tensor_scales_[2] = {1.0f, 1.0f};
  std::array<uint8_t, 16> digest_{};
  const std::byte* memory_ = nullptr;
};

}  // namespace kvasir::ops
