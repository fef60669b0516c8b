// Where the graph builder gets its weights: named tensors of a checkpoint, checked against the shapes that
// the configuration implies, packed in the order in which the graph asks for them.
//
// A store works in one of five modes. Listing: there is no checkpoint; the calls are written down
// (requests()), which tells what tensors a configuration needs. Planning: nothing is read but headers,
// matrices stay empty, vectors null, and bytes() grows to what packing will take. Loading: the same calls
// pack into an arena that was reserved at exactly that size. Streaming: the same, but each weight takes the
// memory of the one before and is handed on (kvasir pack); what the builder makes of it cannot run. Mapped:
// they take over, and check, what was written so. The builder does not see the difference, so the plan cannot
// disagree with the load.
//
// Every tensor that is asked for is recorded; audit() refuses a checkpoint that lacks some (those that
// planning asked for are taken to be there until then, so that all are named), and one with tensors that
// nobody asked for and that no drop pattern names. Errors: Error{not_found} for missing tensors,
// Error{corrupt_file} for a wrong shape or a value that is not finite, Error{unsupported} for elements that
// are no reals, each naming the tensor; all but the values are told before any value is read.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "base/thread_team.h"
#include "formats/checkpoint.h"
#include "formats/pack_file.h"
#include "models/config.h"
#include "models/model.h"
#include "ops/linear/linear.h"

namespace kvasir::models {

// Rows of one stored matrix [rows, cols], all or by a map, as part of a packed one.
struct MatrixPart {
  std::string path;  // without the suffix
  int64_t rows = 0;  // as stored
  int64_t cols = 0;
  std::vector<int32_t> row_map = {};  // row i of the part is row row_map[i]; empty: all, in order
  int64_t first = 0, count = 0;       // only rows [first, first + count) (then no map); count 0: all
  int64_t slabs = 0;  // the stored shape is [slabs, rows / slabs, cols]; 0: [rows, cols], or any stack
  std::string suffix = ".weight";
  std::string name() const { return path + suffix; }
  int64_t packed_rows() const {
    return count > 0 ? count : row_map.empty() ? rows : static_cast<int64_t>(row_map.size());
  }
};

// Elements of one stored vector [length], all or by a map.
struct VectorPart {
  std::string name;  // in full: "model.layers.0.self_attn.q_proj.bias"
  int64_t length = 0;
  std::vector<int32_t> map;
  int64_t rows = 0;  // the stored shape is [length], or with rows [rows, length / rows]
};

// One request to a store that only lists what a graph would ask for.
struct TensorRequest {
  enum class Kind : uint8_t { matrix, vector, scalar };
  Kind kind = Kind::matrix;
  std::string name;            // in full
  std::vector<int64_t> shape;  // as stored, outermost first
  std::vector<int32_t> map;    // rows (elements of a vector) that are asked for; empty: all
};

// A run of parts in one packed matrix.
struct StoredMatrix {
  const ops::PackedMatrix* matrix = nullptr;  // empty while planning
  int64_t rows = 0;                           // packed rows
  formats::StorageFormat format = formats::StorageFormat::f32;
};

class WeightStore {
 public:
  WeightStore(formats::Checkpoint& checkpoint, const ModelConfig& config);
  // Listing; `untied` answers whether the checkpoint has a head of its own.
  WeightStore(const ModelConfig& config, bool untied);

  // Switches to loading. `arena` was reserved with the planned bytes; the team packs.
  void load_into(Arena& arena, ThreadTeam& team, size_t planned_bytes,
                 std::function<bool(size_t, size_t)> progress);
  // Switches to streaming: `sink` is given every weight and its offset among the packed bytes, ascending. Of
  // memory it takes largest() of a plan, which are `largest`.
  using Sink = std::function<void(size_t offset, std::span<const std::byte> bytes)>;
  void stream_to(Sink sink, size_t largest, MemoryLedger* ledger, ThreadTeam& team, size_t planned_bytes,
                 std::function<bool(size_t, size_t)> progress);
  // Switches to mapped weights; `pack` must outlive the store. The team checks every byte against its digest
  // while it is mapped: Error{corrupt_file} naming file and tensor.
  void map_from(const formats::PackFile& pack, ThreadTeam& team, size_t planned_bytes,
                std::function<bool(size_t, size_t)> progress);
  bool listing() const { return listing_; }
  // Values are there: loading, streaming or mapped.
  bool loading() const { return packing() || pack_ != nullptr; }
  // After loading or streaming: what a file of the packed bytes must say of them. After planning: the same
  // without digests.
  const std::vector<formats::PackEntry>& entries() const { return entries_; }

