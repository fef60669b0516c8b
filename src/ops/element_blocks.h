// How an element-wise op shares its work: rows are cut into blocks of columns, so that one row (decode) keeps
// the whole team busy.
#pragma once

#include <cstdint>

#include "program/op.h"

namespace kvasir::ops {

inline constexpr int64_t kElementBlock =
    256;  // columns; a multiple of every vector length and of a cache line

// Calls work(row, first column, columns) for this member's share of `rows` rows of `width` elements.
template <typename Work>
void for_each_block(const program::OpContext& context, int64_t rows, int64_t width, Work&& work) {
  const int64_t per_row = (width + kElementBlock - 1) / kElementBlock;
  const WorkRange range = split_work(rows * per_row, context.members, context.member);
  for (int64_t i = range.begin; i < range.end;) {
    // Neighbouring blocks of one row are handed out together.
    const int64_t row = i / per_row, block = i % per_row;
    const int64_t blocks = range.end - i < per_row - block ? range.end - i : per_row - block;
    const int64_t first = block * kElementBlock;
    const int64_t last = (block + blocks) * kElementBlock;
    work(row, first, (last < width ? last : width) - first);
    i += blocks;
  }
}

}  // namespace kvasir::ops
