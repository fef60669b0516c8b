// Where the bytes of a token lie inside a page, for one group geometry and one instruction-set level.
//
// The byte form of one token's row is canonical (kv-cache.md 2.1): it is what is hashed, saved and compared.
// The arrangement inside a page in memory is this class's business alone (keys interleaved for the vector
// width, values paired, ...): the attention and append kernels and export/import below are the only code that
// knows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/isa.h"
#include "kv/geometry.h"

namespace kvasir::kv {

class PageLayout {
 public:
  // Throws Error{invalid_input} naming the reason when a codec cannot take the head dims (group does not
  // divide, rotation size).
  static std::unique_ptr<PageLayout> make(const GroupGeometry& geometry, IsaLevel isa);
  virtual ~PageLayout() = default;

  const GroupGeometry& geometry() const { return geometry_; }
  size_t page_bytes() const {
    return page_bytes_;
  }  // one page: page_tokens positions of all layers of the group, in memory
  size_t token_bytes() const {
    return token_bytes_;
  }  // canonical bytes of one token: all layers, K planes then V planes

  // What a token takes in memory for one layer: its share of a page.
  double layer_token_bytes() const {
    return static_cast<double>(page_bytes_) / geometry_.page_tokens / geometry_.layers;
  }

  // Canonical bytes of slots [first, first + count) of a page, token after token; each token: layer by layer,
  // the planes in the order of kv-cache.md 2.1, each plane head by head. out.size() == count * token_bytes().
  virtual void export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const = 0;
  virtual void import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const = 0;

  // Copies slots verbatim between two pages of this layout (copy-on-write of a partial page).
  virtual void copy_tokens(const std::byte* from, std::byte* to, int first, int count) const = 0;

  // Encodes slots [first, first + count) of a plain page into a page of this layout (delayed conversion).
  // `plain` has the same geometry with both planes Kind::plain of this codec's plain dtypes.
  virtual void convert_tokens(const PageLayout& plain, const std::byte* from, std::byte* to, int first,
                              int count) const = 0;

 protected:
  GroupGeometry geometry_;
  size_t page_bytes_ = 0;
  size_t token_bytes_ = 0;
};

}  // namespace kvasir::kv
