// The shape of a model's KV cache (which layers form a group, when rows convert) and what it takes: pages and
// bytes, from geometry alone. KvCache allocates exactly what plan_capacity() says, so `fit` and the ledger
// agree to the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/geometry.h"
#include "kv/page_layout.h"

namespace kvasir::kv {

// One cache-owning layer, in layer order. Layers that read another layer's KV own nothing and are absent.
struct LayerGeometry {
  int layer = 0;  // index in the model
  int kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  std::optional<int> window = {};
  int sinks = 0;
  std::optional<MlaGeometry> mla = {};  // then kv_heads is 1, head_dim_k the latent's width, head_dim_v the
                                        // width of its rope part (geometry.h)
  bool operator==(const LayerGeometry&) const = default;
};

struct LayerGroup {
  GroupGeometry geometry;  // with the target codec
  std::vector<int>
      owners;  // [geometry.layers] indices into the list of owners, ascending; position = index inside a page
};

struct CacheShape {
  std::vector<LayerGroup> groups;   // in the order of their first owner
  std::vector<int> group_of;        // [owners]
  std::vector<int> index_in_group;  // [owners]
  int page_tokens = 64;             // P, the same for every group
  int32_t start = 0;  // rows store encoded groups plain until they have this many tokens; 0: encoded at once
  size_t state_bytes = 0;  // recurrent state of one sequence, all layers; 0: none

  bool converts(size_t group) const { return start > 0 && !groups[group].geometry.codec.is_plain(); }
  bool converts() const;  // some group
};

// Groups the owners: equal geometry, retention and codec share a page table. `codecs` has one entry per
// owner. `apart`: every layer is a group of its own all the same, so that its codec can be changed alone.
// Throws Error{invalid_input} for a bad page size, start or geometry.
CacheShape group_layers(std::span<const LayerGeometry> owners, std::span<const CodecPair> codecs,
                        int page_tokens, int32_t start, size_t state_bytes = 0, bool apart = false);

// The same for layers that are grouped already (models::Model::groups()): `owners` of each group may be any
// ascending layer indices; they become the indices of the owners in layer order. Throws Error{invalid_input}
// if the groups contradict.
CacheShape shape_of_groups(std::vector<LayerGroup> groups, int32_t start, size_t state_bytes = 0);

// The geometry of the unconverted pages of a group: both planes plain, in their codec's plain dtype.
GroupGeometry plain_stage(const GroupGeometry& geometry);

using LayoutFactory = std::function<std::unique_ptr<PageLayout>(const GroupGeometry&)>;
inline LayoutFactory layouts_for(IsaLevel isa) {
  return [isa](const GroupGeometry& geometry) { return PageLayout::make(geometry, isa); };
}

// Most pages that a row of this group holds at once while it grows to `tokens`, at most `chunk` tokens a step
// (or a round). All: ceil(tokens / P). Last W: no page is released before the step that leaves it behind has
// been committed, so min(ceil(tokens / P), ceil((W + chunk - 1) / P) + 1 + ceil(sinks / P)). Each checkpoint
// of the row keeps up to W positions more, and its own copy of the page that it ends in.
uint32_t row_pages(const GroupGeometry& geometry, int64_t tokens, int64_t chunk, int64_t checkpoints = 0);

struct Workload {
  int64_t context = 0;        // tokens of a row
  int64_t batch = 1;          // rows
  int64_t chunk = 512;        // most tokens that one row appends in a step; also covers a speculative round
  int64_t round_tokens = 0;   // recurrent models: tokens of a speculative round (each needs a slot)
  int64_t checkpoints = 1;    // that a row keeps (Sequence::checkpoint); free with full attention only
  int64_t prefix_states = 0;  // recurrent models: slots for cached prefixes
  size_t prefix_bytes = 0;    // extra pages for cached prefixes, split over the groups like a row's bytes
};

struct CacheCapacity {
  struct Group {
    uint32_t pages = 0;        // of the target codec, committed at once
    uint32_t plain_pages = 0;  // unconverted
    uint32_t extra = 0;        // for prefixes: committed when first used, of the target codec
    uint32_t plain_extra = 0;
  };
  std::vector<Group> groups;
  uint32_t state_slots = 0;
  uint32_t checkpoints = 1u << 30;  // a row keeps at most so many; a newer one replaces its oldest
};
CacheCapacity plan_capacity(const CacheShape& shape, const LayoutFactory& layouts, const Workload& workload);

struct GroupBytes {
  size_t bytes_per_token = 0;  // canonical bytes of the target codec, all layers of the group
  size_t page_bytes = 0;
  size_t plain_page_bytes = 0;  // 0: never plain
  uint32_t pages = 0;           // planned for all rows
  uint32_t plain_pages = 0;
  size_t bytes =
      0;  // pages * page_bytes + plain_pages * plain_page_bytes: committed by KvCache's constructor
  size_t extra_bytes = 0;
};
struct CacheBytes {
  std::vector<GroupBytes> groups;
  size_t bytes_per_token = 0;  // sum over full and windowed groups
  size_t state_bytes = 0;
  size_t bytes = 0;        // what the ledger holds after construction
  size_t limit_bytes = 0;  // with the extra pages: what it can reach
};
CacheBytes plan_bytes(const CacheShape& shape, const LayoutFactory& layouts, const CacheCapacity& capacity);
// plan_capacity and plan_bytes in one.
CacheBytes projected_bytes(const CacheShape& shape, const LayoutFactory& layouts, const Workload& workload);

// Canonical bytes of the live tokens of a row of `tokens` tokens (kv-cache.md 17, "row bytes"): codec of its
// stage.
size_t row_bytes(const CacheShape& shape, const LayoutFactory& layouts, int64_t tokens);

std::string describe(const PlaneCodec& plane);  // "bf16", "affine:8:64", "rot:4", ...
std::string describe(const CodecPair& codec);   // "affine:8:64", "turbo:8,3", "affine:8:64/rot:4"
// "30 layers [3 heads, 64/64] all, bf16", "3 layers [latent 512, rope 64, index 128] all, mla"
std::string describe(const GroupGeometry& geometry);

}  // namespace kvasir::kv
