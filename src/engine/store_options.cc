#include "engine/store_options.h"

#include <xxhash.h>

#include <memory>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/checkpoint.h"

namespace kvasir::engine {

std::string tokenizer_hash(const std::filesystem::path& path) {
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(path);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  bool some = false;
  const auto add = [&](std::string_view name, std::span<const std::byte> bytes) {
    const uint64_t lengths[] = {name.size(), bytes.size()};
    XXH3_64bits_update(state.get(), lengths, sizeof lengths);
    XXH3_64bits_update(state.get(), name.data(), name.size());
    XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
    some = true;
  };
  if (const formats::GgufFile* gguf = checkpoint.gguf()) {
    for (const formats::GgufValue& value : gguf->metadata())
      if (value.key.starts_with("tokenizer.") && !value.key.starts_with("tokenizer.chat_template"))
        add(value.key, {value.data, value.bytes});
  } else {
    const formats::AuxiliaryFiles& files = checkpoint.files();
    for (const auto* file : {&files.tokenizer_json, &files.special_tokens_map, &files.added_tokens})
      if (*file) add((*file)->filename().native(), MappedFile::open(**file).bytes());
  }
  return some ? fmt::format("{:016x}", XXH3_64bits_digest(state.get())) : std::string();
}

kv::DiskStore::Options store_options(const models::Model& model, std::string scheme_key,
                                     const std::filesystem::path& checkpoint) {
  kv::DiskStore::Options options;
  options.numerics = models::canonical_text(model.numerics_parts());
  options.identity.model_id = checkpoint.filename().string();
  models::NumericsParts configuration;  // its text has no bound, its digest has
  configuration.config = model.numerics_parts().config;
  options.identity.config_fingerprint = models::NumericsKey(configuration).hex();
  options.identity.weights_digest = model.numerics_parts().weights;
  options.identity.numerics_id = model.numerics_key().hex();
  options.identity.scheme_key = std::move(scheme_key);
  options.identity.tokenizer_hash = tokenizer_hash(checkpoint);
  return options;
}

}  // namespace kvasir::engine
