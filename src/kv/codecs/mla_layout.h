// The page of an MLA group: f32 rows, plane after plane, in memory as in files (kv-cache.md 2.1 with one
// head).
//
//   page = layers x { latent [P][R], rope [P][R_rope], dsa [P][D_idx] (with an indexer) }, each plane at a
//   multiple of 64 bytes, the page a multiple of 256.
//
// A plane is a dense row-major matrix of the page's P slots: an op that attends reads latent(page, layer)
// with a stride of latent_dim() floats from slot to slot, and takes position p from slot p % P of
// RowPages::pages[p / P]. Slots at and beyond the visible end hold anything (NaN in poisoned pages): what is
// read of them must not enter arithmetic.
#pragma once

#include <span>

#include "kv/page_layout.h"
#include "kv/step_view.h"

namespace kvasir::kv {

class MlaLayout final : public PageLayout {
 public:
  // Throws Error{invalid_input}: not an MLA group, or with another codec than mla_codec().
  explicit MlaLayout(const GroupGeometry& geometry);

  void export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const override;
  void import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const override;
  void copy_tokens(const std::byte* from, std::byte* to, int first, int count) const override;
  // MLA rows never convert: Error{internal}.
  void convert_tokens(const PageLayout& plain, const std::byte* from, std::byte* to, int first,
                      int count) const override;

  int latent_dim() const { return geometry_.head_dim_k; }
  int rope_dim() const { return geometry_.head_dim_v; }
  int dsa_dim() const { return geometry_.mla->dsa_dim; }  // 0: no indexer

  // [P][latent_dim()], [P][rope_dim()], [P][dsa_dim()] of a layer (index inside the group).
  template <typename Byte>
  auto latent(Byte* page, int layer) const {
    return plane(page, layer, 0);
  }
  template <typename Byte>
  auto rope(Byte* page, int layer) const {
    return plane(page, layer, 1);
  }
  template <typename Byte>
  auto dsa(Byte* page, int layer) const {
    return plane(page, layer, 2);
  }

 private:
  template <typename Byte>
  auto plane(Byte* page, int layer, size_t index) const {
    using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
    return reinterpret_cast<Float*>(page + static_cast<size_t>(layer) * layer_bytes_ + plane_at_[index]);
  }
  // Calls visit(place in the page, bytes of a row, place in the canonical token) for every layer and plane.
  template <typename Visit>
  void for_each_plane(const Visit& visit) const;

  size_t row_bytes_[3] = {};  // of latent, rope and dsa; 0: none
  size_t plane_at_[3] = {};
  size_t layer_bytes_ = 0;
};

// The layout of a row's pages, if they are of an MLA group. Throws Error{invalid_input}.
const MlaLayout& mla_layout(const RowPages& row);

// New tokens of one layer: latent [count, R], rope [count, R_rope], dsa [count, D_idx] (empty without an
// indexer).
struct MlaTokens {
  std::span<const float> latent;
  std::span<const float> rope;
  std::span<const float> dsa = {};
};
// Writes them at positions [position, position + count) of a row that a step has reserved. All or nothing
// over the planes: everything is checked before anything is written. Throws Error{invalid_input} for planes
// of another size ("KV geometry mismatch"), a layer that is not in the group, and positions without pages,
// KvRangeError beyond the group's max_tokens. What is written becomes part of the sequence when its step
// commits.
void append_mla(const RowPages& row, int layer, int32_t position, int32_t count, const MlaTokens& tokens);

}  // namespace kvasir::kv
