// The KV cache of one model: pages for every layer group, sequences that own page tables, steps that append.
//
//   KvCache cache(shape, layouts_for(isa), plan_capacity(shape, layouts, workload), &ledger);
//   Sequence a = cache.create(), b = cache.create();
//   Step step;
//   cache.reserve({&a, &b}, {7, 1}, step);     // all or nothing: pages for 7 and 1 new tokens, copy-on-write
//   where shared state.kv = step.views();                   // ... run the program ... step.commit(); //
//   a.offset() += 7, b.offset() += 1; not called: everything is as before
//
// A batch is a list of sequences; joining, leaving, re-ordering and forking touch page tables and reference
// counts only, and nothing that is stored for a sequence depends on the others (kv-cache.md 1). Only the
// thread that owns the cache may call.
//
// Delayed conversion (kv-cache.md 4.2): with shape.start > 0 a row is stored plain until it holds `start`
// tokens, and converts, page by page, when it is next appended to. A step or a round may not cross that
// boundary: max_append() says where to cut. Windows (5): a page is released by the commit that leaves it
// behind, never while a round is open.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "kv/attachments.h"
#include "kv/cache_shape.h"
#include "kv/page_pool.h"
#include "kv/range_error.h"
#include "kv/state_pool.h"
#include "kv/step_view.h"

namespace kvasir::kv {

class KvCache;
class Step;
class DonorView;
struct Row;
struct Checkpoint;

// A position that cannot be resumed: behind an evicted window, between recurrent states, or before a
// conversion.
class NotResumable : public Error {
 public:
  NotResumable(int32_t wanted, int32_t nearest);
  int32_t nearest() const {
    return nearest_;
  }  // the largest position below the wanted one that can be resumed (0 always can)

 private:
  int32_t nearest_;
};

inline constexpr std::string_view kMlxLm = "mlx-lm";  // the engine whose caches can be imported

// Who computed keys and values that are not this build's: they belong to a conversation that a user named,
// and never serve the look-up of a prefix (design law 1: another kernel gives other bits).
struct Origin {
  std::string engine = {};  // "mlx-lm"; empty: this build, under the NumericsKey of the row's model
  std::string source = {};  // for people: the file, and what it says of itself
  explicit operator bool() const { return !engine.empty(); }
  bool operator==(const Origin&) const = default;
};

// What every call but destruction throws for a row whose speculative round failed half-way (kv/round.h).
class InvalidState : public Error {
 public:
  InvalidState()
      : Error(ErrorCode::invalid_input, "speculative state is invalid and must be discarded: drop the row") {}
};

// One sequence (row). Owns its page references; moving it moves nothing in memory. Must not outlive its
// cache. Calls in a wrong order (a fork inside a step, ...) throw Error{invalid_input} and change nothing.
class Sequence {
 public:
  Sequence();
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();
  explicit operator bool() const { return row_ != nullptr; }

  int32_t offset() const;        // committed tokens; the position of the next one
  int32_t min_reusable() const;  // > 0 after a conversion: no position below it can be resumed
  bool encoded() const;          // the converting groups hold encoded pages (always true with start 0)
  // Of what is stored, as far as it goes back to somebody else; forks have it, too, and what is appended to
  // such a row depends on it. Nothing is left of it in a row that was cut to 0.
  const Origin& origin() const;
  bool in_round() const;
  bool in_step() const;

  // Most tokens that may be appended by the next step, so that conversion happens exactly at `start`;
  // INT32_MAX when no conversion is pending (kv-cache.md 4.2, "chunk cut").
  int32_t max_append() const;

  // Another sequence with the first `at` tokens (default: all): page references only, the shared partial page
  // is copied when one of the two appends. Checkpoints up to `at` go along; an open round does not. Throws
  // NotResumable.
  Sequence fork() const;
  Sequence fork(int32_t at) const;

  // Drops all tokens at and beyond `length`. Throws NotResumable (and changes nothing); truncate(0) is always
  // possible. Where there are MLA layers a length outside [0, offset()] is a KvRangeError.
  void truncate(int32_t length);
  int32_t nearest_resumable(int32_t position) const;  // the largest resumable position <= `position`

  // Remembers this token boundary: its window pages and recurrent state stay referenced, so truncate and fork
  // can come back to it. Costs nothing for models with full attention only (every position is resumable). A
  // row keeps as many as were planned (Workload::checkpoints); a newer one replaces the oldest.
  void checkpoint();
  std::vector<int32_t> checkpoints() const;

  // Speculative rounds. While one is open nothing is evicted, converted or released. Steps append as usual
  // (in one or several); commit_round(keep) keeps the first `keep` of the tokens appended since begin_round;
  // rollback_round() keeps none. Kept tokens keep their bytes, positions and recurrent state exactly. Nested
  // rounds are refused (Error{invalid_input}).
  void begin_round();
  void commit_round(int32_t keep);
  void rollback_round() { commit_round(0); }
  int32_t round_tokens() const;  // appended since begin_round

