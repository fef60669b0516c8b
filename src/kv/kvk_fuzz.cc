// Any bytes as a .kvk file: an error, or a sequence whose stored tokens lie inside the file.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "formats/fuzz_file.h"
#include "kv/kvk_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  static const formats::FuzzFile fuzz("kvasir_fuzz.kvk");
  // Hash, lengths and data start are made right, so that mutations reach what lies behind them.
  std::vector<uint8_t> bytes(data, data + size);
  if (size >= 64) {
    uint32_t header = 0;
    std::memcpy(&header, bytes.data() + 12, 4);
    if (header <= size - 64) {
      const uint64_t hash = XXH64(bytes.data() + 64, header, 0), length = size;
      const uint64_t start = (uint64_t{64} + header + 4095) / 4096 * 4096;
      std::memcpy(bytes.data() + 16, &start, 8);
      std::memcpy(bytes.data() + 24, &hash, 8);
      std::memcpy(bytes.data() + 32, &length, 8);
    }
  }
  fuzz.write(bytes.data(), bytes.size());
  try {
    const kv::KvkFile file = kv::KvkFile::open(fuzz.path());
    const int32_t offset = file.header().offset();
    for (size_t g = 0; g < file.header().groups.size(); ++g) {
      const kv::KvkGroup& group = file.header().groups[g];
      const size_t token = kv::token_bytes(group.geometry);
      if (token > size) continue;
      std::vector<std::byte> out(token);
      for (int64_t p = group.first; p < offset; p += 1 + (offset - group.first) / 64)
        file.tokens(g, static_cast<int32_t>(p), 1, out);
      for (int32_t p = 0; p < std::min({group.geometry.sinks, group.first, 64}); ++p)
        file.tokens(g, p, 1, out);
    }
    file.verify_tensors();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) __builtin_trap();
  }
  return 0;
}
