// Companion state of a sequence: what a generation method keeps beside the KV rows, for example a drafter's
// own caches (kv-cache.md 14). It is of exactly the tokens that it was attached at: whatever changes a
// sequence's length drops it, and it is never trimmed. It lies on the heap, outside the pools and their
// ledger; the prefix tree counts its bytes against its cap, and files hold it with a hash per tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace kvasir::kv {

struct Attachment {
  using Value = std::variant<std::string, int64_t, double, bool>;
  struct Tensor {
    Dtype dtype = Dtype::u8;
    std::vector<int64_t> shape;
    std::vector<std::byte> data;  // elements in row-major order, little-endian
    bool operator==(const Tensor&) const = default;
  };
  std::string schema;  // names the codec that wrote it, and its version
  std::map<std::string, Value> metadata;
  std::vector<Tensor> tensors;

  size_t bytes() const;  // of tensors and texts, 8 for a number
  bool operator==(const Attachment&) const = default;
};
using Attachments = std::vector<Attachment>;

inline constexpr size_t kMostAttachments = 64;
inline constexpr size_t kMostAttachedTensors = 4096;  // of one attachment
inline constexpr size_t kMostAttachedFacts = 1024;    // members of one attachment's metadata
inline constexpr size_t kLongestAttachedText = 65536;
inline constexpr size_t kLongestSchema = 256;
inline constexpr size_t kMostAttachedAxes = 8;

size_t attached_bytes(std::span<const Attachment> attachments);

// Throws Error{invalid_input}: more than the bounds above, no schema or the same one twice, text that is not
// UTF-8, a number that is not finite, a tensor whose bytes are not those of its shape.
void check_attachments(std::span<const Attachment> attachments);

// Bytes of a tensor; 0 axes: one element. Throws Error{invalid_input} for a negative axis, more than
// kMostAttachedAxes of them, or more than 2^62 bytes.
uint64_t tensor_bytes(Dtype dtype, std::span<const int64_t> shape);

// The one that the codec `schema` wrote, or null when there are none at all. Throws Error{unsupported}
// ("companion cache codec mismatch") when there are only others': a method must not go on as if it had no
// state.
const Attachment* find_companion(std::span<const Attachment> attachments, std::string_view schema);

}  // namespace kvasir::kv