  // Companion state of exactly the tokens that the row has now (attachments.h); replaces what was attached.
  // Committing more tokens and truncation drop it; forks of all tokens, prefix trees and files keep it.
  // Throws Error{invalid_input} for attachments that cannot be stored, an empty row, a step or a round that
  // is open.
  void attach(Attachments attachments);
  std::span<const Attachment> attachments() const;
  // The attachment of that schema, null when nothing is attached; throws Error{unsupported} ("companion cache
  // codec mismatch") when all that is attached is of other schemas.
  const Attachment* companion(std::string_view schema) const { return find_companion(attachments(), schema); }

  // Read-only reference to the committed KV of one group as it is now: unchanged by whatever happens to the
  // sequence later. Throws Error{invalid_input} when there are no tokens.
  DonorView donate(size_t group) const;

  // Canonical bytes of `count` tokens from `position` of a group (PageLayout::export_tokens). Throws
  // Error{invalid_input} if some of them are not stored (evicted, or beyond offset()).
  std::vector<std::byte> bytes(size_t group, int32_t position, int32_t count) const;
  // Positions that are stored: [first, offset()), plus [0, sinks).
  int32_t first_stored(size_t group) const;
  std::span<const std::byte> state() const;  // recurrent state at offset(); empty without recurrent layers

  // Pages and bytes that this sequence references, shared ones and attachments included (kv-cache.md 17,
  // "physical row bytes").
  size_t physical_bytes() const;
  uint32_t pages(size_t group) const;

  KvCache& cache() const;
  bool valid() const;  // false: a round failed half-way, see InvalidState

 private:
  friend class KvCache;
  friend class Step;
  friend class SequenceAccess;
  explicit Sequence(std::unique_ptr<Row> row);
  std::unique_ptr<Row> row_;
};

// Pages of one group of one sequence, read-only, for a drafter that attends the target's keys and values
// (kv-cache.md 9). It shows the tokens that were committed when it was taken, and goes on to show them, byte
// for byte, while the owner appends, truncates, converts or is destroyed: a page that the view holds is
// copied before anyone writes into it. It must not outlive the cache.
//
// Positions are absolute, those of the page table: position p lies in pages().pages[p / page_tokens].
class DonorView {
 public:
  DonorView() = default;  // empty: no pages, all numbers 0
  DonorView(DonorView&& other) noexcept;
  DonorView& operator=(DonorView&& other) noexcept;
  ~DonorView();  // returns the references; pages that nobody else holds are free

  RowPages pages() const;
  // Committed tokens; the default position of a drafter's query.
  int32_t offset() const { return offset_; }
  // The keys that may be attended are [start, end), and the sinks of the group's geometry. Without a window
  // start is 0; with a window of W it is offset - W, or 0, and one more while the owner has taken its last
  // token back (W tokens stay stored, of which the next query needs W - 1).
  int32_t start() const { return start_; }
  int32_t end() const { return offset_; }
  int32_t width() const { return offset_ - start_; }
  // What the numbers are that attention reads: of plain keys (values) their own type, of codes that of their
  // scales. Of the tokens that the view shows: a row that converts later changes no view.
  Dtype key_dtype() const;
  Dtype value_dtype() const;

 private:
  friend class Sequence;
  void release();
  PagePool* pool_ = nullptr;
  const PageLayout* layout_ = nullptr;
  std::vector<std::byte*> pages_;
  std::vector<PageId> ids_;
  int32_t start_ = 0;
  int32_t offset_ = 0;
};

// One step of some sequences, between reserve and commit. Reuse one object: its vectors keep their room, so a
// decode step does not allocate. Destroyed or reserved again without commit, it rolls back: pages returned,
// copies dropped, sequences as before.
class Step {
 public:
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() { rollback(); }

  bool open() const { return cache_ != nullptr; }
  // [groups][rows in the order of reserve]; valid until commit or rollback. For StepState::kv.
  const std::vector<GroupView>& views() const { return views_; }
  // Recurrent slots, [rows]: the one to read and the one to write after the row's last token (empty without
  // recurrent layers).
  std::span<const int32_t> state_in() const { return state_in_; }
  std::span<const int32_t> state_out() const { return state_out_; }
  // [tokens of the step, row after row]: the slot that takes the state after that token, or -1. Every token
  // of a row with an open round has one; otherwise only a row's last token. Empty without recurrent layers.
  std::span<const int32_t> token_state_out() const { return token_state_out_; }

  void commit();
  void rollback();

 private:
  friend class KvCache;
  friend struct Row;
  struct Reserved {
    Row* row;
    int32_t count;
  };
  struct Copied {  // a shared page replaced by a copy
    Row* row;
    uint32_t group, index;
    PageId old;
    Row* taken_by;  // a row of this step that went on writing into the old page; its reference is not held by
                    // the step then
  };
  void finish();

  KvCache* cache_ = nullptr;
  std::vector<Reserved> rows_;
  std::vector<uint32_t> page_counts_;  // [rows][groups] before
  std::vector<Copied> copied_;
  std::vector<std::vector<RowPages>> row_pages_;  // [groups][rows]
  std::vector<GroupView> views_;
  std::vector<int32_t> state_in_, state_out_, token_state_out_;
};

class KvCache {
 public:
  KvCache(CacheShape shape, const LayoutFactory& layouts, const CacheCapacity& capacity, MemoryLedger* ledger,
          bool poison = kPoisonPages);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  ~KvCache();

