// A .kpack file: the packed weights of one model as they lie in memory, to be mapped instead of packed again.
//
//   0   magic "KVPACK\r\n"
//   8   u32 version of this format, u32 version of the compute layouts
//   16  16 bytes: identity of the source (models/packed_source.h)
//   32  u64 header bytes (checksum included), u64 offset of the data (a multiple of 4096), u64 data bytes
//   56  u64 entries; then each: u32 length of its name, the name, u64 offset in the data, u64 bytes,
//       16 bytes digest (XXH3-128)
//   ..  u64 XXH3-64 of the header's bytes before it; zeros up to the data; the data, to the file's end
//
// Numbers are little-endian. Entries lie one after the other, each on a cache line. open() checks everything
// but the data; who maps an entry checks it against its digest (WeightStore does, while it is mapped).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/mapped_file.h"

namespace kvasir::formats {

inline constexpr uint32_t kPackFormatVersion = 1;

struct PackEntry {
  std::string name;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::array<uint8_t, 16> digest{};
};

struct PackContents {
  uint32_t layout_version = 0;
  std::array<uint8_t, 16> source{};
  std::vector<PackEntry> entries;
  uint64_t data_bytes = 0;
};

class PackFile {
 public:
  // Throws Error{not_found}, Error{corrupt_file} (no such file at all, truncated, damaged, sizes that
  // contradict each other), Error{unsupported} (another version of the format).
  static PackFile open(const std::filesystem::path& path);

  const PackContents& contents() const { return contents_; }
  std::span<const std::byte> data() const { return data_; }  // 4096-byte aligned
  const std::string& path() const { return file_.path(); }

 private:
  MappedFile file_;
  PackContents contents_;
  std::span<const std::byte> data_;
};

// Writes a file whose data comes in pieces; it appears whole or not at all. Its header, which holds digests
// of the data, is written last: a device or a pipe is refused (Error{not_found}).
class PackWriter {
 public:
  // Of the contents everything is known but the digests.
  PackWriter(const std::filesystem::path& path, PackContents contents);
  // Bytes from `offset` of the data on, ascending; zeros up to there.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // `entries`: those of the contents, with digests. Returns the file's size.
  uint64_t finish(std::vector<PackEntry> entries);

 private:
  PackContents contents_;
  uint64_t data_offset_;
  AtomicFile file_;
};

// The same of data that is there as a whole: contents.data_bytes.
void write_pack_file(const std::filesystem::path& path, const PackContents& contents,
                     std::span<const std::byte> data);

}  // namespace kvasir::formats
