#include "cli/remote_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/partial_files.h"
#include "engine/text_model.h"
#include "formats/checkpoint.h"
#include "formats/gguf.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFirstPrefix = uint64_t{4} << 20;  // of a GGUF file: its vocabulary is in the header
constexpr uint64_t kLaterPrefix = uint64_t{1} << 20;  // of the later parts of a split one
constexpr uint64_t kLastPrefix = uint64_t{1} << 28;
constexpr uint64_t kSafetensorsPrefix = uint64_t{128} << 10;
constexpr uint64_t kSafetensorsHeaderLimit = 100'000'000;

// A folder of files that have their full sizes and only their first bytes: sparse, gone with its owner. Those
// of owners that were killed go when the next one is made.
class SparseFolder {
 public:
  SparseFolder() {
    constexpr std::string_view kPrefix = "kvasir-plan-";
    const fs::path temporary = fs::temp_directory_path();
    remove_dead_partials(temporary, kPrefix);
    descriptor_ = make_partial_folder((temporary / kPrefix).string(), path_);
    if (descriptor_ < 0)
      throw_error(ErrorCode::not_found, "{}: no folder can be made: {}", printable(path_.string()),
                  std::strerror(errno));
  }
  SparseFolder(const SparseFolder&) = delete;
  SparseFolder& operator=(const SparseFolder&) = delete;
  ~SparseFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  const fs::path& path() const { return path_; }

  // `bytes` first bytes of `from`, then nothing up to `size`.
  void put(const fs::path& from, const std::string& name, uint64_t bytes, uint64_t size) const {
    std::ifstream in(from, std::ios::binary);
    const fs::path to = path_ / name;
    std::ofstream out(to, std::ios::binary | std::ios::trunc);
    std::vector<char> buffer(size_t{1} << 20);
    for (uint64_t left = bytes; left > 0 && in;) {
      in.read(buffer.data(), static_cast<std::streamsize>(std::min<uint64_t>(buffer.size(), left)));
      out.write(buffer.data(), in.gcount());
      left -= static_cast<uint64_t>(in.gcount());
    }
    out.close();
    std::error_code error;
    fs::resize_file(to, size, error);
    if (!out || error)
      throw_error(ErrorCode::resource_exhausted, "{}: cannot be written (TMPDIR names another folder)",
                  to.string());
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
};

fs::path content_of(const hub::HubCache& cache, const std::string& repo, const hub::RemoteFile& file) {
  std::error_code ignored;
  const fs::path blob = cache.blob(repo, file.digest);
  return fs::exists(blob, ignored) ? blob : cache.incomplete(repo, file.digest);
}

class Prefixes {
 public:
  Prefixes(hub::HubClient& client, const hub::HubCache& cache, const hub::Listing& listing,
           const std::vector<hub::RemoteFile>& files, const hub::DownloadOptions& options)
      : client_(client), cache_(cache), listing_(listing), files_(files), options_(options) {
    options_.progress = nullptr;
  }

  // The first `bytes[i]` bytes of each file into `folder`.
  void fetch(const std::vector<uint64_t>& bytes, const SparseFolder& folder) {
    std::vector<hub::DownloadItem> items;
    for (size_t i = 0; i < files_.size(); ++i)
      if (!present(i)) items.push_back({files_[i], std::min(bytes[i], files_[i].size)});
    if (!items.empty()) hub::download(client_, cache_, listing_, items, options_);
    for (size_t i = 0; i < files_.size(); ++i)
      folder.put(content_of(cache_, listing_.repo, files_[i]), std::string(files_[i].name()),
                 std::min(bytes[i], files_[i].size), files_[i].size);
  }

 private:
  bool present(size_t i) const {
    std::error_code ignored;
    return fs::exists(cache_.blob(listing_.repo, files_[i].digest), ignored);
  }

