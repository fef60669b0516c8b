// Writing of .kvk files: header with zeros for hashes, tensors one at a time, header again, sync, rename.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file_error.h"
#include "base/partial_files.h"
#include "kv/kvk_file.h"
#include "kv/kvk_header.h"
#include "kv/row.h"

namespace kvasir::kv {
namespace {

constexpr size_t kPreamble = 64;

// The file beside its final name. Destroyed before publish(), it is removed.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& path)
      : path_(write_target_file(path)),
        draft_(fmt::format("{}.{}.tmp", path_.string(), ::getpid())),
        registered_(draft_) {
    fd_ = ::open(draft_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) fail("cannot be created");
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(draft_.c_str());
  }
  void write(std::span<const std::byte> bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t put =
          ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("cannot be written");
      done += static_cast<size_t>(put);
    }
  }
  void publish(uint64_t length, const WriteWatch& watch) {
    // What no tensor covers reads as zeros.
    if (::ftruncate(fd_, static_cast<off_t>(length)) != 0) fail("cannot be sized");
    if (watch.step) watch.step();
    if (::fsync(fd_) != 0) fail("cannot be synced");
    if (watch.step) watch.step();
    if (watch.publish) watch.publish();
    if (::rename(draft_.c_str(), path_.c_str()) != 0) fail("cannot be renamed into place");
    ::close(fd_);
    fd_ = -1;
    registered_.keep();
    const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
    if (const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); directory >= 0) {
      ::fsync(directory);
      ::close(directory);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    const int error = errno;
    throw_error(file_error(error), "{}: {}: {}", printable(path_.string()), what, std::strerror(error));
  }
  std::filesystem::path path_;
  std::string draft_;
  PartialFile registered_;
  int fd_ = -1;
};

void store_le(std::byte* at, const auto& value) {
  std::memcpy(at, &value, sizeof value);
}

// `fill(group, entry, buffer)` gives the bytes of each tensor of the groups, `attached` those of the
// attachments' tensors, one after the other; the header's tensors have their sizes already.
template <typename Fill>
uint64_t write_file(const std::filesystem::path& path, KvkHeader& header, const Fill& fill,
                    std::span<const std::byte> state, std::span<const std::span<const std::byte>> attached,
                    const WriteWatch& watch = {}) {
  const auto step = [&] {
    if (watch.step) watch.step();
  };
  uint64_t end = 0;
  const auto place = [&](KvkTensor& tensor) {
    tensor.offset = align_up(end, kKvkAlignment);
    tensor.hash.clear();
    end = tensor.offset + tensor.bytes;
  };
  const auto each_tensor = [&](const auto& visit) {
    for (size_t g = 0; g < header.groups.size(); ++g) {
      for (size_t i = 0; i < header.groups[g].pages.size(); ++i)
        visit(header.groups[g].pages[i].second, g, i);
      for (size_t i = 0; i < header.groups[g].planes.size(); ++i) visit(header.groups[g].planes[i], g, i);
    }
  };
  each_tensor([&](KvkTensor& tensor, size_t, size_t) { place(tensor); });
  header.state.reset();
  if (!state.empty()) {
    header.state = KvkTensor{.offset = 0, .bytes = state.size(), .hash = {}};
    place(*header.state);
  }
  const auto each_attached = [&](const auto& visit) {
    size_t next = 0;
    for (KvkAttachment& attachment : header.attachments)
      for (KvkAttachment::Tensor& tensor : attachment.tensors) visit(tensor.place, attached[next++]);
    KVASIR_CHECK(next == attached.size());
  };
  each_attached([&](KvkTensor& tensor, std::span<const std::byte>) { place(tensor); });
  std::string text = header_text(header);
  if (text.size() > kKvkHeaderLimit)
    throw_error(ErrorCode::unsupported, "{}: a header of {} bytes is more than the {} that are read back",
                path.string(), text.size(), kKvkHeaderLimit);
  const uint64_t data_start = align_up(kPreamble + text.size(), kKvkAlignment);
  if (data_start + end > watch.cap_bytes)
    throw_error(ErrorCode::resource_exhausted,
                "a sequence of {} bytes is larger than the {} that the KV store's cap leaves",
                data_start + end, watch.cap_bytes);
  Draft draft(path);
  std::vector<std::byte> buffer;
  each_tensor([&](KvkTensor& tensor, size_t g, size_t i) {
    step();
    buffer.assign(tensor.bytes, std::byte{0});
    fill(g, i, buffer);
    tensor.hash = hex64(XXH64(buffer.data(), buffer.size(), 0));
    draft.write(buffer, data_start + tensor.offset);
  });
  if (!state.empty()) {
    step();
    header.state->hash = hex64(XXH64(state.data(), state.size(), 0));
    draft.write(state, data_start + header.state->offset);
  }
  each_attached([&](KvkTensor& tensor, std::span<const std::byte> bytes) {
    step();
    tensor.hash = hex64(XXH64(bytes.data(), bytes.size(), 0));
    draft.write(bytes, data_start + tensor.offset);
  });
  if (watch.read) watch.read();
  step();
  const size_t planned = text.size();
  text = header_text(header);
  KVASIR_CHECK(text.size() == planned);
  std::vector<std::byte> head(kPreamble + text.size(), std::byte{0});
  std::memcpy(head.data(), "KVASIRKV", 8);
  store_le(head.data() + 8, kKvkVersion);
  store_le(head.data() + 12, static_cast<uint32_t>(text.size()));
  store_le(head.data() + 16, data_start);
  store_le(head.data() + 24, static_cast<uint64_t>(XXH64(text.data(), text.size(), 0)));
  store_le(head.data() + 32, data_start + end);
  std::memcpy(head.data() + kPreamble, text.data(), text.size());
  draft.write(head, 0);
  draft.publish(data_start + end, watch);
  return data_start + end;
}

