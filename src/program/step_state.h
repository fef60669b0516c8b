// Everything that changes between two replays of one program: integers and pointers, read by the ops at run
// time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/step_view.h"

namespace kvasir::program {

// Half-open range of key positions [begin, end) that a token may attend, besides its group's sinks.
struct KeyRange {
  int32_t begin;
  int32_t end;
};

// A mask class is an index that the model gives to each kind of visibility it uses (full causal, window of
// 512, bidirectional block, ...); attention ops name theirs.
struct StepState {
  int32_t tokens = 0;  // tokens appended in this step, grouped by row, ascending position inside a row
  int32_t rows = 0;    // sequences in this step
  int32_t logits = 0;  // tokens whose logits are wanted

  // Per token [tokens].
  std::span<const int32_t>
      token_ids;  // >= 0: a row of the embedding table; < 0: row ~id of external_embeddings
  std::span<const int32_t> row_of_token;  // index into the per-row arrays
  std::span<const int32_t> kv_position;   // position in its row, and the slot that it is stored in
  std::array<std::span<const int32_t>, 3>
      rope_position;                                  // text: three times the same array; images: (t, h, w)
  std::vector<std::span<const KeyRange>> key_ranges;  // [mask classes][tokens]
  std::span<const uint64_t>
      draft_mask;  // empty, or [tokens]: bit j set = the j-th newest key of the range is visible

  // Per row [rows].
  std::span<const int32_t>
      first_token;  // [rows + 1]: tokens of row r are [first_token[r], first_token[r + 1])
  std::span<const int32_t> adapter_slot;   // empty (no adapters), or -1 = none
  std::vector<kv::GroupView> kv;           // [layer groups]
  std::span<const int32_t> state_slot_in;  // recurrent state: slot read, slot written
  std::span<const int32_t> state_slot_out;

  // Outputs.
  std::span<const int32_t> logit_tokens;  // [logits]: tokens whose logits are wanted, ascending
  // 0: whole rows of logits are wanted. k > 0: the k largest of each row are enough (ops/candidates), and
  // whole rows need not be written.
  int32_t candidates = 0;

  const float* external_embeddings = nullptr;  // [rows of the buffer, hidden]
  int64_t external_stride = 0;                 // floats from one external row to the next
};

}  // namespace kvasir::program
