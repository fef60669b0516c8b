#include "kv/codecs/codec_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "kv/codecs/mla_layout.h"
#include "kv/codecs/rotation_tables.h"

namespace kvasir::kv {
namespace {

#include "kv/codecs/block_access-inl.h"

std::string_view label(PlaneRole role) {
  return role == PlaneRole::key ? "keys" : "values";
}

void check_bits(int bits, std::initializer_list<int> valid, std::string_view codec, PlaneRole role) {
  if (std::find(valid.begin(), valid.end(), bits) == valid.end())
    throw_error(ErrorCode::invalid_input, "{} codec of the KV {}: {} bits are not supported ({})", codec,
                label(role), bits, fmt::join(valid, ", "));
}

void check_rotation(int dim, std::string_view codec, PlaneRole role) {
  if (rotation_signs(dim) == nullptr)
    throw_error(ErrorCode::invalid_input,
                "{} codec of the KV {}: head_dim {} must be one of 64, 128, 256, 512", codec, label(role),
                dim);
}

// Canonical bytes of a token's row: codes as a little-endian stream of `bits` each.
void pack_stream(const uint8_t* codes, int count, int bits, std::byte* out) {
  uint32_t pending = 0;
  int have = 0;
  for (int i = 0; i < count; ++i) {
    pending |= static_cast<uint32_t>(codes[i] & ((1u << bits) - 1u)) << have;
    for (have += bits; have >= 8; have -= 8, pending >>= 8) *out++ = static_cast<std::byte>(pending & 0xFFu);
  }
}
void unpack_stream(const std::byte* in, int count, int bits, uint8_t* codes) {
  uint32_t pending = 0;
  int have = 0;
  for (int i = 0; i < count; ++i) {
    for (; have < bits; have += 8) pending |= static_cast<uint32_t>(*in++) << have;
    codes[i] = static_cast<uint8_t>(pending & ((1u << bits) - 1u));
    pending >>= bits;
    have -= bits;
  }
}

// The three parts of one head's row inside a token's canonical bytes.
struct RowParts {
  std::byte* codes;
  std::byte* scales;
  std::byte* offsets;
};

// Calls move(offset in the block, offset in the canonical row, bytes) for the pieces of a token's plain row
// that are contiguous in both; the sizes are constants, so that a move is a load and a store. Restoring a
// stored conversation spends its time here.
template <typename Move>
void each_plain_piece(const PlaneFormat& f, int slot, const Move& move) {
  const size_t dim = static_cast<size_t>(f.dim), token = static_cast<size_t>(slot);
  constexpr std::integral_constant<size_t, 2> k2;
  constexpr std::integral_constant<size_t, 4> k4;
  const bool keys = f.role == PlaneRole::key;
  if (f.codec.plain == Dtype::bf16 && keys) {
    for (size_t pair = 0; pair < dim / 2; ++pair) move((pair * kBlockTokens + token) * 4, pair * 4, k4);
    if (dim % 2 != 0) move(((dim / 2) * kBlockTokens + token) * 4, dim * 2 - 2, k2);
  } else if (f.codec.plain == Dtype::bf16) {
    const size_t at = (token / 2) * dim * 4 + token % 2 * 2;
    for (size_t c = 0; c < dim; ++c) move(at + c * 4, c * 2, k2);
  } else if (f.codec.plain == Dtype::f32) {
    const size_t at = keys ? token * 4 : token * dim * 4, step = keys ? kBlockTokens * 4 : 4;
    for (size_t c = 0; c < dim; ++c) move(at + c * step, c * 4, k4);
  } else {
    const size_t at = keys ? token * 2 : token * dim * 2, step = keys ? kBlockTokens * 2 : 2;
    for (size_t c = 0; c < dim; ++c) move(at + c * step, c * 2, k2);
  }
}

void export_row(const PlaneFormat& f, const std::byte* block, int slot, const RowParts& out) {
  if (f.plain()) {
    each_plain_piece(f, slot, [&](size_t in_block, size_t in_row, auto size) {
      memcpy(out.codes + in_row, block + in_block, size);
    });
    return;
  }
  TokenCodes token;
  get_codes(f, block, slot, token);
  pack_stream(token.codes, f.dim, f.codec.bits, out.codes);
  const size_t size = static_cast<size_t>(f.scale_size);
  for (int g = 0; g < f.groups; ++g) {
    memcpy(out.scales + static_cast<size_t>(g) * size, &token.scales[g], size);
    if (f.has_offset) memcpy(out.offsets + static_cast<size_t>(g) * size, &token.offsets[g], size);
  }
}

void import_row(const PlaneFormat& f, std::byte* block, int slot, const RowParts& in) {
  if (f.plain()) {
    each_plain_piece(f, slot, [&](size_t in_block, size_t in_row, auto size) {
      memcpy(block + in_block, in.codes + in_row, size);
    });
    if (f.codec.plain == Dtype::bf16 && f.role == PlaneRole::key && f.dim % 2 != 0)
      memset(block + plain_offset(f, slot, f.dim), 0, 2);
    return;
  }
  TokenCodes token = {};
  unpack_stream(in.codes, f.dim, f.codec.bits, token.codes);
  const size_t size = static_cast<size_t>(f.scale_size);
  for (int g = 0; g < f.groups; ++g) {
    memcpy(&token.scales[g], in.scales + static_cast<size_t>(g) * size, size);
    if (f.has_offset) memcpy(&token.offsets[g], in.offsets + static_cast<size_t>(g) * size, size);
  }
  put_codes(f, block, slot, token);
}

void copy_row(const PlaneFormat& f, const std::byte* from, std::byte* to, int slot) {
  if (f.plain()) {
    each_plain_piece(
        f, slot, [&](size_t in_block, size_t, auto size) { memcpy(to + in_block, from + in_block, size); });
    if (f.codec.plain == Dtype::bf16 && f.role == PlaneRole::key && f.dim % 2 != 0)
      memcpy(to + plain_offset(f, slot, f.dim), from + plain_offset(f, slot, f.dim), 2);
    return;
  }
  TokenCodes token = {};
  get_codes(f, from, slot, token);
  put_codes(f, to, slot, token);
}

void read_plain(const PlaneFormat& f, const std::byte* block, int slot, float* out) {
  for (int i = 0; i < f.dim; ++i) {
    const std::byte* at = block + plain_offset(f, slot, i);
    if (f.codec.plain == Dtype::f32) {
      memcpy(out + i, at, 4);
    } else {
      uint16_t bits;
      memcpy(&bits, at, 2);
      out[i] = f.codec.plain == Dtype::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
  }
}

size_t round_block(size_t bytes) {
  return align_up(bytes, kCacheLine);
}

}  // namespace

PlaneFormat make_plane_format(const PlaneCodec& codec, PlaneRole role, int dim) {
  using Kind = PlaneCodec::Kind;
  const auto is_float = [](Dtype type) {
    return type == Dtype::f32 || type == Dtype::f16 || type == Dtype::bf16;
  };
  if (dim <= 0 || dim > 65536)
    throw_error(ErrorCode::invalid_input, "KV {}: head_dim {} is out of range", label(role), dim);
  if (!is_float(codec.plain))
    throw_error(ErrorCode::invalid_input, "KV {}: plain type {} is not f32, f16 or bf16", label(role),
                name(codec.plain));
  PlaneFormat f;
  f.codec = codec;
  f.role = role;
  f.dim = dim;
  const size_t size = size_of(codec.plain), d = static_cast<size_t>(dim);
  if (codec.kind == Kind::plain) {
    const size_t padded = role == PlaneRole::key && codec.plain == Dtype::bf16 ? (d + 1) / 2 * 2 : d;
    f.row_code_bytes = d * size;
    f.code_bytes = padded * kBlockTokens * size;
    f.scale_offset = f.offset_offset = f.code_bytes;
    f.block_bytes = round_block(f.code_bytes);
    return f;
  }
  if (codec.kind == Kind::affine) {
    check_bits(codec.bits, {2, 3, 4, 5, 6, 8}, "affine", role);
    if (codec.group != 32 && codec.group != 64 && codec.group != 128)
      throw_error(ErrorCode::invalid_input,
                  "affine codec of the KV {}: group {} is not supported (32, 64, 128)", label(role),
                  codec.group);
    if (dim % codec.group != 0)
      throw_error(ErrorCode::invalid_input,
                  "affine codec of the KV {}: group {} does not divide head_dim {}; choose a smaller group "
                  "or a plain type",
                  label(role), codec.group, dim);
    if (!is_float(codec.scale_dtype))
      throw_error(ErrorCode::invalid_input,
                  "affine codec of the KV {}: scale type {} is not f32, f16 or bf16", label(role),
                  name(codec.scale_dtype));
    f.group = codec.group;
    f.has_offset = true;
    f.scale_size = static_cast<int>(size_of(codec.scale_dtype));
  } else if (codec.kind == Kind::q_0 || codec.kind == Kind::rotated_q_0) {
    check_bits(codec.bits, {3, 4, 5, 6, 8}, "qN_0", role);
    if (codec.rotates()) check_rotation(dim, "rotated qN_0", role);
    if (dim % 32 != 0)
      throw_error(ErrorCode::invalid_input, "q{}_0 codec of the KV {}: group 32 does not divide head_dim {}",
                  codec.bits, label(role), dim);
    f.group = 32;
    f.signed_codes = codec.bits == 8;
    f.scale_size = 2;
  } else {
    const bool keys = codec.kind == Kind::turbo_key;
    const std::string_view codec_name = keys ? "turbo-key" : "rotated";
    if (keys) {
      check_bits(codec.bits, {2, 4, 5, 8}, codec_name, role);
    } else {
      check_bits(codec.bits, {2, 3, 4, 5, 8}, codec_name, role);
    }
    check_rotation(dim, codec_name, role);
    if (keys && role == PlaneRole::value)
      throw_error(ErrorCode::invalid_input,
                  "turbo-key codec: it encodes keys, not values; use rot for the values");
    f.group = 32;
    f.has_offset = keys;
    f.signed_codes = keys && codec.bits == 8;
    f.scale_size = 2;
  }
  if (dim > kMaxCodecDim)
    throw_error(ErrorCode::invalid_input, "KV {}: head_dim {} is above {}, the largest that can be quantized",
                label(role), dim, kMaxCodecDim);
  f.groups = dim / f.group;
  f.row_code_bytes = d * static_cast<size_t>(codec.bits) / 8;
  f.row_scale_bytes = static_cast<size_t>(f.groups * f.scale_size);
  f.code_bytes = f.row_code_bytes * kBlockTokens;
  f.scale_offset = f.code_bytes;
  f.offset_offset = f.scale_offset + f.row_scale_bytes * kBlockTokens;
  f.block_bytes = round_block(f.offset_offset + (f.has_offset ? f.row_scale_bytes * kBlockTokens : 0));
  return f;
}

CodecLayout::CodecLayout(const GroupGeometry& geometry, IsaLevel isa)
    : key_(make_plane_format(geometry.codec.k, PlaneRole::key, geometry.head_dim_k)),
      value_(make_plane_format(geometry.codec.v, PlaneRole::value, geometry.head_dim_v)),
      key_table_(make_decode_table(key_)),
      value_table_(make_decode_table(value_)),
      kernels_(codec_kernels(isa)) {
  geometry_ = geometry;
  if (geometry.codec.mla)
    throw_error(ErrorCode::invalid_input, "KV layer group: MLA latents without the geometry of MLA layers");
  if (geometry.layers <= 0 || geometry.kv_heads <= 0)
    throw_error(ErrorCode::invalid_input, "KV layer group: {} layers of {} heads; both must be positive",
                geometry.layers, geometry.kv_heads);
  if (geometry.page_tokens <= 0 || geometry.page_tokens > 4096 ||
      !std::has_single_bit(static_cast<unsigned>(geometry.page_tokens)))
    throw_error(ErrorCode::invalid_input, "KV page of {} tokens: it must be a power of two, 16 to 256",
                geometry.page_tokens);
  // Pages of fewer than 16 tokens (bookkeeping tests) use part of one block; attention needs whole blocks.
  const size_t blocks = static_cast<size_t>(std::max(1, geometry.page_tokens / kBlockTokens));
  values_offset_ = blocks * key_.block_bytes;
  head_bytes_ = values_offset_ + blocks * value_.block_bytes;
  const size_t heads = static_cast<size_t>(geometry.layers) * static_cast<size_t>(geometry.kv_heads);
  const bool slack = value_.dim % kBlockTokens != 0;
  page_bytes_ = align_up(heads * head_bytes_ + (slack ? kReadSlack : 0), 256);
  token_bytes_ = heads * (key_.row_bytes() + value_.row_bytes());
}

template <typename Visit>
void CodecLayout::for_each_plane(Visit visit) const {
  const size_t heads = static_cast<size_t>(geometry_.kv_heads);
  size_t at = 0;
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    for (const PlaneFormat* f : {&key_, &value_}) {
      const size_t scales = at + heads * f->row_code_bytes, offsets = scales + heads * f->row_scale_bytes;
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        const size_t h = static_cast<size_t>(head);
        visit(*f, layer, head, at + h * f->row_code_bytes, scales + h * f->row_scale_bytes,
              offsets + h * f->row_scale_bytes);
      }
      at += heads * f->row_bytes();
    }
  }
}

