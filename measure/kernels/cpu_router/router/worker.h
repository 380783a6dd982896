// One thread of the pool, and how threads wait and count together.
#pragma once
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace router {

inline void relax(int& spins) {
  // A yield now and then keeps an oversubscribed machine alive; the shares of a job take less.
  if (++spins % 8192 == 0) sched_yield();
  else __builtin_ia32_pause();
}

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch()).count();
}

// When the first worker saw a route and when the last was done.
struct Span { int64_t seen_ns, done_ns; };
constexpr int kSpans = 4096;   // that are kept, by sequence

struct alignas(64) Counter { std::atomic<int64_t> value{0}; };

// Chunks [first, last) of the pages of one (sequence, KV head).
struct Part {
  int g, s, first, last, chunks, pages;
  bool whole() const { return last - first == chunks; }
};

struct alignas(64) Worker {
  std::atomic<uint32_t> update_done{0};                  // sequence of the last one
  std::atomic<bool> stalled{false};                      // test hook: stop working and beating
  std::atomic<uint64_t>* beats = nullptr;                // its heartbeat in the mailbox
  uint64_t beat_count = 0;
  int spins = 0;
  Memory scores, candidates;
  Choice choice;
  std::atomic<uint64_t> read{0};
  std::thread thread;

  void beat() {
    if ((++beat_count & 255) == 0) beats->store(beat_count, std::memory_order_relaxed);
  }
  void idle() {
    beat();
    relax(spins);
  }
};

}  // namespace router
