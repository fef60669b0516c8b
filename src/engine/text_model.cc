#include "engine/text_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/checkpoint.h"
#include "tokenizer/gguf_adapter.h"

namespace kvasir::engine {
namespace {

constexpr size_t kSmallFile = size_t{16} << 20;
constexpr size_t kTokenizerFile = size_t{256} << 20;

std::string read_optional(const std::optional<std::filesystem::path>& path, size_t limit) {
  return path ? read_file(*path, limit) : std::string();
}

}  // namespace

}  // namespace kvasir::engine
