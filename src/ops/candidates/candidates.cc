#include "ops/candidates/candidates.h"

#include <algorithm>
#include <memory>
#include <new>

#include "base/error.h"
#include "base/memory.h"
#include "ops/linear/linear.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::ValueId;

CandidateList* lists(const OpContext& context, ValueId y, int64_t row) {
  return context.row<CandidateList>(y, row);
}

std::string description(const CandidateSegments& segments) {
  return fmt::format("of {} ids in {} segments", segments.vocab, segments.count);
}

class Candidates final : public program::Op {
 public:
  Candidates(ValueId x, ValueId y, int64_t vocab, IsaLevel isa)
      : Op({x}, {y}), segments_(vocab), isa_(isa), kernels_(candidate_kernels(isa)) {}

  std::string_view kind() const override { return "candidates"; }
  std::string describe() const override { return description(segments_); }
  program::OpCost cost(int64_t rows) const override {
    return {4.0 * static_cast<double>(rows * segments_.vocab), static_cast<double>(rows * segments_.vocab)};
  }
  const CandidateSegments& segments() const { return segments_; }
  IsaLevel isa() const { return isa_; }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], y = outputs()[0];
    const int most = context.step.candidates;
    if (most == 0) return;
    const WorkRange work = split_work(context.count(x) * segments_.count, context.members, context.member);
    for (int64_t i = work.begin; i < work.end; ++i) {
      const int64_t row = i / segments_.count, segment = i % segments_.count,
                    first = segment * segments_.width;
      CandidateList* list = new (lists(context, y, row) + segment) CandidateList;
      kernels_.scan(context.row<const float>(x, row) + first,
                    std::min(segments_.width, segments_.vocab - first), static_cast<int32_t>(first), most,
                    list);
    }
  }

 private:
  CandidateSegments segments_;
  IsaLevel isa_;
  const CandidateKernels& kernels_;
};

// So many logits of a piece of a segment stay in the second-level cache.
constexpr int64_t kPieceLogits = kPieceRows * 256;

int64_t piece_columns(int64_t rows, const CandidateSegments& segments) {
  return std::min(segments.width, kPieceLogits / std::min(rows, kPieceRows) / 32 * 32);
}

class LinearCandidates final : public program::Op {
 public:
  LinearCandidates(std::unique_ptr<program::Op> linear, RecordedLinear recorded, ValueId y,
                   const CandidateSegments& segments, IsaLevel isa)
      : Op(linear->inputs(), {linear->outputs()[0], y}),
        linear_(std::move(linear)),
        recorded_(std::move(recorded)),
        segments_(segments),
        kernels_(candidate_kernels(isa)) {}

  std::string_view kind() const override { return "linear_candidates"; }
  std::string describe() const override {
    return recorded_.describe() + "; candidates " + description(segments_);
  }
  size_t workspace_bytes(const program::Counts& maxima, int threads) const override {
    return scratch_bytes(std::max(maxima.tokens, maxima.logits)) * static_cast<size_t>(threads);
  }
  program::OpCost cost(int64_t rows) const override { return recorded_.cost(rows); }

  void run(const OpContext& context) const override {
    const int most = context.step.candidates;
    if (most == 0) {
      linear_->run(context);
      return;
    }
    const ValueId y = outputs()[1];
    const int64_t rows = context.count(y);
    Matmul product = recorded_.product(context, inputs(), recorded_.parts[0], rows);
    product.out = reinterpret_cast<float*>(context.workspace +
                                           static_cast<size_t>(context.member) * scratch_bytes(rows));
    const int64_t most_columns = piece_columns(rows, segments_);
    product.out_stride = most_columns;
    WorkRange piece{};
    while (context.work.take(context.member, segments_.count, 1, piece)) {
      for (int64_t row = 0; row < rows; ++row) new (lists(context, y, row) + piece.begin) CandidateList;
      const int64_t begin = piece.begin * segments_.width,
                    end = std::min(begin + segments_.width, segments_.vocab);
      for (int64_t column = begin; column < end; column += most_columns) {
        const int64_t columns = std::min(most_columns, end - column);
        product.out_first = column;
        matmul_piece_by_rows(product, column / kPanelRows, (column + columns + kPanelRows - 1) / kPanelRows,
                             [&](int64_t row, int64_t count) {
                               for (int64_t r = 0; r < count; ++r)
                                 kernels_.scan(product.out + r * product.out_stride, columns,
                                               static_cast<int32_t>(column), most,
                                               lists(context, y, row + r) + piece.begin);
                             });
      }
    }
  }

