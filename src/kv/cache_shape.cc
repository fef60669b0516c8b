#include "kv/cache_shape.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/memory.h"
#include "kv/state_pool.h"

namespace kvasir::kv {
namespace {

int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

uint32_t page_count(int64_t pages) {
  if (pages < 0 || pages >= static_cast<int64_t>(kNoPage))
    throw_error(ErrorCode::invalid_input,
                "KV plan needs {} pages, more than the {} that a pool can number: plan a shorter "
                "context or a smaller batch",
                pages, kNoPage - 1);
  return static_cast<uint32_t>(pages);
}

void check_mla(const LayerGeometry& owner, const CodecPair& codec) {
  if (!owner.mla && !codec.mla) return;
  if (!owner.mla || !(codec == mla_codec()))
    throw_error(ErrorCode::invalid_input,
                "layer {}: {} stores {}: MLA latents are stored in f32, and nothing else is stored so",
                owner.layer, owner.mla ? "an MLA layer" : "a layer of keys and values", describe(codec));
  if (owner.kv_heads != 1 || owner.window || owner.mla->dsa_dim < 0 || owner.mla->max_tokens <= 0)
    throw_error(ErrorCode::invalid_input,
                "layer {}: MLA geometry [{} heads, latent {}, rope {}, index {}, at most {} tokens{}] is not "
                "possible",
                owner.layer, owner.kv_heads, owner.head_dim_k, owner.head_dim_v, owner.mla->dsa_dim,
                owner.mla->max_tokens, owner.window ? ", a window" : "");
  if (owner.mla->mtp && owner.mla->dsa_dim > 0)
    throw_error(ErrorCode::invalid_input, "layer {}: a native MTP cache cannot hold DSA state (index {})",
                owner.layer, owner.mla->dsa_dim);
}

}  // namespace

bool CacheShape::converts() const {
  for (size_t g = 0; g < groups.size(); ++g)
    if (converts(g)) return true;
  return false;
}

CacheShape group_layers(std::span<const LayerGeometry> owners, std::span<const CodecPair> codecs,
                        int page_tokens, int32_t start, size_t state_bytes, bool apart) {
  KVASIR_CHECK(owners.size() == codecs.size());
  if (page_tokens < 1 || page_tokens > 65536 || !std::has_single_bit(static_cast<unsigned>(page_tokens)))
    throw_error(ErrorCode::invalid_input,
                "KV page of {} tokens: expected a power of two (16 to 256 on the command line)", page_tokens);
  if (start < 0) throw_error(ErrorCode::invalid_input, "--kv-start {}: expected 0 or more tokens", start);
  CacheShape shape;
  shape.page_tokens = page_tokens;
  shape.start = start;
  shape.state_bytes = state_bytes;
  for (size_t i = 0; i < owners.size(); ++i) {
    const LayerGeometry& owner = owners[i];
    if (owner.kv_heads <= 0 || owner.head_dim_k <= 0 || owner.head_dim_v <= 0 ||
        (owner.window && *owner.window <= 0) || owner.sinks < 0 ||
        (owner.window && owner.sinks >= *owner.window))
      throw_error(ErrorCode::invalid_input,
                  "layer {}: KV geometry [{} heads, {}/{}, window {}, {} sinks] is not possible", owner.layer,
                  owner.kv_heads, owner.head_dim_k, owner.head_dim_v, owner.window.value_or(0), owner.sinks);
    check_mla(owner, codecs[i]);
    GroupGeometry geometry{.layers = 0,
                           .kv_heads = owner.kv_heads,
                           .head_dim_k = owner.head_dim_k,
                           .head_dim_v = owner.head_dim_v,
                           .window = owner.window,
                           .sinks = owner.window ? owner.sinks : 0,
                           .codec = codecs[i],
                           .page_tokens = page_tokens,
                           .mla = owner.mla};
    size_t g = apart ? shape.groups.size() : 0;
    for (; g < shape.groups.size(); ++g) {
      geometry.layers = shape.groups[g].geometry.layers;
      if (geometry == shape.groups[g].geometry) break;
    }
    if (g == shape.groups.size()) {
      geometry.layers = 0;
      shape.groups.push_back({geometry, {}});
    }
    shape.group_of.push_back(static_cast<int>(g));
    shape.index_in_group.push_back(shape.groups[g].geometry.layers++);
    shape.groups[g].owners.push_back(static_cast<int>(i));
  }
  return shape;
}

CacheShape shape_of_groups(std::vector<LayerGroup> groups, int32_t start, size_t state_bytes) {
  CacheShape shape;
  shape.start = start;
  shape.state_bytes = state_bytes;
  if (start < 0) throw_error(ErrorCode::invalid_input, "--kv-start {}: expected 0 or more tokens", start);
  std::vector<int> layers;
  for (const LayerGroup& group : groups)
    layers.insert(layers.end(), group.owners.begin(), group.owners.end());
  std::sort(layers.begin(), layers.end());
  if (std::adjacent_find(layers.begin(), layers.end()) != layers.end())
    throw_error(ErrorCode::invalid_input, "a layer is in two KV groups");
  shape.group_of.resize(layers.size());
  shape.index_in_group.resize(layers.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const GroupGeometry& geometry = groups[g].geometry;
    if (g == 0) shape.page_tokens = geometry.page_tokens;
    if (geometry.layers != static_cast<int>(groups[g].owners.size()) ||
        geometry.page_tokens != shape.page_tokens ||
        !std::is_sorted(groups[g].owners.begin(), groups[g].owners.end()))
      throw_error(ErrorCode::invalid_input,
                  "KV group {}: expected {} ascending layers and pages of {} tokens", g, geometry.layers,
                  shape.page_tokens);
    for (size_t i = 0; i < groups[g].owners.size(); ++i) {
      const auto owner = static_cast<size_t>(
          std::lower_bound(layers.begin(), layers.end(), groups[g].owners[i]) - layers.begin());
      groups[g].owners[i] = static_cast<int>(owner);
      shape.group_of[owner] = static_cast<int>(g);
      shape.index_in_group[owner] = static_cast<int>(i);
    }
  }
  shape.groups = std::move(groups);
  return shape;
}

GroupGeometry plain_stage(const GroupGeometry& geometry) {
  GroupGeometry plain = geometry;
  plain.codec.k = {.kind = PlaneCodec::Kind::plain, .plain = geometry.codec.k.plain};
  plain.codec.v = {.kind = PlaneCodec::Kind::plain, .plain = geometry.codec.v.plain};
  return plain;
}

uint32_t row_pages(const GroupGeometry& geometry, int64_t tokens, int64_t chunk, int64_t checkpoints) {
  const int64_t page = geometry.page_tokens;
  const int64_t all = ceil_div(tokens, page);
  if (!geometry.window) return page_count(all);
  const int64_t window = *geometry.window;
  const int64_t moving = std::min(
      all, ceil_div(window + std::min(chunk, tokens) - 1, page) + 1 + ceil_div(geometry.sinks, page));
  return page_count(std::min(moving + checkpoints * (ceil_div(window - 1, page) + 1), all + checkpoints));
}

CacheCapacity plan_capacity(const CacheShape& shape, const LayoutFactory& layouts, const Workload& workload) {
  if (workload.context < 1 || workload.context > INT32_MAX || workload.batch < 1 || workload.chunk < 1 ||
      workload.checkpoints < 0)
    throw_error(ErrorCode::invalid_input,
                "KV plan for a context of {} tokens, a batch of {} and chunks of {}: each must be positive "
                "(and the context below 2^31)",
                workload.context, workload.batch, workload.chunk);
  CacheCapacity capacity;
  std::vector<size_t> weight;
  size_t total = 0;
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    const GroupGeometry& geometry = shape.groups[g].geometry;
    CacheCapacity::Group group;
    const bool reaches = !shape.converts(g) || workload.context > shape.start;
    if (reaches)
      group.pages = page_count(workload.batch *
                               row_pages(geometry, workload.context, workload.chunk, workload.checkpoints));
    if (shape.converts(g))
      group.plain_pages =
          page_count(workload.batch * row_pages(geometry, std::min<int64_t>(workload.context, shape.start),
                                                workload.chunk, workload.checkpoints));
    capacity.groups.push_back(group);
    weight.push_back(layouts(reaches ? geometry : plain_stage(geometry))->page_bytes());
    total += weight.back() * (reaches ? group.pages : group.plain_pages);
  }
  if (workload.prefix_bytes > 0 && total > 0)
    for (size_t g = 0; g < shape.groups.size(); ++g) {
      CacheCapacity::Group& group = capacity.groups[g];
      const uint32_t pages = std::max(group.pages, group.plain_pages);
      // In proportion to a row's pages; a group whose pages are few still gets some, so that no group starves
      // the others.
      const double share = static_cast<double>(workload.prefix_bytes) / static_cast<double>(total);
      const uint32_t extra = page_count(static_cast<int64_t>(share * pages) + 1);
      (group.pages > 0 ? group.extra : group.plain_extra) = extra;
      if (group.pages > 0 && group.plain_pages > 0) group.plain_extra = std::min(extra, group.plain_pages);
    }
  if (shape.state_bytes > 0)
    capacity.state_slots = page_count(
        1 + workload.batch * (2 + workload.round_tokens + workload.checkpoints) + workload.prefix_states);
  capacity.checkpoints = static_cast<uint32_t>(std::min<int64_t>(workload.checkpoints, 1 << 30));
  return capacity;
}

