#include "tokenizer/vocabulary.h"

// Hashes of a few bytes cost less than a call.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"

namespace kvasir::tokenizer {

uint64_t Vocabulary::hash(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

void Vocabulary::reserve(size_t entries, size_t bytes) {
  bytes_.reserve(bytes);
  entries_.reserve(entries);
  entry_of_id_.reserve(entries);
  const size_t slots = std::bit_ceil(std::max<size_t>(16, entries * 2));
  if (slots > slots_.size()) grow(slots);
}

void Vocabulary::grow(size_t slots) {
  slots_.assign(slots, Slot{0, -1});
  mask_ = slots - 1;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const uint64_t h = hash(text_of(entries_[i]));
    size_t s = h & mask_;
    while (slots_[s].entry >= 0) s = (s + 1) & mask_;
    slots_[s] = {static_cast<uint32_t>(h >> 32), static_cast<int32_t>(i)};
  }
}

size_t Vocabulary::slot_of(std::string_view text, uint64_t h) const {
  const auto tag = static_cast<uint32_t>(h >> 32);
  size_t s = h & mask_;
  while (slots_[s].entry >= 0) {
    if (slots_[s].tag == tag && text_of(entries_[static_cast<size_t>(slots_[s].entry)]) == text) break;
    s = (s + 1) & mask_;
  }
  return s;
}

int32_t Vocabulary::add(std::string_view text, int32_t id) {
  return add(text, id, hash(text));
}

int32_t Vocabulary::add(std::string_view text, int32_t id, uint64_t h) {
  KVASIR_CHECK(id >= 0);
  if (entries_.size() * 2 >= slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
  Slot& slot = slots_[slot_of(text, h)];
  if (slot.entry >= 0) return entries_[static_cast<size_t>(slot.entry)].id;
  if (bytes_.size() + text.size() > std::numeric_limits<uint32_t>::max()) {
    throw_error(ErrorCode::resource_exhausted, "tokenizer vocabulary: its texts exceed 4 GiB");
  }
  slot = {static_cast<uint32_t>(h >> 32), static_cast<int32_t>(entries_.size())};
  if (static_cast<size_t>(id) >= entry_of_id_.size()) entry_of_id_.resize(static_cast<size_t>(id) + 1, -1);
  entry_of_id_[static_cast<size_t>(id)] = slot.entry;
  entries_.push_back({static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size()), id});
  bytes_.append(text);
  longest_ = std::max(longest_, text.size());
  return kNone;
}

int32_t Vocabulary::add_or_replace(std::string_view text, int32_t id) {
  const int32_t old = add(text, id);
  if (old == kNone) return old;
  const int32_t e = slots_[slot_of(text, hash(text))].entry;
  entries_[static_cast<size_t>(e)].id = id;
  if (static_cast<size_t>(id) >= entry_of_id_.size()) entry_of_id_.resize(static_cast<size_t>(id) + 1, -1);
  if (entry_of_id_[static_cast<size_t>(old)] == e) entry_of_id_[static_cast<size_t>(old)] = -1;
  entry_of_id_[static_cast<size_t>(id)] = e;
  return old;
}

int32_t Vocabulary::find(std::string_view text, uint64_t h) const {
  if (slots_.empty()) return kNone;
  const int32_t e = slots_[slot_of(text, h)].entry;
  return e < 0 ? kNone : entries_[static_cast<size_t>(e)].id;
}

int32_t Vocabulary::find(std::string_view text) const {
  return find(text, hash(text));
}

std::string_view Vocabulary::text(int32_t id) const {
  return has(id) ? text_of(entries_[static_cast<size_t>(entry_of_id_[static_cast<size_t>(id)])])
                 : std::string_view();
}

size_t Vocabulary::memory_bytes() const {
  return bytes_.capacity() + entries_.capacity() * sizeof(Entry) + entry_of_id_.capacity() * sizeof(int32_t) +
         slots_.capacity() * sizeof(Slot);
}

}  // namespace kvasir::tokenizer
