// Any bytes as what a hub or a store may send: headers, listings, indices, manifests, and names as users
// write them. The first byte chooses the reader.
#include <string>

#include "base/error.h"
#include "hub/headers.h"
#include "hub/listing.h"
#include "hub/local_stores.h"
#include "hub/reference.h"
#include "hub/select.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir::hub;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 8) {
      case 0:
        (void)next_link(text);
        break;
      case 1:
        if (const auto range = parse_content_range(text))
          if (range->last < range->first || (range->total && *range->total <= range->last)) __builtin_trap();
        if (const auto seconds = parse_retry_after(text, 1'000'000'000); seconds && *seconds < 0)
          __builtin_trap();
        break;
      case 2: {
        const std::string etag = bare_etag(text);
        if (etag.find('/') != std::string::npos) __builtin_trap();
        if (const auto target = redirect_target("https://hub.example/a/b", std::string(text)))
          if (origin_of(*target).empty()) __builtin_trap();
        break;
      }
      case 3:
        (void)parse_commit(text, "fuzz");
        break;
      case 4: {
        std::vector<RemoteFile> files;
        parse_tree_page(text, "fuzz", &files);
        for (const RemoteFile& file : files)
          if (!is_safe_path(file.path) || !is_digest(file.digest) || file.size > kMaxFileBytes)
            __builtin_trap();
        for (const GgufGroup& group : gguf_groups(files))
          if (group.parts.empty()) __builtin_trap();
        break;
      }
      case 5:
        (void)files_of_index(text, "fuzz");
        break;
      case 6:
        (void)parse_ollama_manifest(text, "fuzz");
        break;
      case 7:
        // What is printed is read back as the same.
        if (const auto reference = parse_reference(text)) {
          const bool single = reference->repo.find('/') == std::string::npos;
          const auto again = parse_reference((single ? "hf.co/" : "") + reference->text());
          if (!again || again->repo != reference->repo || again->file != reference->file ||
              again->quant != reference->quant || again->revision_or_main() != reference->revision_or_main())
            __builtin_trap();
        }
        break;
    }
  } catch (const kvasir::Error& error) {
    if (error.code() == kvasir::ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
