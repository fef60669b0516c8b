#include "engine/logit_run.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"

namespace kvasir::engine {
namespace {

// The same numbers on every platform, unlike the standard distributions.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  size_t below(size_t count) { return count < 2 ? 0 : static_cast<size_t>(engine_() % count); }
  bool one_in(size_t count) { return below(count) == 0; }
  // A few tokens, often; many, sometimes.
  size_t chunk(size_t most) {
    const size_t kinds[] = {1, 1 + below(8), 1 + below(64), most};
    return std::min(most, kinds[below(4)]);
  }
  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

constexpr int32_t kRoundTokens = 16;  // most tokens of a neighbour's speculative round

struct Neighbour {
  std::vector<int32_t> ids;  // the first sequence.offset() of them are stored
  kv::Sequence sequence;
  bool present = false;  // in the batch; otherwise it waits, with all that it stores
  bool fork = false;     // made of another one; gone when it ends
};

class Neighbours {
 public:
  Neighbours(Engine& engine, const Context& row, const std::vector<std::vector<int32_t>>& with, Dice& dice)
      : engine_(engine),
        row_(row),
        with_(with),
        dice_(dice),
        limit_(static_cast<size_t>(engine.context_limit())) {
    for (const std::vector<int32_t>& ids : with) {
      engine.model().check_tokens(ids);
      Neighbour fresh;
      fresh.ids.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), limit_)));
      fresh.sequence = engine.cache().create();
      rows_.push_back(std::move(fresh));
    }
  }

  std::vector<Neighbour>& rows() { return rows_; }

  // What happens to them between two steps.
  void between_steps() {
    for (size_t i = 0; i < rows_.size();) {
      Neighbour& row = rows_[i];
      const bool ended = static_cast<size_t>(row.sequence.offset()) == row.ids.size() || dice_.one_in(40);
      if (ended && row.fork) {
        rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      if (ended) {
        row.sequence = engine_.cache().create();
        row.present = false;
      }
      row.present = row.present ? !dice_.one_in(8) : dice_.one_in(3);
      if (row.sequence.in_round()) {
        if (dice_.one_in(2)) resolve(row);
      } else {
        if (dice_.one_in(8)) cut(row);
        if (dice_.one_in(8)) row.sequence.checkpoint();
        if (dice_.one_in(6)) row.sequence.begin_round();
      }
      ++i;
    }
    if (!rows_.empty() && rows_.size() < 2 * with_.size() && dice_.one_in(4)) fork();
  }

 private:
  void resolve(Neighbour& row) {
    const auto appended = static_cast<size_t>(row.sequence.round_tokens());
    const size_t keep = dice_.one_in(3) ? 0 : dice_.below(appended + 1);
    row.sequence.commit_round(static_cast<int32_t>(keep));
    if (keep < appended) other_ending(row);
  }

  void cut(Neighbour& row) {
    const auto wanted = static_cast<int32_t>(dice_.below(static_cast<size_t>(row.sequence.offset()) + 1));
    row.sequence.truncate(row.sequence.nearest_resumable(wanted));
    if (dice_.one_in(2)) other_ending(row);
  }

  void fork() {
    if (dice_.one_in(3)) return fork_row();
    Neighbour& from = rows_[dice_.below(rows_.size())];
    if (from.sequence.in_round() || from.sequence.offset() == 0) return;
    const auto wanted = static_cast<int32_t>(dice_.below(static_cast<size_t>(from.sequence.offset()) + 1));
    Neighbour copy;
    copy.sequence = from.sequence.fork(from.sequence.nearest_resumable(wanted));
    copy.ids = from.ids;
    copy.fork = true;
    copy.present = from.present;
    other_ending(copy);
    rows_.push_back(std::move(copy));
  }

  // A neighbour that shares the row's own pages, and goes on with tokens of another.
  void fork_row() {
    if (row_.sequence.offset() == 0) return;
    const auto wanted = static_cast<int32_t>(dice_.below(row_.tokens.size() + 1));
    Neighbour copy;
    copy.sequence = row_.sequence.fork(row_.sequence.nearest_resumable(wanted));
    copy.ids.assign(row_.tokens.begin(), row_.tokens.begin() + copy.sequence.offset());
    const std::vector<int32_t>& tail = with_[dice_.below(with_.size())];
    copy.ids.insert(copy.ids.end(), tail.begin(), tail.end());
    copy.ids.resize(std::min(copy.ids.size(), limit_));
    copy.fork = true;
    copy.present = true;
    rows_.push_back(std::move(copy));
  }

  // Other tokens than before, of the same vocabulary, follow what is stored.
  void other_ending(Neighbour& row) {
    const auto stored = static_cast<size_t>(row.sequence.offset());
    if (stored + 2 > row.ids.size()) return;
    const size_t turn = 1 + dice_.below(row.ids.size() - stored - 1);
    std::rotate(row.ids.begin() + static_cast<std::ptrdiff_t>(stored),
                row.ids.begin() + static_cast<std::ptrdiff_t>(stored + turn), row.ids.end());
  }

  Engine& engine_;
  const Context& row_;
  const std::vector<std::vector<int32_t>>& with_;
  Dice& dice_;
  size_t limit_;
  std::vector<Neighbour> rows_;
};

}  // namespace

