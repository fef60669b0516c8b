#include "formats/pack_file.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "base/error.h"
#include "formats/checked.h"

namespace kvasir::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

constexpr std::string_view kMagic = "KVPACK\r\n";
constexpr uint64_t kPage = 4096, kLine = 64;
constexpr uint64_t kFixedBytes = 64, kEntryBytes = 4 + 8 + 8 + 16, kChecksumBytes = 8;
constexpr uint64_t kMostHeaderBytes = uint64_t{64} << 20;
constexpr uint32_t kMostNameBytes = uint32_t{1} << 20;

template <typename T>
T read_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void append(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

}  // namespace

PackFile PackFile::open(const std::filesystem::path& path) {
  PackFile pack;
  pack.file_ = MappedFile::open(path);
  const std::span<const std::byte> all = pack.file_.bytes();
  const std::string shown = printable(path.string());
  const auto damaged = [&](std::string_view what) {
    throw_error(ErrorCode::corrupt_file, "{}: damaged packed model: {}; write it again with kvasir pack",
                shown, what);
  };
  if (all.size() < kMagic.size() || std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0)
    throw_error(ErrorCode::corrupt_file, "{}: no packed model, expected a file that kvasir pack wrote",
                shown);
  if (all.size() < kFixedBytes + kChecksumBytes) damaged("the header is cut off");
  const std::byte* head = all.data();
  const auto version = read_at<uint32_t>(head + 8);
  if (version != kPackFormatVersion)
    throw_error(
        ErrorCode::unsupported,
        "{}: packed models of format version {} cannot be read, expected {}: write it again with kvasir "
        "pack",
        shown, version, kPackFormatVersion);
  PackContents& contents = pack.contents_;
  contents.layout_version = read_at<uint32_t>(head + 12);
  std::memcpy(contents.source.data(), head + 16, 16);
  const auto header_bytes = read_at<uint64_t>(head + 32), data_offset = read_at<uint64_t>(head + 40);
  contents.data_bytes = read_at<uint64_t>(head + 48);
  const auto entries = read_at<uint64_t>(head + 56);
  if (header_bytes < kFixedBytes + kChecksumBytes || header_bytes > kMostHeaderBytes)
    damaged("the header's size is impossible");
  uint64_t end = 0;
  if (data_offset % kPage != 0 || data_offset < header_bytes ||
      !checked_add(data_offset, contents.data_bytes, &end))
    damaged("the data's place is impossible");
  if (end != all.size())
    throw_error(ErrorCode::corrupt_file,
                "{}: damaged packed model: {} bytes, expected {}; write it again with kvasir pack", shown,
                all.size(), end);
  if (XXH3_64bits(head, header_bytes - kChecksumBytes) !=
      read_at<uint64_t>(head + header_bytes - kChecksumBytes))
    damaged("the header does not match its checksum");
  if (entries > header_bytes / kEntryBytes) damaged("more entries than the header holds");

  uint64_t at = kFixedBytes, next = 0;
  const uint64_t last = header_bytes - kChecksumBytes;
  contents.entries.reserve(entries);
  for (uint64_t i = 0; i < entries; ++i) {
    if (last - at < kEntryBytes) damaged("an entry is cut off");
    const auto length = read_at<uint32_t>(head + at);
    if (length > kMostNameBytes || length > last - at - kEntryBytes) damaged("an entry is cut off");
    PackEntry entry;
    entry.name.assign(reinterpret_cast<const char*>(head + at + 4), length);
    at += 4 + length;
    entry.offset = read_at<uint64_t>(head + at);
    entry.bytes = read_at<uint64_t>(head + at + 8);
    std::memcpy(entry.digest.data(), head + at + 16, 16);
    at += kEntryBytes - 4;
    uint64_t stop = 0, expected = 0;
    if (!checked_align_up(next, kLine, &expected) || entry.offset != expected ||
        !checked_add(entry.offset, entry.bytes, &stop) || stop > contents.data_bytes)
      damaged("an entry lies outside the data");
    next = stop;
    contents.entries.push_back(std::move(entry));
  }
  if (at != last || next != contents.data_bytes) damaged("the entries do not fill the file");
  pack.data_ = all.subspan(data_offset, contents.data_bytes);
  return pack;
}

namespace {

std::vector<std::byte> header_of(const PackContents& contents) {
  std::vector<std::byte> head;
  for (char c : kMagic) head.push_back(static_cast<std::byte>(c));
  append(head, kPackFormatVersion);
  append(head, contents.layout_version);
  append(head, contents.source);
  uint64_t header_bytes = kFixedBytes + kChecksumBytes;
  for (const PackEntry& entry : contents.entries) {
    KVASIR_CHECK(entry.name.size() <= kMostNameBytes);
    header_bytes += kEntryBytes + entry.name.size();
  }
  KVASIR_CHECK(header_bytes <= kMostHeaderBytes);
  append(head, header_bytes);
  append(head, (header_bytes + kPage - 1) / kPage * kPage);
  append(head, contents.data_bytes);
  append(head, static_cast<uint64_t>(contents.entries.size()));
  for (const PackEntry& entry : contents.entries) {
    append(head, static_cast<uint32_t>(entry.name.size()));
    for (char c : entry.name) head.push_back(static_cast<std::byte>(c));
    append(head, entry.offset);
    append(head, entry.bytes);
    append(head, entry.digest);
  }
  append(head, static_cast<uint64_t>(XXH3_64bits(head.data(), head.size())));
  KVASIR_CHECK(head.size() == header_bytes);
  return head;
}

}  // namespace

PackWriter::PackWriter(const std::filesystem::path& path, PackContents contents)
    : contents_(std::move(contents)),
      data_offset_((header_of(contents_).size() + kPage - 1) / kPage * kPage),
      file_(write_target_file(path)) {
  file_.write_zeros(data_offset_);
}

void PackWriter::write(uint64_t offset, std::span<const std::byte> bytes) {
  KVASIR_CHECK(data_offset_ + offset >= file_.written());
  file_.write_zeros(data_offset_ + offset - file_.written());
  file_.write(bytes);
}

uint64_t PackWriter::finish(std::vector<PackEntry> entries) {
  KVASIR_CHECK(file_.written() == data_offset_ + contents_.data_bytes);
  contents_.entries = std::move(entries);
  const std::vector<std::byte> head = header_of(contents_);
  KVASIR_CHECK((head.size() + kPage - 1) / kPage * kPage == data_offset_);
  file_.rewrite(0, head);
  file_.commit();
  return file_.written();
}

void write_pack_file(const std::filesystem::path& path, const PackContents& contents,
                     std::span<const std::byte> data) {
  PackWriter writer(path, contents);
  writer.write(0, data);
  writer.finish(contents.entries);
}

}  // namespace kvasir::formats
