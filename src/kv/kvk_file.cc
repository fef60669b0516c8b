// Reading of .kvk files: everything is checked before anything is used.
#include "kv/kvk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kv/kvk_header.h"
#include "kv/restore.h"
#include "kv/row.h"
#include "kv/scheme.h"

namespace kvasir::kv {
namespace {

constexpr size_t kPreamble = 64;
constexpr char kMagic[8] = {'K', 'V', 'A', 'S', 'I', 'R', 'K', 'V'};

template <typename T>
T read_le(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The header's text, after the checks of the preamble. `file` holds at least the preamble and the header.
struct Preamble {
  uint64_t header_bytes = 0, data_start = 0, header_hash = 0;
};

Preamble check_preamble(const std::byte* bytes, uint64_t length, const std::string& path) {
  if (length < kPreamble || std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    throw_error(ErrorCode::corrupt_file, "{}: not a kvasir KV cache file", path);
  if (const uint32_t version = read_le<uint32_t>(bytes + 8); version != kKvkVersion)
    throw_error(ErrorCode::unsupported, "{}: unsupported formatVersion {} (this build reads {})", path,
                version, kKvkVersion);
  Preamble preamble{.header_bytes = read_le<uint32_t>(bytes + 12),
                    .data_start = read_le<uint64_t>(bytes + 16),
                    .header_hash = read_le<uint64_t>(bytes + 24)};
  if (preamble.header_bytes > length - kPreamble || preamble.header_bytes > kKvkHeaderLimit ||
      preamble.data_start != align_up(kPreamble + preamble.header_bytes, kKvkAlignment))
    throw_error(ErrorCode::corrupt_file,
                "{}: header length {} and data start {} are not possible in {} bytes", path,
                preamble.header_bytes, preamble.data_start, length);
  if (const uint64_t stated = read_le<uint64_t>(bytes + 32); stated != length)
    throw_error(ErrorCode::corrupt_file, "{}: {} bytes, but it says {} (truncated or appended to)", path,
                length, stated);
  for (size_t i = 40; i < kPreamble; ++i)
    if (bytes[i] != std::byte{0})
      throw_error(ErrorCode::corrupt_file, "{}: reserved bytes are not zero", path);
  return preamble;
}

void check_header_hash(std::span<const std::byte> header, const Preamble& preamble, const std::string& path) {
  if (XXH64(header.data(), header.size(), 0) != preamble.header_hash)
    throw_error(ErrorCode::corrupt_file, "{}: header hash mismatch (truncated or corrupt)", path);
}

// Tensors lie in the file, ascending, without overlap.
void check_tensors(const KvkHeader& header, uint64_t data_start, uint64_t length, const std::string& path) {
  uint64_t end = 0;
  const auto check = [&](const KvkTensor& tensor) {
    const uint64_t room = length > data_start ? length - data_start : 0;
    if (tensor.offset < end || tensor.offset > room || tensor.bytes > room - tensor.offset)
      throw_error(ErrorCode::corrupt_file,
                  "{}: tensor at offset {} of {} bytes overlaps another or ends beyond the file", path,
                  tensor.offset, tensor.bytes);
    end = tensor.offset + tensor.bytes;
  };
  header.each_tensor(check);
}

}  // namespace

std::string StoreIdentity::fingerprint() const {
  const std::string text =
      fmt::format("{}\n{}\n{}\n{}", config_fingerprint, weights_digest, numerics_id, tokenizer_hash);
  return hex64(XXH64(text.data(), text.size(), 0));
}

std::vector<Origin> origins() {
  return {{}, {.engine = std::string(kMlxLm)}};
}

StoreIdentity identity_of(StoreIdentity own, const Origin& origin) {
  if (origin) own.numerics_id += "+" + origin.engine;
  return own;
}

void KvkHeader::each_tensor(const std::function<void(KvkTensor&)>& visit) {
  for (KvkGroup& group : groups) {
    for (auto& [index, tensor] : group.pages) visit(tensor);
    for (KvkTensor& tensor : group.planes) visit(tensor);
  }
  if (state) visit(*state);
  for (KvkAttachment& attachment : attachments)
    for (KvkAttachment::Tensor& tensor : attachment.tensors) visit(tensor.place);
}
void KvkHeader::each_tensor(const std::function<void(const KvkTensor&)>& visit) const {
  const_cast<KvkHeader*>(this)->each_tensor(std::function<void(KvkTensor&)>(visit));
}

bool KvkHeader::trimmable() const {
  if (state || !attachments.empty()) return false;
  return std::all_of(groups.begin(), groups.end(), [&](const KvkGroup& group) {
    return !group.geometry.window || offset() < *group.geometry.window;
  });
}

KvkHeader read_kvk_header(const std::filesystem::path& path) {
  const std::string name = path.string();
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe is no file to wait for
  if (fd < 0) throw_error(ErrorCode::not_found, "{}: cannot be opened: {}", name, std::strerror(errno));
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    throw_error(ErrorCode::corrupt_file, "{}: not a kvasir KV cache file", name);
  const auto read_at = [&](std::byte* out, size_t count, off_t offset) {
    for (size_t done = 0; done < count;) {
      const ssize_t got = ::pread(fd, out + done, count - done, offset + static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw_error(ErrorCode::corrupt_file, "{}: cannot be read to its end", name);
      done += static_cast<size_t>(got);
    }
  };
  const auto length = static_cast<uint64_t>(status.st_size);
  std::byte bytes[kPreamble] = {};
  if (length >= kPreamble) read_at(bytes, kPreamble, 0);
  const Preamble preamble = check_preamble(bytes, length, name);
  std::vector<std::byte> text(preamble.header_bytes);
  read_at(text.data(), text.size(), kPreamble);
  check_header_hash(text, preamble, name);
  KvkHeader header = parse_header({reinterpret_cast<const char*>(text.data()), text.size()}, name);
  check_tensors(header, preamble.data_start, length, name);
  return header;
}

KvkFile KvkFile::open(const std::filesystem::path& path, bool verify, ThreadTeam* team) {
  KvkFile file;
  file.file_ = MappedFile::open(path);
  const auto bytes = file.file_.bytes();
  const Preamble preamble = check_preamble(bytes.data(), bytes.size(), file.path());
  const auto header = bytes.subspan(kPreamble, preamble.header_bytes);
  check_header_hash(header, preamble, file.path());
  file.header_ = parse_header({reinterpret_cast<const char*>(header.data()), header.size()}, file.path());
  file.data_start_ = preamble.data_start;
  check_tensors(file.header_, preamble.data_start, bytes.size(), file.path());
  for (const KvkGroup& group : file.header_.groups) {
    GroupGeometry geometry = group.geometry;
    if (file.header_.layout == KvkHeader::Layout::dense) geometry.page_tokens = 1;
    PageForm form = page_form(geometry);
    file.planes_.push_back(std::move(form.planes));
    file.plane_at_.push_back(std::move(form.plane_at));
    file.layer_bytes_.push_back(form.layer_bytes);
    auto& slots = file.page_slot_.emplace_back();
    if (!group.pages.empty()) slots.resize(group.pages.back().first + 1, ~uint32_t{0});
    for (uint32_t i = 0; i < group.pages.size(); ++i) slots[group.pages[i].first] = i;
  }
  if (verify) file.verify_tensors(team);
  return file;
}

std::span<const std::byte> KvkFile::tensor(const KvkTensor& tensor) const {
  return file_.bytes().subspan(data_start_ + tensor.offset, tensor.bytes);
}

void KvkFile::verify_tensors(ThreadTeam* team) const {
  std::vector<const KvkTensor*> tensors;
  header_.each_tensor([&](const KvkTensor& entry) { tensors.push_back(&entry); });
  // What belongs to nothing is zero: before the data, between tensors, behind the last one.
  const auto whole = file_.bytes();
  size_t end = kPreamble + read_le<uint32_t>(whole.data() + 12);
  const auto check_gap = [&](size_t next) {
    const auto gap = whole.subspan(end, next - end);
    if (std::any_of(gap.begin(), gap.end(), [](std::byte b) { return b != std::byte{0}; }))
      throw_error(ErrorCode::corrupt_file, "{}: bytes between {} and {} are not zero", path(), end, next);
  };
  for (const KvkTensor* entry : tensors) {
    check_gap(data_start_ + entry->offset);
    end = data_start_ + entry->offset + entry->bytes;
  }
  check_gap(whole.size());
  share(team, tensors.size(), [&](size_t i, size_t) {
    const auto bytes = tensor(*tensors[i]);
    if (hex64(XXH64(bytes.data(), bytes.size(), 0)) != tensors[i]->hash)
      throw_error(ErrorCode::corrupt_file, "{}: tensor hash mismatch at offset {}", path(),
                  tensors[i]->offset);
  });
}

const std::byte* KvkFile::rows(size_t g, size_t layer, size_t plane, int head, int32_t position,
                               int32_t* run) const {
  const KvkGroup& group = header_.groups[g];
  const size_t row = planes_[g][plane].bytes;
  if (header_.layout == KvkHeader::Layout::pages) {
    const int32_t page = group.geometry.page_tokens;
    const size_t index = static_cast<size_t>(position / page);
    KVASIR_CHECK(index < page_slot_[g].size() && page_slot_[g][index] != ~uint32_t{0});
    const auto bytes = tensor(group.pages[page_slot_[g][index]].second);
    *run = page - position % page;
    return bytes.data() + layer * layer_bytes_[g] + plane_at_[g][plane] +
           (static_cast<size_t>(head) * static_cast<size_t>(page) + static_cast<size_t>(position % page)) *
               row;
  }
  // Sinks that the window left behind come first, then [first, offset).
  const int32_t sinks = std::min(group.geometry.sinks, group.first);
  const int32_t live = header_.offset() - group.first + sinks;
  const int32_t at = position < group.first ? position : position - group.first + sinks;
  KVASIR_CHECK(position >= group.first || position < sinks);
  *run = position < group.first ? sinks - position : header_.offset() - position;
  const auto bytes = tensor(group.planes[layer * planes_[g].size() + plane]);
  return bytes.data() +
         (static_cast<size_t>(head) * static_cast<size_t>(live) + static_cast<size_t>(at)) * row;
}

void KvkFile::tokens(size_t g, int32_t first, int32_t count, std::span<std::byte> out) const {
  const KvkGroup& group = header_.groups[g];
  const size_t token = token_bytes(group.geometry);
  KVASIR_CHECK(out.size() == static_cast<size_t>(count) * token && first >= 0 &&
               int64_t{first} + count <= header_.offset());
  size_t at = 0;
  for (size_t layer = 0; layer < group.owners.size(); ++layer)
    for (size_t plane = 0; plane < planes_[g].size(); ++plane) {
      const size_t row = planes_[g][plane].bytes;
      for (int head = 0; head < group.geometry.kv_heads; ++head, at += row)
        for (int32_t done = 0; done < count;) {
          int32_t run = 0;
          const std::byte* from = rows(g, layer, plane, head, first + done, &run);
          run = std::min(run, count - done);
          std::byte* to = out.data() + static_cast<size_t>(done) * token + at;
          for (int32_t t = 0; t < run; ++t, from += row, to += token) std::memcpy(to, from, row);
          done += run;
        }
    }
}

std::span<const std::byte> KvkFile::state() const {
  return header_.state ? tensor(*header_.state) : std::span<const std::byte>{};
}

namespace {

// What kind of state each layer has decides what its bytes are: compared layer by layer, before any size is.
void check_signatures(const KvkFile& file, const KvCache& cache, bool encoded) {
  const std::vector<int>& group_of = cache.shape().group_of;
  std::vector<std::string> stored(group_of.size(), "none");
  for (const KvkGroup& group : file.header().groups)
    for (const int owner : group.owners)
      if (static_cast<size_t>(owner) < stored.size())
        stored[static_cast<size_t>(owner)] = layer_signature(group.geometry);
  for (size_t owner = 0; owner < stored.size(); ++owner) {
    const PageLayout& layout = cache.layout(static_cast<size_t>(group_of[owner]), encoded);
    if (const std::string expected = layer_signature(layout.geometry()); stored[owner] != expected)
      throw_error(ErrorCode::invalid_input,
                  "{}: signature of cached layer {} mismatch (file {}, expected {})", file.path(), owner,
                  stored[owner], expected);
  }
}

}  // namespace

Sequence restore_sequence(KvCache& cache, const KvkFile& file, ThreadTeam* team) {
  const KvkHeader& header = file.header();
  const CacheShape& shape = cache.shape();
  const auto differs = [&](std::string_view field, const auto& stored, const auto& expected) {
    throw_error(ErrorCode::invalid_input, "{}: {} mismatch (file {}, expected {})", file.path(), field,
                stored, expected);
  };
  size_t owners = 0;
  for (const KvkGroup& group : header.groups) owners += group.owners.size();
  if (owners != shape.group_of.size())
    throw_error(ErrorCode::invalid_input, "{}: {} cached layers but model has {}", file.path(), owners,
                shape.group_of.size());
  const bool encoded = header.encoded || !shape.converts();
  check_signatures(file, cache, encoded);
  if (header.groups.size() != shape.groups.size())
    differs("number of layer groups", header.groups.size(), shape.groups.size());
  if (shape.converts() && encoded && header.min_reusable != shape.start)
    differs("start of the encoded stage", header.min_reusable, shape.start);
  if (!encoded && header.offset() > shape.start) differs("plain tokens", header.offset(), shape.start);
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    GroupGeometry stored = header.groups[g].geometry, expected = cache.layout(g, encoded).geometry();
    stored.page_tokens = expected.page_tokens;
    stored.codec.k.group = expected.codec.k.group;  // 32, implied, for the rotated codecs
    stored.codec.v.group = expected.codec.v.group;
    if (describe(header.groups[g].geometry) != describe(expected) || !(stored == expected))
      differs(fmt::format("geometry of group {}", g), describe(header.groups[g].geometry),
              describe(expected));
    if (header.groups[g].owners != shape.groups[g].owners)
      differs(fmt::format("layers of group {}", g), header.groups[g].owners.size(),
              shape.groups[g].owners.size());
    if (token_bytes(header.groups[g].geometry) != cache.layout(g, encoded).token_bytes())
      differs(fmt::format("bytes per token of group {}", g), token_bytes(header.groups[g].geometry),
              cache.layout(g, encoded).token_bytes());
  }
  const size_t state_bytes = cache.states().bytes_per_slot();
  if (file.state().size() != state_bytes) differs("recurrent state bytes", file.state().size(), state_bytes);

  StoredRow stored = {.offset = header.offset(),
                      .min_reusable = header.min_reusable,
                      .encoded = encoded,
                      .first = {},
                      .state = file.state(),
                      .origin = header.origin};
  for (const KvkGroup& group : header.groups) stored.first.push_back(group.first);
  Sequence sequence = fill_sequence(
      cache, stored,
      [&](size_t group, int32_t first, int32_t count, std::span<std::byte> out) {
        file.tokens(group, first, count, out);
      },
      team);
  if (!header.attachments.empty()) {
    Attachments attachments;
    for (const KvkAttachment& from : header.attachments) {
      Attachment& to = attachments.emplace_back(Attachment{from.schema, from.metadata, {}});
      for (const KvkAttachment::Tensor& tensor : from.tensors) {
        const auto bytes = file.tensor(tensor.place);
        to.tensors.push_back({tensor.dtype, tensor.shape, {bytes.begin(), bytes.end()}});
      }
    }
    SequenceAccess::row(sequence).attachments = std::make_shared<const Attachments>(std::move(attachments));
  }
  return sequence;
}

}  // namespace kvasir::kv
