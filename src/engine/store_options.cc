#include "engine/store_options.h"

namespace kvasir::engine {

kv::DiskStore::Options store_options(const models::Model& model, std::string scheme_key, std::string name) {
  kv::DiskStore::Options options;
  options.numerics = models::canonical_text(model.numerics_parts());
  options.identity.model_id = std::move(name);
  models::NumericsParts configuration;  // its text has no bound, its digest has
  configuration.config = model.numerics_parts().config;
  options.identity.config_fingerprint = models::NumericsKey(configuration).hex();
  options.identity.weights_digest = model.numerics_parts().weights;
  options.identity.numerics_id = model.numerics_key().hex();
  options.identity.scheme_key = std::move(scheme_key);
  // Stored tokens are ids; the text side re-renders and compares them, so the tokenizer needs no hash of its
  // own.
  options.identity.tokenizer_hash = "";
  return options;
}

}  // namespace kvasir::engine
