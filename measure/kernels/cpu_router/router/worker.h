// One thread of the pool, and how threads wait and count together.
#pragma once
#include <sched.h>

#include <atomic>
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

struct alignas(64) Counter { std::atomic<int64_t> value{0}; };

// Chunks [first, last) of the pages of one (sequence, KV head).
struct Part {
  int g, s, first, last, chunks, pages;
  bool whole() const { return last - first == chunks; }
};

struct alignas(64) Worker {
  std::atomic<uint32_t> route_done{0}, update_done{0};   // sequence of the last finished job
  std::atomic<bool> stalled{false};                      // test hook: stop working and beating
  std::atomic<uint64_t>* beats = nullptr;                // its heartbeat in the mailbox
  uint64_t beat_count = 0;
  int spins = 0;
  Memory scores, candidates;
  std::unique_ptr<Choice> choice[2];
  std::vector<Part> parts;
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
