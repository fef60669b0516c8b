// A regular file mapped read-only. Weights are read through such a mapping; nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace kvasir {

class MappedFile {
 public:
  // Throws Error{not_found} when the file cannot be opened, Error{invalid_input} when it is no regular file.
  static MappedFile open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

  // Tells the kernel that [offset, offset + length) will be read once, in order, soon (will_need), or not
  // again (done).
  void will_need(size_t offset, size_t length) const;
  void done(size_t offset, size_t length) const;

 private:
  void unmap();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fault_slot_ = -1;  // mapping_faults.h
  std::string path_;
};

// The whole of a small file. Throws Error{not_found} or, past `limit` bytes, Error{invalid_input} naming
// limit and size.
std::string read_file(const std::filesystem::path& path, size_t limit);

// Writes beside `path` first (<name>.partial-<process>-<random>), syncs, and renames: readers see the old
// file or the whole new one.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace kvasir
