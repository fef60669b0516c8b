// How verbs tell what is stored of keys and values.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/engine.h"
#include "models/model.h"

namespace kvasir::cli {

// `start`: tokens that stay plain before a row converts (CacheShape::start).
nlohmann::ordered_json kv_groups_json(std::span<const models::KvGroup> groups, int32_t start);
// `answer` and what the cache held: the scheme's key, the codec of each group of layers, and the token at
// which rows convert from which plain type.
nlohmann::ordered_json with_kv(nlohmann::ordered_json answer, const engine::Engine& engine);
// Codecs alone, and the plain type of encoded ones.
nlohmann::ordered_json kv_codecs_json(std::span<const models::KvGroup> groups);
std::string kv_group_text(const models::KvGroup& group, int32_t start);

}  // namespace kvasir::cli
