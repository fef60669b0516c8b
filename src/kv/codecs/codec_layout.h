// The page layout of every codec pair: for each layer and head, the K blocks of the page's tokens, then the V
// blocks (plane.h says what a block is).
#pragma once

#include "kv/codecs/codec_kernels.h"
#include "kv/codecs/decode_table.h"
#include "kv/codecs/plane.h"
#include "kv/page_layout.h"

namespace kvasir::kv {

class CodecLayout final : public PageLayout {
 public:
  CodecLayout(const GroupGeometry& geometry, IsaLevel isa);

  void export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const override;
  void import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const override;
  void copy_tokens(const std::byte* from, std::byte* to, int first, int count) const override;
  void convert_tokens(const PageLayout& plain, const std::byte* from, std::byte* to, int first,
                      int count) const override;

  // Encodes one head of one token: k [head_dim_k], v [head_dim_v] f32, into slot `slot` of a page.
  void append(std::byte* page, int layer, int head, int slot, const float* k, const float* v) const {
    kernels_.append(key_, key_block(page, layer, head, slot / kBlockTokens), slot % kBlockTokens, k);
    kernels_.append(value_, value_block(page, layer, head, slot / kBlockTokens), slot % kBlockTokens, v);
  }

  // K blocks and V blocks of one layer and head lie side by side in a page.
  size_t head_bytes() const { return head_bytes_; }

  const PlaneFormat& key() const { return key_; }
  const PlaneFormat& value() const { return value_; }
  const DecodeTable& key_table() const { return key_table_; }
  const DecodeTable& value_table() const { return value_table_; }
  template <typename Byte>
  Byte* key_block(Byte* page, int layer, int head, int block) const {
    return page + static_cast<size_t>(layer * geometry_.kv_heads + head) * head_bytes_ +
           static_cast<size_t>(block) * key_.block_bytes;
  }
  template <typename Byte>
  Byte* value_block(Byte* page, int layer, int head, int block) const {
    return page + static_cast<size_t>(layer * geometry_.kv_heads + head) * head_bytes_ + values_offset_ +
           static_cast<size_t>(block) * value_.block_bytes;
  }

 private:
  // Calls visit(format, block, canonical bytes of the plane's part in a token) for every plane of a token.
  template <typename Visit>
  void for_each_plane(Visit visit) const;

  PlaneFormat key_, value_;
  DecodeTable key_table_, value_table_;
  const CodecKernels& kernels_;
  size_t head_bytes_ = 0, values_offset_ = 0;
};

}  // namespace kvasir::kv