 private:
  // Enough for steps of fewer rows, too: those have wider pieces.
  size_t scratch_bytes(int64_t rows) const {
    return static_cast<size_t>(std::min(std::min(rows, kPieceRows) * segments_.width, kPieceLogits)) *
           sizeof(float);
  }

  std::unique_ptr<program::Op> linear_;  // what runs when whole rows of logits are wanted
  RecordedLinear recorded_;
  CandidateSegments segments_;
  const CandidateKernels& kernels_;
};

}  // namespace

CandidateSegments::CandidateSegments(int64_t vocabulary)
    : vocab(vocabulary),
      width((vocabulary + 64 * 32 - 1) / (64 * 32) * 32),
      count((vocabulary + width - 1) / width) {}

ValueId candidates(program::ProgramBuilder& builder, ValueId logits, IsaLevel isa) {
  const program::Value value = builder.at(logits);  // a copy: the builder's values move when one is added
  KVASIR_CHECK(value.dtype == Dtype::f32 && value.width <= INT32_MAX);
  const ValueId y = builder.value("candidates", Dtype::u8, value.axis,
                                  {CandidateSegments(value.width).row_bytes()}, value.fixed_count);
  builder.append(std::make_unique<Candidates>(logits, y, value.width, isa));
  return y;
}

void merge_candidates(const CandidateSegments& segments, const std::byte* row, int most,
                      std::vector<Candidate>& out, bool& not_a_number) {
  const auto* list = reinterpret_cast<const CandidateList*>(row);
  out.clear();
  not_a_number = false;
  for (int64_t s = 0; s < segments.count; ++s) not_a_number |= list[s].not_a_number != 0;
  std::vector<int32_t> next(static_cast<size_t>(segments.count), 0);
  while (out.size() < static_cast<size_t>(most)) {
    int64_t from = -1;
    for (int64_t s = 0; s < segments.count; ++s) {
      const int32_t at = next[static_cast<size_t>(s)];
      if (at < list[s].count &&
          (from < 0 || precedes(list[s].best[at], list[from].best[next[static_cast<size_t>(from)]])))
        from = s;
    }
    if (from < 0) return;
    out.push_back(list[from].best[next[static_cast<size_t>(from)]++]);
  }
}

int fuse_linear_candidates(program::ProgramBuilder& builder) {
  std::vector<std::unique_ptr<program::Op>>& ops = builder.mutable_ops();
  int fused = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    std::optional<RecordedLinear> linear = recorded_linear(*ops[i]);
    if (!linear || linear->has_residual || linear->parts.size() != 1 ||
        linear->parts[0].part.epilogue != Epilogue::none)
      continue;
    const ValueId logits = ops[i]->outputs()[0];
    // Whatever else reads the logits would miss them in a step that writes none.
    const std::optional<size_t> reader = builder.only_reader(logits);
    if (!reader) continue;
    const auto* candidates = dynamic_cast<const Candidates*>(ops[*reader].get());
    if (candidates == nullptr) continue;
    const ValueId y = candidates->outputs()[0];
    const CandidateSegments segments = candidates->segments();
    const IsaLevel isa = candidates->isa();
    ops[i] = std::make_unique<LinearCandidates>(std::move(ops[i]), std::move(*linear), y, segments, isa);
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(*reader));
    ++fused;
  }
  return fused;
}

}  // namespace kvasir::ops