CacheBytes plan_bytes(const CacheShape& shape, const LayoutFactory& layouts, const CacheCapacity& capacity) {
  KVASIR_CHECK(capacity.groups.size() == shape.groups.size());
  CacheBytes total;
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    const CacheCapacity::Group& group = capacity.groups[g];
    const auto layout = layouts(shape.groups[g].geometry);
    GroupBytes bytes{.bytes_per_token = layout->token_bytes(),
                     .page_bytes = layout->page_bytes(),
                     .plain_page_bytes = 0,
                     .pages = group.pages,
                     .plain_pages = group.plain_pages,
                     .bytes = group.pages * layout->page_bytes(),
                     .extra_bytes = group.extra * layout->page_bytes()};
    if (shape.converts(g)) {
      bytes.plain_page_bytes = layouts(plain_stage(shape.groups[g].geometry))->page_bytes();
      bytes.bytes += group.plain_pages * bytes.plain_page_bytes;
      bytes.extra_bytes += group.plain_extra * bytes.plain_page_bytes;
    }
    total.bytes_per_token += bytes.bytes_per_token;
    total.bytes += bytes.bytes;
    total.limit_bytes += bytes.bytes + bytes.extra_bytes;
    total.groups.push_back(bytes);
  }
  total.state_bytes = StateSlotPool::stored_bytes(shape.state_bytes) * capacity.state_slots;
  total.bytes += total.state_bytes;
  total.limit_bytes += total.state_bytes;
  return total;
}