  bool has(
      const std::string& name) const;  // in full, under any of the prefixes that the family's wrappers use
  // How the matrix `path` is stored. Throws Error{not_found}.
  formats::StorageFormat format(const std::string& path);
  // Dtype of its elements or scales: what "the dtype of the checkpoint" means for a quantized matrix.
  Dtype storage_dtype(const std::string& path);
  int64_t rows(const std::string& path);

  // Parts that share a layout share a matrix: the result has one entry per run of such parts, in order. With
  // PartOrder::interleaved the (two) parts must share one.
  std::vector<StoredMatrix> matrices(const std::vector<MatrixPart>& parts,
                                     ops::PartOrder order = ops::PartOrder::stacked);
  bool can_share(const std::vector<MatrixPart>& parts, ops::PartOrder order = ops::PartOrder::stacked);

  // f32 values, one part after the other; null while planning.
  const float* vector(const std::string& name, int64_t length);
  const float* vectors(const std::vector<VectorPart>& parts);
  // A few values on the host; zeros while planning. A scalar is stored as [] or [1], and listed as the former
  // or, with `one_element`, as the latter.
  std::vector<float> values(const std::string& name, int64_t length);
  float scalar(const std::string& name, bool one_element);
  // The same, above 0 (else Error{corrupt_file}); ones while planning.
  std::vector<double> positive_values(const std::string& name, int64_t length);

  void audit() const;

  const std::vector<TensorRequest>& requests() const { return requests_; }
  size_t bytes() const { return bytes_; }
  size_t largest() const { return largest_; }  // bytes of one weight
  size_t stored_bytes() const { return stored_bytes_; }
  int64_t parameters() const { return parameters_; }
  std::string formats_text() const;  // "q4_1 x 210, q8_0 x 1, f32 x 61"
  std::string digest() const;        // of everything packed, in order; after loading

  // Forgets the checkpoint: from here on the store only owns the packed matrices.
  void release_source() { checkpoint_ = nullptr; }

 private:
  bool packing() const { return arena_ != nullptr || sink_; }
  std::string stored_name(const std::string& name) const;  // empty: absent
  // `expected` stands for a missing tensor while planning.
  const formats::TensorEntry& entry(const std::string& name, std::vector<int64_t> expected);
  std::vector<float> read_values(const formats::TensorEntry& tensor);
  [[noreturn]] void refuse_shape(const formats::TensorEntry& tensor, const std::string& expected) const;
  void use(const formats::TensorEntry& entry);
  void request(const MatrixPart& part);
  ops::PackPart pack_part(const MatrixPart& part, bool data);
  std::byte* take(size_t bytes);
  // The next of the mapped entries, which must be this one.
  std::span<const std::byte> take_mapped(const std::string& name, size_t bytes);
  void check_mapped(const std::string& name, const std::array<uint8_t, 16>& digest) const;
  void advance(size_t stored);

  formats::Checkpoint* checkpoint_ = nullptr;
  bool listing_ = false;
  std::set<std::string> absent_;  // listing: what has() denies
  std::vector<TensorRequest> requests_;
  std::string model_type_;
  std::vector<std::string> drop_;
  Arena* arena_ = nullptr;
  Sink sink_;
  Reservation scratch_;  // streaming: of the weight at hand
  const formats::PackFile* pack_ = nullptr;
  size_t next_entry_ = 0;
  std::vector<formats::PackEntry> entries_;
  ThreadTeam* team_ = nullptr;
  size_t planned_bytes_ = 0;
  std::function<bool(size_t, size_t)> progress_;
  std::deque<ops::PackedMatrix> matrices_;
  std::map<std::string, formats::TensorEntry> missing_;  // planning
  std::set<std::string> used_;
  std::map<std::string, int> formats_;
  size_t bytes_ = 0;
  size_t largest_ = 0;
  size_t stored_bytes_ = 0;
  int64_t parameters_ = 0;
  std::string digests_;
};

}  // namespace kvasir::models
