#include "kv/planes.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace kvasir::kv {
namespace {

template <size_t N>
bool one_of(int value, const std::array<int, N>& valid) {
  return std::find(valid.begin(), valid.end(), value) != valid.end();
}

void add_planes(const PlaneCodec& codec, int head_dim, bool key, std::vector<Plane>& out) {
  const size_t channels = static_cast<size_t>(head_dim);
  const size_t bits = static_cast<size_t>(codec.bits);
  const size_t code_bytes = channels * bits / 8;
  const std::string side = key ? "K" : "V";
  switch (codec.kind) {
    case PlaneCodec::Kind::plain:
      out.push_back({side, std::string(name(codec.plain)), channels * size_of(codec.plain)});
      return;
    case PlaneCodec::Kind::affine: {
      const size_t scales = channels / static_cast<size_t>(codec.group) * size_of(codec.scale_dtype);
      out.push_back({side + "q", fmt::format("u{}", codec.bits), code_bytes});
      out.push_back({side + "s", std::string(name(codec.scale_dtype)), scales});
      out.push_back({side + "b", std::string(name(codec.scale_dtype)), scales});
      return;
    }
    case PlaneCodec::Kind::turbo_key: {
      const std::string prefix = key ? "k" : "v";
      out.push_back({prefix + "Idx", codec.bits == 8 ? "i8" : fmt::format("u{}", codec.bits), code_bytes});
      out.push_back({prefix + "Scales", "f16", channels / 32 * 2});
      out.push_back({prefix + "Zeros", "f16", channels / 32 * 2});
      return;
    }
    case PlaneCodec::Kind::rotated: {
      const std::string prefix = key ? "k" : "v";
      out.push_back({prefix + "Packed", fmt::format("u{}", codec.bits), code_bytes});
      out.push_back({prefix + "Scales", "f16", channels / 32 * 2});
      return;
    }
    case PlaneCodec::Kind::q_0:
    case PlaneCodec::Kind::rotated_q_0: {
      const std::string prefix = key ? "k" : "v";
      out.push_back({prefix + "Codes", codec.bits == 8 ? "i8" : fmt::format("u{}", codec.bits), code_bytes});
      out.push_back({prefix + "Scales", "f16", channels / 32 * 2});
      return;
    }
  }
}

std::string rotation_reason(int head_dim) {
  return fmt::format("the rotation takes a head_dim of 64, 128, 256 or 512, not {}", head_dim);
}

}  // namespace

std::vector<Plane> planes(const CodecPair& codec, int head_dim_k, int head_dim_v) {
  std::vector<Plane> list;
  add_planes(codec.k, head_dim_k, true, list);
  add_planes(codec.v, head_dim_v, false, list);
  return list;
}

std::vector<Plane> planes(const GroupGeometry& geometry) {
  if (!geometry.mla) return planes(geometry.codec, geometry.head_dim_k, geometry.head_dim_v);
  const auto plane = [](const char* plane_name, int dim) {
    return Plane{plane_name, std::string(name(Dtype::f32)), static_cast<size_t>(dim) * 4};
  };
  std::vector<Plane> list{plane("latent", geometry.head_dim_k), plane("rope", geometry.head_dim_v)};
  if (geometry.mla->dsa_dim > 0) list.push_back(plane("dsa", geometry.mla->dsa_dim));
  return list;
}

size_t plane_bytes(const PlaneCodec& codec, int head_dim) {
  std::vector<Plane> list;
  add_planes(codec, head_dim, true, list);
  size_t bytes = 0;
  for (const Plane& plane : list) bytes += plane.bytes;
  return bytes;
}

size_t token_bytes(const GroupGeometry& geometry) {
  size_t bytes = 0;
  for (const Plane& plane : planes(geometry)) bytes += plane.bytes;
  return static_cast<size_t>(geometry.layers) * static_cast<size_t>(geometry.kv_heads) * bytes;
}

std::string why_invalid(const PlaneCodec& codec, int head_dim) {
  static constexpr std::array<int, 4> kRotations = {64, 128, 256, 512};
  switch (codec.kind) {
    case PlaneCodec::Kind::plain:
      if (codec.plain == Dtype::f32 || codec.plain == Dtype::f16 || codec.plain == Dtype::bf16) return {};
      return fmt::format("a plain cache of {} is not offered (f32, f16, bf16)", name(codec.plain));
    case PlaneCodec::Kind::affine:
      if (!one_of(codec.bits, std::array{2, 3, 4, 5, 6, 8}))
        return fmt::format("affine with {} bits is not offered (2, 3, 4, 5, 6, 8)", codec.bits);
      if (!one_of(codec.group, std::array{32, 64, 128}))
        return fmt::format("affine with groups of {} is not offered (32, 64, 128)", codec.group);
      if (head_dim % codec.group != 0)
        return fmt::format("a group of {} does not divide head_dim {}", codec.group, head_dim);
      if (head_dim * codec.bits % 32 != 0)
        return fmt::format("{} bits of head_dim {} do not fill whole 32-bit words", codec.bits, head_dim);
      return {};
    case PlaneCodec::Kind::turbo_key:
      if (!one_of(codec.bits, std::array{2, 4, 5, 8}))
        return fmt::format("TurboQuant keys of {} bits are not offered (2, 4, 5, 8)", codec.bits);
      if (!one_of(head_dim, kRotations))
        return fmt::format("TurboQuant: head_dim {} must be one of 64, 128, 256, 512", head_dim);
      return {};
    case PlaneCodec::Kind::rotated:
      if (!one_of(codec.bits, std::array{2, 3, 4, 5, 8}))
        return fmt::format("no Lloyd-Max table for {} bits (2, 3, 4, 5, 8)", codec.bits);
      if (!one_of(head_dim, kRotations)) return rotation_reason(head_dim);
      return {};
    case PlaneCodec::Kind::rotated_q_0:
      if (!one_of(head_dim, kRotations)) return rotation_reason(head_dim);
      [[fallthrough]];
    case PlaneCodec::Kind::q_0:
      if (!one_of(codec.bits, std::array{3, 4, 5, 6, 8}) || codec.group != 32)
        return "qN_0 has 3, 4, 5, 6 or 8 bits and groups of 32";
      if (head_dim % 32 != 0) return fmt::format("a group of 32 does not divide head_dim {}", head_dim);
      return {};
  }
  return "unknown codec";
}

}  // namespace kvasir::kv