CacheBytes projected_bytes(const CacheShape& shape, const LayoutFactory& layouts, const Workload& workload) {
  return plan_bytes(shape, layouts, plan_capacity(shape, layouts, workload));
}

size_t row_bytes(const CacheShape& shape, const LayoutFactory& layouts, int64_t tokens) {
  size_t bytes = tokens > 0 ? shape.state_bytes : 0;
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    const GroupGeometry& geometry = shape.groups[g].geometry;
    // A row of exactly `start` tokens converts when it is appended to next; until then it is plain.
    const auto layout =
        layouts(shape.converts(g) && tokens <= shape.start ? plain_stage(geometry) : geometry);
    int64_t live = tokens;
    if (geometry.window)
      live = std::min<int64_t>(
          tokens, *geometry.window +
                      std::min<int64_t>(geometry.sinks, std::max<int64_t>(tokens - *geometry.window, 0)));
    bytes += static_cast<size_t>(live) * layout->token_bytes();
  }
  return bytes;
}

std::string describe(const PlaneCodec& plane) {
  switch (plane.kind) {
    case PlaneCodec::Kind::plain:
      return std::string(name(plane.plain));
    case PlaneCodec::Kind::affine:
      return fmt::format("affine:{}:{}{}", plane.bits, plane.group,
                         plane.scale_dtype == Dtype::f16 ? "" : fmt::format(":{}", name(plane.scale_dtype)));
    case PlaneCodec::Kind::turbo_key:
      return fmt::format("turbokey:{}", plane.bits);
    case PlaneCodec::Kind::rotated:
      return fmt::format("rot:{}", plane.bits);
    case PlaneCodec::Kind::q_0:
      return fmt::format("q{}_0", plane.bits);
    case PlaneCodec::Kind::rotated_q_0:
      return fmt::format("rot:q{}_0", plane.bits);
  }
  return {};
}

std::string describe(const CodecPair& codec) {
  if (codec.mla) return "mla";
  if (codec.k.kind == PlaneCodec::Kind::turbo_key && codec.v.kind == PlaneCodec::Kind::rotated)
    return fmt::format("turbo:{},{}", codec.k.bits, codec.v.bits);
  const std::string k = describe(codec.k), v = describe(codec.v);
  return k == v ? k : k + "/" + v;
}

std::string describe(const GroupGeometry& geometry) {
  std::string retention = geometry.window ? fmt::format("last {}", *geometry.window) : "all";
  if (geometry.mla)
    return fmt::format("{} {}layers [latent {}, rope {}{}] {}, {}", geometry.layers,
                       geometry.mla->mtp ? "MTP " : "", geometry.head_dim_k, geometry.head_dim_v,
                       geometry.mla->dsa_dim > 0 ? fmt::format(", index {}", geometry.mla->dsa_dim) : "",
                       retention, describe(geometry.codec));
  if (geometry.sinks > 0) retention += fmt::format(" and first {}", geometry.sinks);
  return fmt::format("{} layers [{} heads, {}/{}] {}, {}", geometry.layers, geometry.kv_heads,
                     geometry.head_dim_k, geometry.head_dim_v, retention, describe(geometry.codec));
}

}  // namespace kvasir::kv
