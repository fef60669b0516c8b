// Any bytes as a config.json: an error, or a value; what nlohmann::json accepts of plain JSON reads equally
// here.
#include <string_view>

#include "base/error.h"
#include "formats/json.h"
#include "formats/quantization_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvasir::formats::parse_json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json value = parse_json(text, "fuzz");
    if (value.is_object()) (void)kvasir::formats::QuantizationConfig::from_config(value, "fuzz");
    // Written out and read again, a finite value is the same.
    const std::string written = value.dump();
    if (text.find("__float__") == text.npos && text.find("NaN") == text.npos &&
        text.find("Infinity") == text.npos && parse_json(written, "again") != value)
      __builtin_trap();
  } catch (const kvasir::Error& error) {
    if (error.code() == kvasir::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
