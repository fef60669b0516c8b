#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/printable.h"
#include "kv/mlx_exchange.h"
#include "kv/restore.h"

namespace kvasir::kv {
namespace {

// How the rows of one plane come over.
struct Conversion {
  size_t plane = 0;    // of the layer
  bool words = false;  // packed codes: any bits
  Dtype from = Dtype::f32;
  Dtype to = Dtype::f32;  // `from`, or f32
};

float read_float(const std::byte* at, Dtype dtype) {
  if (dtype == Dtype::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == Dtype::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// Copies a row, widening it. False: some value is no finite number.
bool copy_row(std::span<const std::byte> from, const Conversion& how, std::byte* to) {
  if (how.words || how.from == how.to) std::memcpy(to, from.data(), from.size());
  if (how.words) return true;
  const size_t size = size_of(how.from);
  bool finite = true;
  for (size_t i = 0; i < from.size() / size; ++i) {
    const float value = read_float(from.data() + i * size, how.from);
    finite = finite && std::isfinite(value);
    if (how.from != how.to) std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
  return finite;
}

bool holds(Dtype to, Dtype from) {
  return to == from || to == Dtype::f32;
}

// Whether the plane codec keeps what the file has; widened, if at all.
bool holds(const PlaneCodec& to, const PlaneCodec& from) {
  if (to.kind != from.kind) return false;
  if (to.kind == PlaneCodec::Kind::plain) return holds(to.plain, from.plain);
  return to.kind == PlaneCodec::Kind::affine && to.bits == from.bits && to.group == from.group &&
         holds(to.scale_dtype, from.scale_dtype);
}

void list_plane(const PlaneCodec& to, const PlaneCodec& from, std::vector<Conversion>& out) {
  if (to.kind == PlaneCodec::Kind::plain) {
    out.push_back({.plane = out.size(), .from = from.plain, .to = to.plain});
    return;
  }
  out.push_back({.plane = out.size(), .words = true});
  for (int i = 0; i < 2; ++i)
    out.push_back({.plane = out.size(), .from = from.scale_dtype, .to = to.scale_dtype});
}

// The tokens of a layer must have been computed as the cache's own are: seen by those that the window lets
// see them.
void check_window(const MlxCacheFile& file, size_t index, const GroupGeometry& geometry) {
  const MlxLayer& layer = file.layers()[index];
  const bool ring = layer.kind == MlxLayer::Kind::rotating;
  const int32_t tokens = layer.offset;
  // Nothing has been left behind, here or there.
  if ((!ring || tokens <= layer.window) && (!geometry.window || tokens <= *geometry.window)) return;
  const auto refuse = [&](const std::string& there, const std::string& here) {
    throw_error(ErrorCode::invalid_input,
                "{}: layer {} has seen {} tokens {}, and {} here: its keys and values are not this model's",
                file.path(), index, tokens, there, here);
  };
  const std::string here =
      geometry.window
          ? fmt::format("has a window of {}{}", *geometry.window,
                        geometry.sinks > 0 ? fmt::format(" and the first {}", geometry.sinks) : "")
          : std::string("sees all of them");
  if (!ring) refuse("without a window", here);
  if (!geometry.window || *geometry.window != layer.window || geometry.sinks != layer.keep)
    refuse(fmt::format("in a ring of {} that keeps the first {}", layer.window, layer.keep), here);
  if (layer.first > std::max(0, tokens - (*geometry.window - 1)))
    throw_error(ErrorCode::corrupt_file, "{}: layer {} begins at token {} of {}, inside its window of {}",
                file.path(), index, layer.first, tokens, *geometry.window);
}

void check_layer(const MlxCacheFile& file, size_t index, const GroupGeometry& geometry) {
  const MlxLayer& layer = file.layers()[index];
  if (geometry.mla)
    throw_error(
        ErrorCode::unsupported,
        "{}: layer {} stores MLA latents, and mlx-lm's caches of keys and values cannot be taken for them",
        file.path(), index);
  if (layer.kv_heads != geometry.kv_heads || layer.head_dim_k != geometry.head_dim_k ||
      layer.head_dim_v != geometry.head_dim_v)
    throw_error(ErrorCode::invalid_input,
                "{}: layer {} has {} heads of {} and {} channels (keys and values), and the model has {} of "
                "{} and {}",
                file.path(), index, layer.kv_heads, layer.head_dim_k, layer.head_dim_v, geometry.kv_heads,
                geometry.head_dim_k, geometry.head_dim_v);
  check_window(file, index, geometry);
  if (!holds(geometry.codec.k, layer.codec.k) || !holds(geometry.codec.v, layer.codec.v))
    throw_error(
        ErrorCode::invalid_input,
        "{}: layer {} is {}, which a cache of {} cannot hold as it is: use --kv {} (for this layer alone: "
        "--kv-layer {}={})",
        file.path(), index, fitting_codec(layer), describe(geometry.codec), fitting_codec(layer), index,
        fitting_codec(layer));
}

}  // namespace

std::string fitting_codec(const MlxLayer& layer) {
  const auto plane = [](const PlaneCodec& codec) {
    return codec.kind == PlaneCodec::Kind::plain
               ? std::string(name(codec.plain))
               : fmt::format("affine:{}:{}:{}", codec.bits, codec.group, name(codec.scale_dtype));
  };
  const std::string k = plane(layer.codec.k), v = plane(layer.codec.v);
  return k == v ? k : k + "/" + v;
}

Sequence import_mlx_cache(KvCache& cache, const MlxCacheFile& file, ThreadTeam* team) {
  const CacheShape& shape = cache.shape();
  const std::span<const MlxLayer> layers = file.layers();
  if (layers.size() != shape.group_of.size())
    throw_error(ErrorCode::invalid_input, "{}: {} cached layers but model has {}", file.path(), layers.size(),
                shape.group_of.size());
  if (cache.states().bytes_per_slot() > 0)
    throw_error(ErrorCode::unsupported, "{}: the model has recurrent layers, whose state cannot be imported",
                file.path());
  const int32_t offset = file.offset();
  StoredRow stored = {.offset = offset, .first = std::vector<int32_t>(shape.groups.size(), 0)};
  // Before `start` the encoded layers of a row are plain.
  const auto converts = [&](size_t layer) {
    return shape.converts(static_cast<size_t>(shape.group_of[layer]));
  };
  if (shape.converts()) {
    bool quantized = false, plain = false;
    for (size_t i = 0; i < layers.size(); ++i)
      if (converts(i)) (layers[i].kind == MlxLayer::Kind::quantized ? quantized : plain) = true;
    stored.encoded = quantized;
    if (quantized && plain)
      throw_error(ErrorCode::invalid_input,
                  "{}: some of the layers that --kv encodes are quantized, and others are not", file.path());
    if (quantized ? offset < shape.start : offset > shape.start)
      throw_error(
          ErrorCode::invalid_input,
          "{}: {} tokens are {}, and --kv-start keeps the first {} of a row plain until it has them all",
          file.path(), offset, quantized ? "quantized" : "plain", shape.start);
    if (quantized) stored.min_reusable = shape.start;
  }
  std::vector<std::vector<Conversion>> planes;  // [layers]
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto g = static_cast<size_t>(shape.group_of[i]);
    const GroupGeometry& geometry = cache.layout(g, stored.encoded).geometry();
    check_layer(file, i, geometry);
    // W tokens stay stored.
    if (geometry.window)
      stored.first[g] = std::max({stored.first[g], layers[i].first, offset - *geometry.window});
    std::vector<Conversion>& list = planes.emplace_back();
    list_plane(geometry.codec.k, layers[i].codec.k, list);
    list_plane(geometry.codec.v, layers[i].codec.v, list);
  }
  std::string source =
      fmt::format("{}, {}", std::filesystem::path(file.path()).filename().string(), name(file.form()));
  for (const auto& [key, value] : file.metadata())
    if (key == "model" && value.size() <= 1000) source += fmt::format(", model {}", printable(value));
  stored.origin = {.engine = std::string(kMlxLm), .source = std::move(source)};

  const auto read = [&](size_t g, int32_t first, int32_t count, std::span<std::byte> out) {
    const LayerGroup& group = shape.groups[g];
    std::byte* to = out.data();
    for (int32_t position = first; position < first + count; ++position)
      for (const int owner : group.owners) {
        const auto layer = static_cast<size_t>(owner);
        for (const Conversion& how : planes[layer])
          for (int head = 0; head < group.geometry.kv_heads; ++head) {
            const std::span<const std::byte> row = file.row(layer, how.plane, head, position);
            if (!copy_row(row, how, to))
              throw_error(ErrorCode::corrupt_file, "{}: layer {}, token {}: a value is no finite number",
                          file.path(), layer, position);
            to +=
                how.words || how.from == how.to ? row.size() : row.size() / size_of(how.from) * sizeof(float);
          }
      }
    KVASIR_CHECK(to == out.data() + out.size());
  };
  return fill_sequence(cache, stored, read, team);
}

}  // namespace kvasir::kv