// Scatters canonical tokens (token after token) of slots [slot, slot + count) into the page form of
// kv-cache.md 2.1.
void scatter(const GroupGeometry& geometry, const PageForm& form, std::span<const std::byte> tokens,
             int32_t slot, int32_t count, std::span<std::byte> page) {
  const size_t token = tokens.size() / static_cast<size_t>(count);
  size_t at = 0;
  for (int layer = 0; layer < geometry.layers; ++layer)
    for (size_t p = 0; p < form.planes.size(); ++p) {
      const size_t row = form.planes[p].bytes;
      for (int head = 0; head < geometry.kv_heads; ++head, at += row) {
        std::byte* to = page.data() + static_cast<size_t>(layer) * form.layer_bytes + form.plane_at[p] +
                        (static_cast<size_t>(head) * static_cast<size_t>(geometry.page_tokens) +
                         static_cast<size_t>(slot)) *
                            row;
        const std::byte* from = tokens.data() + at;
        for (int32_t t = 0; t < count; ++t, to += row, from += token) std::memcpy(to, from, row);
      }
    }
}

void list_pages(KvkGroup& group, int32_t offset) {
  const int32_t page = group.geometry.page_tokens;
  const uint64_t bytes = page_form(group.geometry).page_bytes;
  group.pages.clear();
  group.planes.clear();
  const int32_t sinks = std::min(group.geometry.sinks, group.first);
  for (int32_t i = 0; i <= (offset - 1) / page; ++i)
    if (i >= group.first / page || i * page < sinks)
      group.pages.emplace_back(static_cast<uint32_t>(i), KvkTensor{.offset = 0, .bytes = bytes, .hash = {}});
}

// Fills one page of the file from `read(from, to, out)`, which gives canonical tokens.
template <typename Read>
void fill_page(const KvkGroup& group, int32_t offset, uint32_t index, std::span<std::byte> page,
               const Read& read) {
  const int32_t size = group.geometry.page_tokens;
  const int32_t begin = static_cast<int32_t>(index) * size, end = std::min(begin + size, offset);
  const PageForm form = page_form(group.geometry);
  const auto copy = [&](int32_t from, int32_t to) {
    if (from >= to) return;
    std::vector<std::byte> tokens(static_cast<size_t>(to - from) * token_bytes(group.geometry));
    read(from, to, tokens);
    scatter(group.geometry, form, tokens, from - begin, to - from, page);
  };
  const int32_t sink_end = std::clamp(std::min(group.geometry.sinks, group.first), begin, end);
  copy(begin, sink_end);
  copy(std::clamp(group.first, sink_end, end), end);
}

}  // namespace

uint64_t kvk_bytes_about(const Sequence& sequence) {
  const Row& row = SequenceAccess::row(sequence);
  uint64_t bytes = kKvkAlignment + align_up(sequence.state().size(), kKvkAlignment);
  for (size_t g = 0; g < row.cache->groups(); ++g)
    bytes += sequence.pages(g) *
             align_up(page_form(row.cache->layout(g, row.encoded).geometry()).page_bytes, kKvkAlignment);
  for (const Attachment& attachment : sequence.attachments())
    for (const Attachment::Tensor& tensor : attachment.tensors)
      bytes += align_up(tensor.data.size(), kKvkAlignment);
  return bytes;
}