void CodecLayout::export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  KVASIR_CHECK(out.size() == static_cast<size_t>(count) * token_bytes_);
  // Plane after plane: the blocks of one head stay in the first-level cache while its tokens are moved.
  for_each_plane([&](const PlaneFormat& f, int layer, int head, size_t codes, size_t scales, size_t offsets) {
    std::byte* token = out.data();
    for (int slot = first; slot < first + count; ++slot, token += token_bytes_) {
      const std::byte* block = &f == &key_ ? key_block(page, layer, head, slot / kBlockTokens)
                                           : value_block(page, layer, head, slot / kBlockTokens);
      export_row(f, block, slot % kBlockTokens, {token + codes, token + scales, token + offsets});
    }
  });
}

void CodecLayout::import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  KVASIR_CHECK(in.size() == static_cast<size_t>(count) * token_bytes_);
  for_each_plane([&](const PlaneFormat& f, int layer, int head, size_t codes, size_t scales, size_t offsets) {
    std::byte* token = const_cast<std::byte*>(in.data());
    for (int slot = first; slot < first + count; ++slot, token += token_bytes_) {
      std::byte* block = &f == &key_ ? key_block(page, layer, head, slot / kBlockTokens)
                                     : value_block(page, layer, head, slot / kBlockTokens);
      import_row(f, block, slot % kBlockTokens, {token + codes, token + scales, token + offsets});
    }
  });
}

