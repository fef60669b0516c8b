// Any bytes as a config.json: parsed into a record or refused with an Error, and its ropes can be tabulated.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "formats/json.h"
#include "models/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  try {
    const nlohmann::json raw = formats::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const models::ModelConfig config = models::parse_config(raw, nullptr, "fuzz");
    for (const models::RopeConfig& rope : config.ropes)
      if (rope.dims < 4096) models::rope_table(rope, 64);
    config.canonical_text();
  } catch (const Error&) {
  }
  return 0;
}