uint64_t write_kvk(const std::filesystem::path& path, KvkHeader header, const Sequence& sequence,
                   const WriteWatch& watch) {
  const Row& row = SequenceAccess::row(sequence);
  const KvCache& cache = *row.cache;
  check_between_steps(row, "storing");
  if (row.round)
    throw_error(ErrorCode::invalid_input, "{}: storing inside a speculative round: resolve it first",
                path.string());
  if (row.offset == 0)
    throw_error(ErrorCode::invalid_input, "{}: cannot persist an empty cache", path.string());
  KVASIR_CHECK(header.offset() == row.offset);
  header.layout = KvkHeader::Layout::pages;
  header.encoded = row.encoded;
  header.origin = row.origin;
  header.min_reusable = row.min_reusable;
  header.groups.clear();
  for (size_t g = 0; g < cache.groups(); ++g) {
    KvkGroup group;
    group.geometry = cache.layout(g, row.encoded).geometry();
    group.owners = cache.shape().groups[g].owners;
    group.first = row.groups[g].evicted_below;
    if (token_bytes(group.geometry) != cache.layout(g, row.encoded).token_bytes())
      throw_error(ErrorCode::internal, "group {}: tokens of {} bytes in memory and {} in files", g,
                  cache.layout(g, row.encoded).token_bytes(), token_bytes(group.geometry));
    list_pages(group, row.offset);
    header.groups.push_back(std::move(group));
  }
  header.attachments.clear();
  std::vector<std::span<const std::byte>> attached;
  for (const Attachment& from : sequence.attachments()) {
    KvkAttachment& to = header.attachments.emplace_back(KvkAttachment{from.schema, from.metadata, {}});
    for (const Attachment::Tensor& tensor : from.tensors) {
      to.tensors.push_back(
          {{.offset = 0, .bytes = tensor.data.size(), .hash = {}}, tensor.dtype, tensor.shape});
      attached.emplace_back(tensor.data);
    }
  }
  const auto fill = [&](size_t g, size_t i, std::span<std::byte> page) {
    const KvkGroup& group = header.groups[g];
    const PageLayout& layout = cache.layout(g, row.encoded);
    fill_page(group, row.offset, group.pages[i].first, page,
              [&](int32_t from, int32_t to, std::span<std::byte> out) {
                layout.export_tokens(
                    row.groups[g].pages[static_cast<size_t>(from / group.geometry.page_tokens)],
                    from % group.geometry.page_tokens, to - from, out);
              });
  };
  return write_file(path, header, fill, sequence.state(), attached, watch);
}

uint64_t convert_kvk(const KvkFile& from, const std::filesystem::path& path, KvkHeader::Layout layout,
                     int page_tokens, const std::function<void()>& publish) {
  KvkHeader header = from.header();
  header.layout = layout;
  const int32_t offset = header.offset();
  for (KvkGroup& group : header.groups) {
    group.geometry.page_tokens = layout == KvkHeader::Layout::pages ? page_tokens : 0;
    if (layout == KvkHeader::Layout::pages) {
      list_pages(group, offset);
      continue;
    }
    group.pages.clear();
    group.planes.clear();
    const uint64_t live =
        static_cast<uint64_t>(offset - group.first + std::min(group.geometry.sinks, group.first));
    const auto list = planes(group.geometry);
    for (size_t i = 0; i < group.owners.size() * list.size(); ++i)
      group.planes.push_back(
          {.offset = 0,
           .bytes = static_cast<uint64_t>(group.geometry.kv_heads) * live * list[i % list.size()].bytes,
           .hash = {}});
  }
  const auto fill = [&](size_t g, size_t i, std::span<std::byte> out) {
    const KvkGroup& group = header.groups[g];
    if (layout == KvkHeader::Layout::pages) {
      fill_page(group, offset, group.pages[i].first, out,
                [&](int32_t first, int32_t to, std::span<std::byte> tokens) {
                  from.tokens(g, first, to - first, tokens);
                });
      return;
    }
    const auto list = planes(group.geometry);
    const size_t plane = i % list.size();
    std::byte* to = out.data();
    const auto copy = [&](int head, int32_t begin, int32_t end) {
      for (int32_t position = begin; position < end;) {
        int32_t run = 0;
        const std::byte* rows = from.rows(g, i / list.size(), plane, head, position, &run);
        run = std::min(run, end - position);
        const size_t bytes = static_cast<size_t>(run) * list[plane].bytes;
        std::memcpy(to, rows, bytes);
        to += bytes;
        position += run;
      }
    };
    for (int head = 0; head < group.geometry.kv_heads; ++head) {
      copy(head, 0, std::min(group.geometry.sinks, group.first));
      copy(head, group.first, offset);
    }
  };
  std::vector<std::span<const std::byte>> attached;
  for (const KvkAttachment& attachment : from.header().attachments)
    for (const KvkAttachment::Tensor& tensor : attachment.tensors)
      attached.push_back(from.tensor(tensor.place));
  return write_file(path, header, fill, from.state(), attached, {.publish = publish});
}

}  // namespace kvasir::kv
