#include "models/numerics_key.h"

#include <openssl/evp.h>

#include "base/digest.h"
#include "base/error.h"

namespace kvasir::models {
namespace {

std::string_view name(kv::PlaneCodec::Kind kind) {
  switch (kind) {
    case kv::PlaneCodec::Kind::plain:
      return "plain";
    case kv::PlaneCodec::Kind::affine:
      return "affine";
    case kv::PlaneCodec::Kind::turbo_key:
      return "turbo-key";
    case kv::PlaneCodec::Kind::rotated:
      return "rotated";
    case kv::PlaneCodec::Kind::q_0:
      return "q_0";
    case kv::PlaneCodec::Kind::rotated_q_0:
      return "rotated-q_0";
  }
  return "?";
}

std::string text(const kv::PlaneCodec& codec) {
  std::string out = fmt::format("{}:{}", name(codec.kind), kvasir::name(codec.plain));
  if (codec.kind != kv::PlaneCodec::Kind::plain)
    out += fmt::format(":{}:{}:{}", codec.bits, codec.group, kvasir::name(codec.scale_dtype));
  if (codec.gpu_compat) out += ":gpu_compat";
  if (!codec.guard) out += ":no-guard";
  return out;
}

}  // namespace

std::string canonical_text(const NumericsParts& parts) {
  std::string out;
  out += fmt::format("kernels={}\n", kKernelSetVersion);
  out += fmt::format("weights={}\n", parts.weights);
  out += fmt::format("config={}\n", parts.config);
  out += fmt::format("activations={}\n", parts.activations);
  out += fmt::format("kv_start={}\n", parts.kv_start);
  for (size_t i = 0; i < parts.kv.size(); ++i) {
    // The size of a page is left out: which page holds a token does not show in any bit.
    const kv::GroupGeometry& g = parts.kv[i];
    out += fmt::format("kv{}=layers:{} heads:{} k:{}:{} v:{}:{} window:{} sinks:{}\n", i, g.layers,
                       g.kv_heads, g.head_dim_k, text(g.codec.k), g.head_dim_v, text(g.codec.v),
                       g.window.value_or(0), g.sinks);
  }
  out += fmt::format("isa={}\n", kvasir::name(parts.isa));
  out += fmt::format("device={}\n", parts.device);
  out += fmt::format("tensor_parallel={}\n", parts.tensor_parallel);
  out += fmt::format("rope={}\n", parts.rope);
  out += fmt::format("adapter={}\n", parts.adapter);
  return out;
}

NumericsKey::NumericsKey(const NumericsParts& parts) {
  const std::string content = canonical_text(parts);
  unsigned length = 0;
  const int ok = EVP_Digest(content.data(), content.size(), bytes_.data(), &length, EVP_sha256(), nullptr);
  KVASIR_CHECK(ok == 1 && length == bytes_.size());
}

std::string NumericsKey::hex() const {
  return kvasir::hex(bytes_);
}

}  // namespace kvasir::models
