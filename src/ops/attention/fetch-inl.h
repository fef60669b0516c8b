// Asking for lines before they are used. A core reads at memory speed only if some are on their way all the
// time, the softmax included, and in the order of their use: K of a segment, then V, then the next segment's
// K. Where four blocks are read side by side, a line of each is asked for at a time: four runs of lines,
// which the processor's own prefetchers follow. Included by cpu.cc inside the level's own namespace.

constexpr int kLine = 64;
// How far requests are ahead of the products: what the first-level cache holds beside the lines in use.
constexpr int kLeadLines = 128;
constexpr int kRateUnit = 256;  // rates are lines a step times this
// The part of the lines that is asked for during the softmax, of kRateUnit.
constexpr int kSoftmaxPart = kRateUnit / 8;

// How the lines of a segment are asked for.
struct FetchPlan {
  int key_steps, softmax_steps, value_steps;
  int lead;                       // lines that are asked for before the segment begins
  bool side_by_side;              // a line of each of four blocks at a time
  size_t key_bytes, value_bytes;  // of a block
};

// The lines of a segment's blocks, but for the first ones, which have been asked for, and as many of the next
// segment's.
struct Fetch {
  struct Run {
    const std::byte *at, *end;
    size_t stride, step;  // from line to line of four, from four to four
  };
  Run runs[4 * kSegmentBlocks];
  int count = 0, taken = 0;
  Run now;
  int credit = 0;  // what earlier steps left, of kRateUnit
  int key_rate = 0, softmax_rate = 0, value_rate = 0;

  Fetch(const FetchPlan& plan, const KeySegment& segment, const KeySegment* next) {
    append(plan, segment, plan.lead, INT_MAX);
    if (next != nullptr) append(plan, *next, 0, plan.lead);
    const int keys = lines_of(plan.key_bytes * kSegmentBlocks),
              values = lines_of(plan.value_bytes * kSegmentBlocks), rest = kRateUnit - kSoftmaxPart;
    const bool even = plan.lead > kLeadLines;
    key_rate = (even ? (keys + values) / 2 : keys) * rest / plan.key_steps;
    softmax_rate = (keys + values) * kSoftmaxPart / plan.softmax_steps;
    value_rate = (even ? (keys + values) / 2 : values) * rest / plan.value_steps;
    now = next_run();
  }
  // Of the lines before them.
  Fetch(const FetchPlan& plan, const KeySegment& segment) {
    append(plan, segment, 0, plan.lead);
    now = next_run();
  }
  static int lines_of(size_t bytes) { return static_cast<int>((bytes + kLine - 1) / kLine); }

  // Where there are no registers to spare for a cursor.
  void advance(int rate);

  Run next_run() {
    if (taken < count) return runs[taken++];
    // Nothing is left.
    alignas(kLine) static const std::byte kNothing[4 * kLine] = {};
    return {kNothing, nullptr, 0, 0};
  }

 private:
  // Lines [skip, skip + most) of a segment, in the order of their use.
  void append(const FetchPlan& plan, const KeySegment& segment, int skip, int most) {
    append(plan.side_by_side, segment, segment.keys, plan.key_bytes, skip, most);
    append(plan.side_by_side, segment, segment.values, plan.value_bytes, skip, most);
  }
  void append(bool side_by_side, const KeySegment& segment, const std::byte* const (&blocks)[kSegmentBlocks],
              size_t bytes, int& skip, int& most) {
    for (int r = 0; r < segment.runs && most > 0; ++r) {
      int b = segment.run[r];
      const int end = segment.run[r + 1];
      if (blocks[b] == nullptr) continue;
      if (side_by_side)
        for (; b + 4 <= end; b += 4) append(blocks[b], bytes, kLine, 4 * lines_of(bytes), skip, most);
      if (b < end)
        append(blocks[b], kLine, 4 * kLine, lines_of(bytes * static_cast<size_t>(end - b)), skip, most);
    }
  }
  void append(const std::byte* at, size_t stride, size_t step, int lines, int& skip, int& most) {
    if (skip >= lines || most <= 0) {
      skip -= lines;
      return;
    }
    at += static_cast<size_t>(skip) * step / 4;
    lines -= skip;
    skip = 0;
    if (lines > most) lines = most;
    most -= lines;
    runs[count++] = {at, at + static_cast<size_t>(lines) * step / 4, stride, step};
  }
};

// Asks for lines, four at a time; a copy of the run stays in registers.
class FetchCursor {
 public:
  explicit HWY_INLINE FetchCursor(Fetch& fetch) : fetch_(fetch), now_(fetch.now), credit_(fetch.credit) {}
  HWY_INLINE void advance(int rate) {
    for (credit_ += rate; credit_ >= 4 * kRateUnit; credit_ -= 4 * kRateUnit) {
      if (now_.at >= now_.end) now_ = fetch_.next_run();
      const std::byte* third = now_.at + 2 * now_.stride;
      __builtin_prefetch(now_.at, 0, 3);
      __builtin_prefetch(now_.at + now_.stride, 0, 3);
      __builtin_prefetch(third, 0, 3);
      __builtin_prefetch(third + now_.stride, 0, 3);
      now_.at += now_.step;
    }
  }
  HWY_INLINE void done() const {
    fetch_.now = now_;
    fetch_.credit = credit_;
  }

 private:
  Fetch& fetch_;
  Fetch::Run now_;
  int credit_;
};

HWY_NOINLINE void Fetch::advance(int rate) {
  FetchCursor ahead(*this);
  ahead.advance(rate);
  ahead.done();
}
