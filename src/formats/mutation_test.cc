// Thousands of random mutations of small valid files: each is refused with an error, or reads within its
// bounds. (The libFuzzer targets go deeper; these run with every test.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/mapped_file.h"
#include "formats/fuzz_file.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/random_rows.h"
#include "formats/safetensors.h"

namespace kvasir::formats {
namespace {

// Changes 1 to 4 places: flips a bit, sets a byte, cuts, repeats, or writes a large number.
std::string mutated(std::string bytes, uint64_t seed) {
  uint64_t counter = 0;
  const auto random = [&](uint64_t below) {
    const float u = random_normal(seed, counter++);
    uint32_t bits = 0;
    std::memcpy(&bits, &u, sizeof bits);
    return (bits * uint64_t{2654435761u} >> 7) % below;
  };
  for (uint64_t n = 1 + random(4); n > 0 && !bytes.empty(); --n) {
    const size_t at = random(bytes.size());
    switch (random(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random(256));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, bytes.substr(random(bytes.size()), 1 + random(16)));
        break;
      case 4:
        bytes.erase(at, 1 + random(8));
        break;
      default: {
        const uint64_t values[] = {
            0, 1, UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 32, 0x7FFFFFFFFFFFFFFF};
        const uint64_t value = values[random(6)];
        std::memcpy(bytes.data() + at, &value, std::min<size_t>(8, bytes.size() - at));
      }
    }
  }
  return bytes;
}

// Runs `read` on about `count` mutations, as many of each file of a corpus; returns how many were accepted.
template <typename Read>
int survivors(const std::string& corpus, int count, Read read) {
  int accepted = 0;
  uint64_t seed = 1;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(KVASIR_TEST_DATA) + "/fuzz/" + corpus))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  const int each = 1 + count / std::max(1, static_cast<int>(paths.size()));
  for (const auto& path : paths) {
    const std::string bytes = read_file(path, 1 << 20);
    for (int i = 0; i < each; ++i) {
      try {
        read(mutated(bytes, seed++));
        ++accepted;
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
      }
    }
  }
  return accepted;
}

TEST(Mutations, Safetensors) {
  const FuzzFile file("mutated.safetensors");
  EXPECT_GT(survivors("safetensors", 10500,
                      [&](const std::string& bytes) {
                        file.write(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
                        const SafetensorsFile opened = SafetensorsFile::open(file.path());
                        for (const SafetensorsTensor& tensor : opened.tensors()) {
                          const auto data = opened.data(tensor);
                          ASSERT_LE(tensor.offset + tensor.bytes, bytes.size());
                          if (!data.empty()) FuzzFile::touch(data.front(), data.back());
                        }
                      }),
            0);
}

TEST(Mutations, Gguf) {
  const FuzzFile file("mutated.gguf");
  EXPECT_GT(survivors("gguf", 10500,
                      [&](const std::string& bytes) {
                        file.write(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
                        const GgufFile opened = GgufFile::open(file.path());
                        for (const GgufValue& value : opened.metadata())
                          if (value.type == GgufType::string && value.is_array)
                            (void)opened.find_strings(value.key);
                        for (const GgufTensor& tensor : opened.tensors()) {
                          const auto data = opened.data(tensor);
                          ASSERT_LE(tensor.offset + tensor.bytes, bytes.size());
                          if (!data.empty()) FuzzFile::touch(data.front(), data.back());
                        }
                      }),
            0);
}

TEST(Mutations, Json) {
  EXPECT_GT(
      survivors("config_json", 21000, [&](const std::string& bytes) { (void)parse_json(bytes, "mutated"); }),
      0);
}

}  // namespace
}  // namespace kvasir::formats
