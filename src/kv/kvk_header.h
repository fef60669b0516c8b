// The JSON header of a .kvk file as text. Private to kv/.
#pragma once

#include <string>
#include <string_view>

#include "kv/kvk_file.h"

namespace kvasir::kv {

// Hashes that are not known yet are zeros of the width of real ones, so the text's length does not depend on
// them.
std::string header_text(const KvkHeader& header);
// Throws Error{corrupt_file} or Error{unsupported}, naming `path`.
KvkHeader parse_header(std::string_view text, const std::string& path);

// Bytes of a layer inside a page, and where its planes begin (kv-cache.md 2.1).
struct PageForm {
  std::vector<Plane> planes;
  std::vector<size_t> plane_at;
  size_t layer_bytes = 0;
  size_t page_bytes = 0;
};
PageForm page_form(const GroupGeometry& geometry);

std::string hex64(uint64_t value);

}  // namespace kvasir::kv
