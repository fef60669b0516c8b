// Any bytes as a .kpack file: an error, or entries that lie inside the data. The checksum is mended first, so
// that what lies behind it is reached.
#include <xxhash.h>

#include <cstring>
#include <vector>

#include "formats/fuzz_file.h"
#include "formats/pack_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir::formats;
  static const FuzzFile file("kvasir_fuzz.kpack");
  std::vector<uint8_t> bytes(data, data + size);
  for (const bool mended : {false, true}) {
    if (mended && size >= 72) {
      uint64_t header = 0;
      std::memcpy(&header, bytes.data() + 32, 8);
      if (header >= 72 && header <= size) {
        const uint64_t sum = XXH3_64bits(bytes.data(), header - 8);
        std::memcpy(bytes.data() + header - 8, &sum, 8);
      }
    }
    file.write(bytes.data(), bytes.size());
    try {
      const PackFile pack = PackFile::open(file.path());
      for (const PackEntry& entry : pack.contents().entries) {
        const auto span = pack.data().subspan(entry.offset, entry.bytes);
        if (!span.empty()) FuzzFile::touch(span.front(), span.back());
      }
    } catch (const kvasir::Error& error) {
      if (error.code() == kvasir::ErrorCode::internal) __builtin_trap();
    }
  }
  return 0;
}