int rows_with_neighbours(size_t with) {
  return 1 + 2 * static_cast<int>(with);
}

void run_logits(Engine& engine, const LogitRun& run) {
  KVASIR_CHECK(run.row != nullptr && run.visit);
  models::Model& model = engine.model();
  const program::Counts& maxima = model.maxima();
  KVASIR_CHECK(maxima.rows >= rows_with_neighbours(run.with.size()));
  model.check_tokens(run.ids);
  Context& context = *run.row;
  kv::KvCache& cache = context.sequence.cache();
  KVASIR_CHECK(run.with.empty() || &cache == &engine.cache());
  StepBuilder builder(model);
  kv::Step step;
  const bool scheduled = run.schedule.has_value() || !run.with.empty();
  Dice dice(run.schedule.value_or(0));
  Neighbours neighbours(engine, context, run.with, dice);
  // Pages are planned for rounds of a chunk.
  const int32_t round_limit = static_cast<int32_t>(std::min<int64_t>(kRoundTokens, maxima.tokens));
  std::span<const int32_t> ids = run.ids;
  std::vector<int32_t> wanted;
  bool paused = false;
  while (true) {
    if (run.cancelled && run.cancelled()) throw Error(ErrorCode::cancelled, "interrupted");
    const auto stored = static_cast<int64_t>(context.sequence.offset());
    if (stored == run.pause_at && run.on_pause && !paused) {
      paused = true;
      run.on_pause();
    }
    if (ids.empty()) return;
    if (scheduled) neighbours.between_steps();

    size_t most = std::min<size_t>(
        {ids.size(), static_cast<size_t>(maxima.tokens), static_cast<size_t>(context.sequence.max_append())});
    if (run.pause_at > stored) most = std::min(most, static_cast<size_t>(run.pause_at - stored));
    const size_t count = scheduled ? dice.chunk(most) : most;
    size_t budget = static_cast<size_t>(maxima.tokens) - count;
    std::vector<Neighbour*> order = {nullptr};  // null: the row itself
    for (Neighbour& row : neighbours.rows())
      if (row.present) order.push_back(&row);
    dice.shuffle(order);

    builder.clear();
    int32_t first = 0;
    std::vector<int32_t> others;  // tokens of neighbours whose logits are computed, too
    for (Neighbour* row : order) {
      if (row == nullptr) {
        first = static_cast<int32_t>(builder.tokens());
        builder.add(context.sequence, ids.first(count), WantLogits::none);
        continue;
      }
      const auto offset = static_cast<size_t>(row->sequence.offset());
      size_t room =
          std::min({budget, row->ids.size() - offset, static_cast<size_t>(row->sequence.max_append())});
      if (row->sequence.in_round())
        room = std::min(room, static_cast<size_t>(std::max(0, round_limit - row->sequence.round_tokens())));
      if (room == 0) continue;
      const size_t taken = dice.chunk(room);
      builder.add(row->sequence, std::span<const int32_t>(row->ids).subspan(offset, taken), WantLogits::none);
      if (dice.one_in(2)) others.push_back(static_cast<int32_t>(builder.tokens()) - 1);
      budget -= taken;
    }
    cache.reserve(builder.sequences(), builder.counts(), step);
    program::StepState& state = builder.state(step);
    model.run_trunk(state, engine.executor());
    if (scheduled && dice.one_in(16)) {
      step.rollback();  // as if it had failed: the next step runs the same tokens again
      continue;
    }
    wanted.resize(count);
    std::iota(wanted.begin(), wanted.end(), first);
    for (const int32_t other : others)
      wanted.insert(wanted.begin() + static_cast<std::ptrdiff_t>(dice.below(wanted.size() + 1)), other);
    const auto at_once = static_cast<size_t>(maxima.logits);
    for (size_t begin = 0; begin < wanted.size(); begin += at_once) {
      const std::span<const int32_t> block =
          std::span<const int32_t>(wanted).subspan(begin, std::min(at_once, wanted.size() - begin));
      state.logit_tokens = block;
      state.logits = static_cast<int32_t>(block.size());
      model.run_head(state, engine.executor());
      for (size_t i = 0; i < block.size(); ++i)
        if (block[i] >= first && block[i] < first + static_cast<int32_t>(count))
          run.visit(stored + block[i] - first, model.logits(static_cast<int64_t>(i)));
    }
    step.commit();
    context.tokens.insert(context.tokens.end(), ids.begin(),
                          ids.begin() + static_cast<std::ptrdiff_t>(count));
    ids = ids.subspan(count);
  }
}

}  // namespace kvasir::engine
