// The largest logits of each row, so that choosing a token need not look at a whole vocabulary again, and,
// joined to the head, so that the vocabulary's logits need not be written at all.
//
//   logits [logits, vocab] f32  ->  [logits, CandidateSegments::row_bytes()] u8
//
// Only in steps whose StepState.candidates is k > 0: then each segment of the vocabulary gives its k largest
// logits. The order is by value, descending, and of equal values by id, ascending, so the k first of all
// segments' lists are the k first of the row, whoever computed which segment. A logit that is not a number is
// in no list and is told of apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

struct Candidate {
  float value;
  int32_t id;
  bool operator==(const Candidate&) const = default;
};
inline bool precedes(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

inline constexpr int kMostCandidates = 64;

// The best of one segment, in order.
struct CandidateList {
  int32_t count = 0;
  int32_t not_a_number = 0;  // whether a NaN was met
  Candidate best[kMostCandidates];
};

struct CandidateKernels {
  // Logits x of the ids first_id, first_id + 1, ... (ascending from call to call) into `list`, which keeps
  // the `most` first.
  void (*scan)(const float* x, int64_t count, int32_t first_id, int most, CandidateList* list);
};
KVASIR_KERNEL_TABLE(CandidateKernels, candidate_kernels)

// How a row of logits is cut: at most 64 segments of whole blocks of 32 ids.
struct CandidateSegments {
  explicit CandidateSegments(int64_t vocab);
  int64_t vocab, width, count;
  int64_t row_bytes() const { return count * static_cast<int64_t>(sizeof(CandidateList)); }
};

program::ValueId candidates(program::ProgramBuilder& builder, program::ValueId logits, IsaLevel isa);

// The `most` first of a row's lists; `most` <= the step's candidates. `not_a_number`: a NaN was among the
// logits.
void merge_candidates(const CandidateSegments& segments, const std::byte* row, int most,
                      std::vector<Candidate>& out, bool& not_a_number);

// Program rewrite: joins a linear to the `candidates` that read its result, an output of the program: a step
// that asks for candidates writes no logits, any other step is as before. Returns how many.
int fuse_linear_candidates(program::ProgramBuilder& builder);

}  // namespace kvasir::ops
