#include "cli/kv_report.h"

#include "base/error.h"
#include "kv/cache_shape.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

// What a row stores in place of the codec until it converts; empty: the codec from the first token on.
std::string plain_codec(const models::KvGroup& group, int32_t start) {
  const bool converts = start > 0 && !group.geometry.codec.is_plain();
  return converts ? kv::describe(kv::plain_stage(group.geometry).codec) : std::string();
}

}  // namespace

Json kv_groups_json(std::span<const models::KvGroup> groups, int32_t start) {
  Json list = Json::array();
  for (const models::KvGroup& group : groups) {
    const kv::GroupGeometry& g = group.geometry;
    Json json = {{"layers", group.layers},
                 {"kv_heads", g.kv_heads},
                 {"head_dim_k", g.head_dim_k},
                 {"head_dim_v", g.head_dim_v},
                 {"window", g.window ? Json(*g.window) : Json()},
                 {"codec", kv::describe(g.codec)},
                 {"page_tokens", g.page_tokens},
                 {"page_bytes", group.page_bytes},
                 {"bytes_per_token", group.bytes_per_token}};
    if (const std::string plain = plain_codec(group, start); !plain.empty()) json["plain_codec"] = plain;
    list.push_back(std::move(json));
  }
  return list;
}

Json with_kv(Json answer, const engine::Engine& engine) {
  answer["kv"] = engine.memory().kv_key;
  answer["kv_start"] = engine.memory().kv_start;
  answer["kv_groups"] = kv_codecs_json(engine.memory().kv_groups);
  return answer;
}

Json kv_codecs_json(std::span<const models::KvGroup> groups) {
  Json list = Json::array();
  for (const models::KvGroup& group : groups) {
    const kv::CodecPair& codec = group.geometry.codec;
    Json json = {{"layers", group.layers}, {"codec", kv::describe(codec)}};
    if (!codec.is_plain()) json["plain"] = name(codec.k.plain);
    list.push_back(std::move(json));
  }
  return list;
}

std::string kv_group_text(const models::KvGroup& group, int32_t start) {
  const std::string plain = plain_codec(group, start);
  return fmt::format("{}{}, {} bytes a token", kv::describe(group.geometry),
                     plain.empty() ? plain : fmt::format(" from token {} on ({} before)", start, plain),
                     group.bytes_per_token);
}

}  // namespace kvasir::cli
