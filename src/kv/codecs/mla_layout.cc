#include "kv/codecs/mla_layout.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/memory.h"
#include "kv/range_error.h"

namespace kvasir::kv {

MlaLayout::MlaLayout(const GroupGeometry& geometry) {
  if (!geometry.mla || !(geometry.codec == mla_codec()))
    throw_error(ErrorCode::invalid_input,
                "a page of MLA latents: the layers are not of MLA, or stored otherwise than in f32");
  if (geometry.layers <= 0 || geometry.kv_heads != 1 || geometry.head_dim_k <= 0 ||
      geometry.head_dim_v <= 0 || geometry.mla->dsa_dim < 0 ||
      (geometry.mla->mtp && geometry.mla->dsa_dim > 0))
    throw_error(ErrorCode::invalid_input,
                "MLA layer group: {} layers of {} heads, latent {}, rope {}, index {}: not possible",
                geometry.layers, geometry.kv_heads, geometry.head_dim_k, geometry.head_dim_v,
                geometry.mla->dsa_dim);
  if (geometry.page_tokens <= 0 || geometry.page_tokens > 4096 ||
      !std::has_single_bit(static_cast<unsigned>(geometry.page_tokens)))
    throw_error(ErrorCode::invalid_input, "KV page of {} tokens: it must be a power of two, 16 to 256",
                geometry.page_tokens);
  geometry_ = geometry;
  const int dims[3] = {geometry.head_dim_k, geometry.head_dim_v, geometry.mla->dsa_dim};
  size_t row = 0;
  for (size_t p = 0; p < 3; ++p) {
    row_bytes_[p] = static_cast<size_t>(dims[p]) * sizeof(float);
    plane_at_[p] = layer_bytes_;
    layer_bytes_ += align_up(static_cast<size_t>(geometry.page_tokens) * row_bytes_[p], 64);
    row += row_bytes_[p];
  }
  page_bytes_ = align_up(static_cast<size_t>(geometry.layers) * layer_bytes_, 256);
  token_bytes_ = static_cast<size_t>(geometry.layers) * row;
}

template <typename Visit>
void MlaLayout::for_each_plane(const Visit& visit) const {
  size_t at = 0;
  for (size_t layer = 0; layer < static_cast<size_t>(geometry_.layers); ++layer)
    for (size_t p = 0; p < 3; at += row_bytes_[p++])
      if (row_bytes_[p] > 0) visit(layer * layer_bytes_ + plane_at_[p], row_bytes_[p], at);
}

void MlaLayout::export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  KVASIR_CHECK(out.size() == static_cast<size_t>(count) * token_bytes_);
  for_each_plane([&](size_t plane, size_t row, size_t at) {
    const std::byte* from = page + plane + static_cast<size_t>(first) * row;
    for (int t = 0; t < count; ++t, from += row)
      std::memcpy(out.data() + static_cast<size_t>(t) * token_bytes_ + at, from, row);
  });
}

void MlaLayout::import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  KVASIR_CHECK(in.size() == static_cast<size_t>(count) * token_bytes_);
  for_each_plane([&](size_t plane, size_t row, size_t at) {
    std::byte* to = page + plane + static_cast<size_t>(first) * row;
    for (int t = 0; t < count; ++t, to += row)
      std::memcpy(to, in.data() + static_cast<size_t>(t) * token_bytes_ + at, row);
  });
}

void MlaLayout::copy_tokens(const std::byte* from, std::byte* to, int first, int count) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  for_each_plane([&](size_t plane, size_t row, size_t) {
    const size_t begin = plane + static_cast<size_t>(first) * row;
    std::memcpy(to + begin, from + begin, static_cast<size_t>(count) * row);
  });
}

void MlaLayout::convert_tokens(const PageLayout&, const std::byte*, std::byte*, int, int) const {
  KVASIR_CHECK_MSG(false, "MLA latents are never converted");
}

const MlaLayout& mla_layout(const RowPages& row) {
  const auto* layout = dynamic_cast<const MlaLayout*>(row.layout);
  if (layout == nullptr) throw_error(ErrorCode::invalid_input, "the pages are not those of MLA layers");
  return *layout;
}

void append_mla(const RowPages& row, int layer, int32_t position, int32_t count, const MlaTokens& tokens) {
  const MlaLayout& layout = mla_layout(row);
  const GroupGeometry& geometry = layout.geometry();
  const auto fits = [&](std::span<const float> plane, int dim) {
    return count >= 0 && plane.size() == static_cast<size_t>(count) * static_cast<size_t>(dim);
  };
  if (!fits(tokens.latent, layout.latent_dim()) || !fits(tokens.rope, layout.rope_dim()) ||
      !fits(tokens.dsa, layout.dsa_dim()))
    throw_error(
        ErrorCode::invalid_input,
        "KV geometry mismatch: expected {} tokens of [latent {}, rope {}, index {}], got {}, {} and {} "
        "numbers",
        count, layout.latent_dim(), layout.rope_dim(), layout.dsa_dim(), tokens.latent.size(),
        tokens.rope.size(), tokens.dsa.size());
  if (layer < 0 || layer >= geometry.layers)
    throw_error(ErrorCode::invalid_input, "MLA append to layer {} of a group of {}", layer, geometry.layers);
  if (position < 0) throw_error(ErrorCode::invalid_input, "MLA append at position {}", position);
  check_mla_append(geometry, position, count);
  const int32_t page = geometry.page_tokens;
  for (int32_t index = position / page; int64_t{index} * page < int64_t{position} + count; ++index)
    if (index >= row.page_count || row.pages[index] == nullptr)
      throw_error(ErrorCode::invalid_input, "MLA append at positions [{}, {}): the row has no page for {}",
                  position, position + count, int64_t{index} * page);
  for (int32_t done = 0; done < count;) {
    const int32_t slot = (position + done) % page, run = std::min(page - slot, count - done);
    std::byte* to = row.pages[(position + done) / page];
    const auto put = [&](float* plane, std::span<const float> from, int dim) {
      const auto width = static_cast<size_t>(dim);
      if (width == 0) return;
      std::memcpy(plane + static_cast<size_t>(slot) * width, from.data() + static_cast<size_t>(done) * width,
                  static_cast<size_t>(run) * width * sizeof(float));
    };
    put(layout.latent(to, layer), tokens.latent, layout.latent_dim());
    put(layout.rope(to, layer), tokens.rope, layout.rope_dim());
    put(layout.dsa(to, layer), tokens.dsa, layout.dsa_dim());
    done += run;
  }
}

}  // namespace kvasir::kv
