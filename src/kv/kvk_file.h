// One stored sequence: a .kvk file (kv-cache.md 15). 64 bytes of preamble, a JSON header, then tensors of
// canonical bytes at 4096-byte boundaries. Integers little-endian. Two layouts: `pages` (the store's own: one
// tensor per group and page, in the form of kv-cache.md 2.1) and `dense` (one tensor [H, T, F] per owner
// layer and plane, independent of the page size; export).
//
// A file is written beside its final name, synced and renamed: it appears complete or not at all, and is
// never rewritten. Readers trust nothing: preamble, header hash, every size and offset are checked on
// opening, tensor hashes on request.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/thread_team.h"
#include "kv/cache.h"
#include "kv/planes.h"

namespace kvasir::kv {

// What stored bytes depend on besides the tokens. Every field but model_id must be equal for a file to be
// used.
struct StoreIdentity {
  std::string model_id;            // for people
  std::string config_fingerprint;  // graph-shaping configuration
  std::string weights_digest;
  std::string
      numerics_id;  // models::NumericsKey (everything: activations, isa, kernel set, rope regime, ...)
  std::string scheme_key;
  std::string tokenizer_hash;
  std::string ns;  // adapters with digests and scales; empty: the base model
  bool operator==(const StoreIdentity&) const = default;
  std::string fingerprint() const;  // 16 hex: XXH64 of config, weights, numerics and tokenizer
};

// What such keys and values are stored under: the settings with which they are gone on with, and who computed
// them beside the numerics id. So no model and no settings of this build have this identity, and nothing that
// is looked up under theirs can find it.
StoreIdentity identity_of(StoreIdentity own, const Origin& origin);
std::vector<Origin> origins();  // this build, and each engine that it knows

struct KvkTensor {
  uint64_t offset = 0;  // from the data start, a multiple of 4096
  uint64_t bytes = 0;
  std::string hash;  // XXH64, 16 hex digits
};

struct KvkGroup {
  GroupGeometry geometry;   // of the stored stage; page_tokens: P of the file (dense: 0)
  std::vector<int> owners;  // indices of the owner layers
  int32_t first = 0;        // positions [first, offset) and [0, sinks) are stored
  std::vector<std::pair<uint32_t, KvkTensor>> pages;  // layout pages: page index, ascending
  std::vector<KvkTensor> planes;                      // layout dense: [layers][planes]
};

// What an Attachment says of itself, and where its tensors lie.
struct KvkAttachment {
  struct Tensor {
    KvkTensor place;
    Dtype dtype = Dtype::u8;
    std::vector<int64_t> shape;
  };
  std::string schema;
  std::map<std::string, Attachment::Value> metadata;
  std::vector<Tensor> tensors;
};

struct KvkHeader {
  enum class Layout : uint8_t { pages, dense };
  Layout layout = Layout::pages;
  StoreIdentity identity;
  int64_t created_ms = 0;
  std::string name;           // a conversation saved by name; empty: a cached prefix
  std::string numerics = {};  // what numerics_id is the hash of, "name=value" a line; for messages only
  Origin origin = {};         // who computed it, if somebody else: only of conversations, under identity_of
  std::string metadata;       // the caller's own text (JSON of a conversation, a generation checkpoint)
  std::vector<int32_t> tokens;
  int32_t min_reusable = 0;
  bool encoded = true;
  std::vector<KvkGroup> groups;
  std::optional<KvkTensor> state;
  std::vector<KvkAttachment> attachments;  // of exactly these tokens

  int32_t offset() const { return static_cast<int32_t>(tokens.size()); }
  bool trimmable() const;  // windows that never left anything behind, no recurrent state, no attachments
  // Every tensor, in the order in which they lie in the file.
  void each_tensor(const std::function<void(KvkTensor&)>& visit);
  void each_tensor(const std::function<void(const KvkTensor&)>& visit) const;
};

inline constexpr uint32_t kKvkVersion = 1;
inline constexpr uint64_t kKvkAlignment = 4096;
inline constexpr uint64_t kKvkHeaderLimit = uint64_t{64} << 20;

class KvkFile {
 public:
  // Maps and checks. Throws Error{not_found}, Error{corrupt_file} (not a .kvk file, truncated,
  // contradictory), or Error{unsupported} (version, provider, kind). `verify` also reads every tensor and
  // compares its hash; `team` (may be null) shares that.
  static KvkFile open(const std::filesystem::path& path, bool verify = false, ThreadTeam* team = nullptr);

