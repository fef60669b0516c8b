// Fetching the next segment while this one is computed. A core reads at memory speed only if some lines are
// on their way all the time: requests are spread evenly over the products and the softmax (in bursts they
// fill the line buffers and everything waits), in the order of memory (the processor's own prefetcher then
// runs ahead). Included by cpu.cc inside the level's own namespace.

constexpr int kLine = 64;

struct Fetch {
  const std::byte *at = nullptr, *end = nullptr;  // of the run of bytes under way
  const KeySegment* from = nullptr;
  int run = 0;
  int score_lines = 0, softmax_lines = 0, value_lines = 0;  // per step of a product, per vector of weights
  // Into the first-level cache, or the second only. AMD's processors read faster with the former, though the
  // first level does not hold a segment.
  bool first_level = false;

  // Moves on to the next run when this one is done.
  void refill() {
    while (at >= end && from != nullptr && run < from->runs) {
      at = from->run[run++];
      end = at + from->run_bytes;
    }
  }
};

// Requests lines; a copy of the pointers stays in registers.
struct FetchCursor {
  const std::byte *at, *end;
  bool first_level;
  explicit HWY_INLINE FetchCursor(Fetch& fetch) : first_level(fetch.first_level) {
    fetch.refill();
    at = fetch.at;
    end = fetch.end;
  }
  // The next `count`; the last ones of a run may lie behind it.
  HWY_INLINE void lines(int count) {
    if (at >= end) return;
    const std::byte* last = at + count * kLine;
    if (first_level) {
      for (; at < last; at += kLine) __builtin_prefetch(at, 0, 3);
    } else {
      for (; at < last; at += kLine) __builtin_prefetch(at, 0, 2);
    }
  }
  HWY_INLINE void done(Fetch& fetch) const { fetch.at = at; }
};

// Shares the lines of `next` over `score_steps` and `value_steps` product steps and `vectors` vectors of
// weights. A part of 8 goes to the softmax, which takes longer with codes.
Fetch plan_fetch(const KeySegment* next, bool codes, int score_steps, int vectors, int value_steps) {
  Fetch fetch;
  fetch.from = next;
  if (next == nullptr) return fetch;
  const int total = next->runs * static_cast<int>((next->run_bytes + kLine - 1) / kLine);
  const int scores = total * (codes ? 2 : 3) / 8, softmax = total * (codes ? 3 : 2) / 8;
  fetch.score_lines = scores / score_steps > 0 ? scores / score_steps : 1;
  fetch.softmax_lines = (softmax + vectors - 1) / vectors;
  const int left = total - fetch.score_lines * score_steps - fetch.softmax_lines * vectors;
  fetch.value_lines = left > 0 ? (left + value_steps - 1) / value_steps : 1;
  return fetch;
}