  hub::HubClient& client_;
  const hub::HubCache& cache_;
  const hub::Listing& listing_;
  const std::vector<hub::RemoteFile>& files_;
  hub::DownloadOptions options_;
};

void fetch_gguf_headers(Prefixes& prefixes, const std::vector<hub::RemoteFile>& files,
                        const SparseFolder& folder) {
  std::vector<uint64_t> bytes(files.size(), kLaterPrefix);
  bytes[0] = kFirstPrefix;
  for (;;) {
    prefixes.fetch(bytes, folder);
    bool whole = true;
    try {
      const formats::GgufFile gguf = formats::GgufFile::open(folder.path() / files[0].name());
      for (size_t i = 0; i < gguf.parts(); ++i)
        if (gguf.header(i).size() > std::min(bytes[i], files[i].size)) {
          whole = false;
          bytes[i] = gguf.header(i).size();
        }
      if (whole) return;
    } catch (const Error& error) {
      // Nothing but zeros follows the prefix: the header may be longer than it.
      const bool all = std::all_of(files.begin(), files.end(), [&](const hub::RemoteFile& file) {
        const size_t i = static_cast<size_t>(&file - files.data());
        return bytes[i] >= std::min(file.size, kLastPrefix);
      });
      if (all || error.code() == ErrorCode::unsupported) throw;
      for (uint64_t& prefix : bytes) prefix *= 4;
    }
  }
}

void fetch_safetensors_headers(Prefixes& prefixes, const std::vector<hub::RemoteFile>& files,
                               const SparseFolder& folder) {
  std::vector<uint64_t> bytes(files.size(), kSafetensorsPrefix);
  prefixes.fetch(bytes, folder);
  bool more = false;
  for (size_t i = 0; i < files.size(); ++i) {
    unsigned char length[8] = {};
    std::ifstream(folder.path() / files[i].name(), std::ios::binary).read(reinterpret_cast<char*>(length), 8);
    uint64_t header = 0;
    for (int b = 7; b >= 0; --b) header = header << 8 | length[b];
    if (header > kSafetensorsHeaderLimit || header + 8 <= bytes[i]) continue;
    bytes[i] = header + 8;
    more = true;
  }
  if (more) prefixes.fetch(bytes, folder);
}

// What cannot be spoken with: no vocabulary, or one that is broken. A chat template may be (--raw).
void check_text(const fs::path& path) {
  const std::string problem = formats::Checkpoint::open(path).text_problem();
  if (!problem.empty()) throw_error(ErrorCode::unsupported, "{}: {}", path.string(), problem);
  engine::TextSide::open(path);
}

}  // namespace

engine::MemoryReport plan_remote(hub::HubClient& client, const hub::HubCache& cache,
                                 const hub::Listing& listing, const std::vector<hub::RemoteFile>& weights,
                                 const std::vector<hub::RemoteFile>& small,
                                 const hub::DownloadOptions& download, const engine::EngineOptions& options) {
  KVASIR_CHECK(!weights.empty());
  const SparseFolder folder;
  Prefixes prefixes(client, cache, listing, weights, download);
  const bool gguf = weights.front().path.ends_with(".gguf");
  const fs::path path = gguf ? folder.path() / weights.front().name() : folder.path();
  try {
    if (gguf)
      fetch_gguf_headers(prefixes, weights, folder);
    else
      fetch_safetensors_headers(prefixes, weights, folder);
    for (const hub::RemoteFile& file : small)
      if (file.path == file.name())
        folder.put(content_of(cache, listing.repo, file), file.path, file.size, file.size);
    const engine::MemoryReport report = engine::Engine::plan(path, options);
    check_text(path);
    return report;
  } catch (const Error& error) {
    // The scratch folder's name means nothing to anybody: say the repository's.
    std::string text = error.what();
    for (size_t at = text.find(folder.path().string()); at != std::string::npos;
         at = text.find(folder.path().string()))
      text.replace(at, folder.path().string().size(), listing.repo);
    throw Error(error.code(), text, error.details());
  }
}

}  // namespace kvasir::cli