  const KvkHeader& header() const { return header_; }
  uint64_t file_bytes() const { return file_.size(); }
  const std::string& path() const { return file_.path(); }
  void verify_tensors(ThreadTeam* team = nullptr) const;

  // Canonical bytes of one head's rows of one plane from `position` on; *run is how many positions lie in a
  // row (F bytes each).
  const std::byte* rows(size_t group, size_t layer, size_t plane, int head, int32_t position,
                        int32_t* run) const;
  // Canonical tokens, as PageLayout::export_tokens gives them. They must be stored.
  void tokens(size_t group, int32_t first, int32_t count, std::span<std::byte> out) const;
  std::span<const std::byte> state() const;
  std::span<const std::byte> tensor(const KvkTensor& tensor) const;  // of this file's header

 private:
  MappedFile file_;
  KvkHeader header_;
  uint64_t data_start_ = 0;
  std::vector<std::vector<Plane>> planes_;        // [groups]
  std::vector<std::vector<size_t>> plane_at_;     // [groups][planes]: offset inside a layer of a page
  std::vector<size_t> layer_bytes_;               // [groups]: of a layer inside a page
  std::vector<std::vector<uint32_t>> page_slot_;  // [groups][page index]: which entry of pages, ~0: none
};

// Only the header, checked as above (file length included): for scans of a store. Error{not_found} stands for
// all that keeps a file from being opened.
KvkHeader read_kvk_header(const std::filesystem::path& path);

// For writers in the background, and those of bounded stores. Functions may be empty.
struct WriteWatch {
  // Before every tensor, the header, the sync and the rename. What it throws ends the writing: the draft is
  // removed.
  std::function<void()> step = {};
  // Once, before the rename: the draft is whole and synced.
  std::function<void()> publish = {};
  // Once, as soon as the sequence is not looked at any more: before the sync, which may take long.
  std::function<void()> read = {};
  // A file larger than this is refused before a byte is written: Error{resource_exhausted}.
  uint64_t cap_bytes = UINT64_MAX;
};

// Writes `sequence` (whose tokens are header.tokens) in layout pages. Fills groups, stage, state, origin and
// attachments of the header; the caller sets identity, tokens, name and metadata. Returns the bytes of the
// file. On any error nothing is left behind. Throws Error{resource_exhausted} on a full disk,
// Error{invalid_input} otherwise, and for an empty sequence. Any thread: of the cache and the sequence only
// what never changes while the sequence is held is read (its page table, the bytes of its pages, shapes and
// layouts).
uint64_t write_kvk(const std::filesystem::path& path, KvkHeader header, const Sequence& sequence,
                   const WriteWatch& watch = {});

// What such a file takes, but for a header of more than one block: from the sequence's page counts alone.
uint64_t kvk_bytes_about(const Sequence& sequence);

// Rewrites a file in the other layout or with another page size (0 for dense), from canonical bytes alone.
// `publish` is called when the draft is whole and synced: what it throws ends the writing, as in WriteWatch.
uint64_t convert_kvk(const KvkFile& from, const std::filesystem::path& path, KvkHeader::Layout layout,
                     int page_tokens, const std::function<void()>& publish = {});

// A sequence with the file's bytes and attachments. The signatures of its layers (scheme.h) must be the
// file's, and the cache's groups must be the file's (another page size is fine); `team` (may be null) shares
// the copying. Throws Error{invalid_input} naming the first field that differs, KvPoolExhausted.
Sequence restore_sequence(KvCache& cache, const KvkFile& file, ThreadTeam* team = nullptr);

}  // namespace kvasir::kv
