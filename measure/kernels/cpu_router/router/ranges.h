// Tasks of one route, a range of them a worker. A worker takes its own from the front; one that has
// none left takes from the end of the longest range, so that a slow one, whose core is shared or
// was taken away, holds nobody up.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace router {

class Ranges {
 public:
  explicit Ranges(int threads) : threads_(threads), ranges_(new Range[size_t(threads)]) {}

  // Cut `tasks` tasks of a round among the workers; nobody takes any meanwhile.
  void cut(uint32_t round, int64_t tasks) {
    for (int t = 0; t < threads_; ++t)
      ranges_[t].word.store(word(round, uint32_t(tasks * t / threads_),
                                 uint32_t(tasks * (t + 1) / threads_)),
                            std::memory_order_release);
  }

  // The next of a worker's own tasks; -1 if it has none in this round.
  int take(uint32_t round, int t) {
    uint64_t at = ranges_[t].word.load(std::memory_order_acquire);
    while (left(at, round) > 0)
      if (ranges_[t].word.compare_exchange_weak(at, word(round, first(at) + 1, last(at)),
                                                std::memory_order_acq_rel))
        return int(first(at));
    return -1;
  }

  // The last task of the longest range of the workers that `may` be helped; -1 if there is none.
  template <class May>
  int steal(uint32_t round, const May& may) {
    for (;;) {
      int from = -1, most = 0;
      uint64_t seen = 0;
      for (int t = 0; t < threads_; ++t) {
        const uint64_t at = ranges_[t].word.load(std::memory_order_acquire);
        if (left(at, round) > most && may(t)) from = t, most = left(at, round), seen = at;
      }
      if (from < 0) return -1;
      if (ranges_[from].word.compare_exchange_strong(seen, word(round, first(seen), last(seen) - 1),
                                                     std::memory_order_acq_rel))
        return int(last(seen)) - 1;
    }
  }

 private:
  struct alignas(64) Range { std::atomic<uint64_t> word{0}; };   // round | last | first
  static uint64_t word(uint32_t round, uint32_t first, uint32_t last) {
    return uint64_t(round) << 32 | last << 16 | first;
  }
  static uint32_t first(uint64_t at) { return uint32_t(at & 0xffff); }
  static uint32_t last(uint64_t at) { return uint32_t(at >> 16 & 0xffff); }
  static int left(uint64_t at, uint32_t round) {
    return uint32_t(at >> 32) == round ? int(last(at)) - int(first(at)) : 0;
  }

  const int threads_;
  std::unique_ptr<Range[]> ranges_;
};

}  // namespace router
