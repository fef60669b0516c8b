// A speculative round of several rows and of what goes with them, as one transaction (kv-cache.md 7).
//
//   SpeculativeRound round(batch.rows());
//   round.add({"drafter", begin, commit, rollback});
//   round.begin(4);                 // 4 drafts: every row appends 5 tokens, in one or several steps
//   ... reserve, run, commit ...
//   round.resolve({4, 0, 2});       // accepted drafts of each row: rows keep 5, 1 and 3 of their tokens
//
// A row alone can neither begin nor end a round half-way (Sequence::begin_round, commit_round), so what is
// refused leaves every row as it was: a count that is out of range, a row that cannot begin now, no pages for
// a conversion that is due, a step inside the round that fails and is rolled back. Two things poison the
// round, because nobody knows any more what state is valid:
//
//   - a member that throws in begin, commit or rollback;
//   - a call in a wrong order: begin of a round that is open, resolve of one that is not, or before every row
//   has
//     appended its tokens.
//
// From then on every call of the round, and every call of its rows but destruction, throws InvalidState. The
// rows are to be dropped; their pages come back when they are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kv/cache.h"

namespace kvasir::kv {

class SpeculativeRound {
 public:
  // State beside the rows that has to follow them, as a drafter's own rows.
  struct Member {
    std::string name;  // for messages
    std::function<void(int32_t drafts)> begin;
    std::function<void()> commit;                                 // every row keeps all its tokens
    std::function<void(std::span<const int32_t> keep)> rollback;  // [rows]: so many, 0 .. drafts + 1
  };

  // The rows stay where they are, and the caller's, for as long as the round is open. Throws
  // Error{invalid_input} for a row that is none, is there twice, or is of another cache.
  explicit SpeculativeRound(std::vector<Sequence*> rows);
  SpeculativeRound(const SpeculativeRound&) = delete;
  SpeculativeRound& operator=(const SpeculativeRound&) = delete;
  // An open round is taken back, as by resolve with nothing kept at all.
  ~SpeculativeRound();

  // Throws Error{invalid_input} ("cache exposes an incomplete speculative transaction") when a function is
  // missing or a round is open.
  void add(Member member);

  bool open() const { return open_; }
  bool valid() const;

  // False when a round or a step of a row is open, or a row cannot take drafts + 1 tokens: its conversion
  // (Sequence::max_append) or its layers' limit of tokens comes before. Pages are reserve's business.
  bool can_begin(int32_t drafts) const;
  // Converts rows that are due, then captures all. Throws Error{invalid_input} ("invalid speculative draft
  // count", "speculative state cannot begin this round"), KvPoolExhausted; InvalidState as above.
  void begin(int32_t drafts);
  // accepted [rows]: drafts that were right, 0 .. drafts; a row keeps one token more. Throws
  // Error{invalid_input}
  // ("invalid speculative acceptance count", and the round stays open); InvalidState as above.
  void resolve(std::span<const int32_t> accepted);

 private:
  void poison();
  [[noreturn]] void poison(const std::string& reason);

  std::vector<Sequence*> rows_;
  std::vector<Member> members_;
  int32_t drafts_ = 0;
  bool open_ = false;
  bool poisoned_ = false;
};

}  // namespace kvasir::kv