void CodecLayout::copy_tokens(const std::byte* from, std::byte* to, int first, int count) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  if (first == 0 && count == geometry_.page_tokens) {
    memcpy(to, from, page_bytes_);
    return;
  }
  for_each_plane([&](const PlaneFormat& f, int layer, int head, size_t, size_t, size_t) {
    for (int slot = first; slot < first + count;) {
      const int block = slot / kBlockTokens;
      const std::byte* source =
          &f == &key_ ? key_block(from, layer, head, block) : value_block(from, layer, head, block);
      std::byte* target =
          &f == &key_ ? key_block(to, layer, head, block) : value_block(to, layer, head, block);
      if (slot % kBlockTokens == 0 && slot + kBlockTokens <= first + count) {
        memcpy(target, source, f.block_bytes);
        slot += kBlockTokens;
      } else {
        copy_row(f, source, target, slot % kBlockTokens);
        ++slot;
      }
    }
  });
}

void CodecLayout::convert_tokens(const PageLayout& plain, const std::byte* from, std::byte* to, int first,
                                 int count) const {
  const auto* source = dynamic_cast<const CodecLayout*>(&plain);
  KVASIR_CHECK(source != nullptr && source->key_.plain() && source->value_.plain());
  KVASIR_CHECK(source->key_.dim == key_.dim && source->value_.dim == value_.dim);
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= geometry_.page_tokens);
  std::vector<float> x(static_cast<size_t>(std::max(key_.dim, value_.dim)));
  for_each_plane([&](const PlaneFormat& f, int layer, int head, size_t, size_t, size_t) {
    for (int slot = first; slot < first + count; ++slot) {
      const int block = slot / kBlockTokens, token = slot % kBlockTokens;
      const bool keys = &f == &key_;
      read_plain(
          keys ? source->key_ : source->value_,
          keys ? source->key_block(from, layer, head, block) : source->value_block(from, layer, head, block),
          token, x.data());
      kernels_.append(f, keys ? key_block(to, layer, head, block) : value_block(to, layer, head, block),
                      token, x.data());
    }
  });
}

std::unique_ptr<PageLayout> PageLayout::make(const GroupGeometry& geometry, IsaLevel isa) {
  if (geometry.mla) return std::make_unique<MlaLayout>(geometry);
  return std::make_unique<CodecLayout>(geometry, isa);
}

}  // namespace kvasir::kv
