#include "models/numerics_key.h"

#include <openssl/evp.h>

#include "base/digest.h"
#include "base/error.h"
#include "kv/cache_shape.h"

namespace kvasir::models {
namespace {

// What a codec's own text does not say.
std::string_view encoder(const kv::PlaneCodec& codec) {
  if (codec.gpu_compat) return "gpu_compat";
  return codec.guard ? "default" : "no-guard";
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
    out += fmt::format("kv{}={}\n", i, kv::describe(g.codec));
    out += fmt::format("kv{}_plain={}/{}\n", i, kvasir::name(g.codec.k.plain), kvasir::name(g.codec.v.plain));
    out += fmt::format("kv{}_encoder={}/{}\n", i, encoder(g.codec.k), encoder(g.codec.v));
    out += fmt::format("kv{}_shape=layers:{} heads:{} k:{} v:{} window:{} sinks:{}\n", i, g.layers,
                       g.kv_heads, g.head_dim_k, g.head_dim_v, g.window.value_or(0), g.sinks);
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