  Sequence create();

  // Pages for counts[r] new tokens of each row (0: the row is only read), all or nothing. Rows are distinct,
  // without an open step, and from this cache. Converts rows that are due. Throws KvPoolExhausted,
  // KvRangeError when MLA layers hold no more, or Error{invalid_input} when a count passes max_append(); then
  // nothing has changed, but for rows that have converted.
  void reserve(std::span<Sequence* const> rows, std::span<const int32_t> counts, Step& step);
  void reserve(std::initializer_list<Sequence*> rows, std::initializer_list<int32_t> counts, Step& step) {
    reserve(std::span(rows.begin(), rows.size()), std::span(counts.begin(), counts.size()), step);
  }

  // Whether reserve would find the pages; when it would not, the pool that lacks most.
  struct Shortage {
    std::string pool;
    uint32_t needed, free, capacity;
  };
  std::optional<Shortage> shortage(std::span<Sequence* const> rows, std::span<const int32_t> counts) const;

  // Makes sure that so many pages of each group (and state slots) can be allocated; for restoring. Throws
  // KvPoolExhausted.
  void require_pages(std::span<const uint32_t> pages, bool encoded, uint32_t slots);

  // Called when a pool lacks pages, before reserve gives up: may release some (the prefix tree yields its
  // own) and returns true if it released any.
  void on_pressure(std::function<bool()> release) { release_ = std::move(release); }

  const CacheShape& shape() const { return shape_; }
  size_t groups() const { return shape_.groups.size(); }
  const PageLayout& layout(size_t group, bool encoded) const;
  PagePool& pool(size_t group, bool encoded);
  const PagePool& pool(size_t group, bool encoded) const {
    return const_cast<KvCache*>(this)->pool(group, encoded);
  }
  StateSlotPool& states() { return states_; }
  const StateSlotPool& states() const { return states_; }

  struct PoolStats {
    std::string name;
    size_t page_bytes = 0;
    size_t bytes_per_token = 0;
    uint32_t capacity = 0, committed = 0, used = 0, high_water = 0;
  };
  std::vector<PoolStats> stats() const;  // of every pool, for `inspect`, /stats and logs
  size_t committed_bytes() const;        // equals the ledger's entry
  size_t used_bytes() const;
  uint64_t pages_copied() const { return pages_copied_; }        // by copy-on-write, since construction
  uint64_t pages_converted() const { return pages_converted_; }  // by delayed conversion

 private:
  friend class Step;
  friend class Sequence;
  friend struct Row;
  struct Group {
    std::unique_ptr<PageLayout> layout, plain_layout;
    std::unique_ptr<PagePool> pool, plain_pool;
  };
  struct Need {
    std::vector<uint32_t> pages, plain_pages;  // [groups]
    uint32_t slots = 0;
  };

  void reserve_rows(std::span<Sequence* const> rows, std::span<const int32_t> counts, Step& step);
  void check_reserve(std::span<Sequence* const> rows, std::span<const int32_t> counts) const;
  void count_need(std::span<Sequence* const> rows, std::span<const int32_t> counts, Need& need) const;
  bool lacks(const Need& need) const;
  void require(const Need& need);
  bool relieve() { return release_ != nullptr && release_(); }
  bool due(const Row& row) const { return !row_encoded(row) && row_offset(row) == shape_.start; }
  static bool row_encoded(const Row& row);
  static int32_t row_offset(const Row& row);
  void convert_if_due(Row& row);  // all or nothing; throws KvPoolExhausted
  void convert(Row& row);         // needs pages that were required before
  void append_pages(Row& row, size_t index, int32_t count, Step& step);
  void append_states(const Row& row, int32_t count, Step& step);
  void evict(Row& row);
  void release_checkpoint(const Row& row, const Checkpoint& point);
  void retain_state(SlotId id) {
    if (!states_.empty() && id != StateSlotPool::kInitial) states_.retain(id);
  }
  void release_state(SlotId id) {
    if (!states_.empty() && id != StateSlotPool::kInitial) states_.release(id);
  }

  CacheShape shape_;
  std::vector<Group> groups_;
  StateSlotPool states_;
  std::function<bool()> release_;
  mutable Need need_;  // room kept between steps
  mutable std::vector<std::pair<uint64_t, uint32_t>> shared_tails_;
  uint64_t pages_copied_ = 0;
  uint64_t pages_converted_ = 0;
  bool any_converts_ = false;
  uint32_t checkpoints_;  // that a row may keep
};

// Signatures of the layers of a row (scheme.h) as it stores them now, [owners].
std::vector<std::string> signatures(const Sequence& row);
// For graphs that are specialised for one vector of signatures: whether such a graph may run a step of these
// rows (asked after reserve, which converts). A vector of another length, or one layer of one row that is
// stored otherwise: false, and the generic graph runs.
bool match_signatures(std::span<const std::string> built_for, std::span<Sequence* const> rows);

}  // namespace kvasir::kv
