// The CPU router as a C library: create, fill, and either call it or let another device drive its
// mailbox. Every function returns 0, or a negative errno-like code that the Python side names.
#include "router/dispatch.h"
#include "router/pool.h"

using namespace router;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kTimeout = -1, kStopped = -2;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Spin until an answer; look at the clock rarely, it costs more than a poll.
int await(const Pool& p, const std::atomic<uint64_t>& answer, uint32_t sequence, double timeout_s) {
  const auto start = Clock::now();
  int spins = 0;
  while (uint32_t(answer.load(std::memory_order_acquire)) != sequence) {
    relax(spins);
    if (spins % 4096) continue;
    if (p.box->stop.load()) return kStopped;
    if (seconds_since(start) > timeout_s) return kTimeout;
  }
  return 0;
}

uint64_t request(uint64_t previous, int layer, int kind) {
  return uint32_t(previous + 1) | uint64_t(uint16_t(layer)) << 32 | uint64_t(kind) << 48;
}

int64_t input_bytes(const Config& c, int kind) {
  const int64_t values = kind == kLatent ? c.rank : kind == kHidden ? c.hidden
                                                                  : c.heads * c.head_dim;
  return 2 * values * c.batch;
}

uint32_t post_route(Pool& p, int layer, int kind) {
  const uint64_t word = request(p.box->route_request.load(std::memory_order_relaxed), layer, kind);
  p.box->route_request.store(word, std::memory_order_release);
  return uint32_t(word);
}

// One at a time, so the next sequence follows from the last answer.
uint32_t post_update(Pool& p, int layer) {
  const uint64_t word = request(p.box->update_answer.load(std::memory_order_relaxed), layer, 0);
  p.box->update_request[uint32_t(word) % kRing].store(word, std::memory_order_release);
  return uint32_t(word);
}

// The caller on the CPU that the workers leave free, for as long as this lives.
struct PinnedToFirst {
  cpu_set_t before;
  explicit PinnedToFirst(int threads) {
    cpu_set_t one;
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof before, &before);
    if (CPU_COUNT(&before) <= threads) return;
    for (int cpu = 0; !CPU_COUNT(&one); ++cpu)
      if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~PinnedToFirst() { sched_setaffinity(0, sizeof before, &before); }
};

// Random bits (xorshift64), quick to make.
struct Noise {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
  uint16_t bf16() {   // of either sign, from 0.5 to 2
    const uint64_t bits = next() >> 40;
    return uint16_t((bits & 0x8000) | (0x3f00 + (bits & 0xff)));
  }
};

void write_keys(Pool& p, const void* keys, const int32_t* tokens) {
  const Config& c = p.c;
  const uint32_t slot = uint32_t(p.box->update_answer.load() + 1) % kRing;
  const int64_t bytes = int64_t(2) * c.batch * c.kv_heads * c.head_dim;
  memcpy(p.part<uint8_t>(p.layout().keys) + slot * bytes, keys, size_t(bytes));
  memcpy(p.part<int32_t>(p.layout().key_tokens) + slot * c.batch, tokens, size_t(4 * c.batch));
}

}  // namespace

extern "C" {

int essim_best_isa() { return best_isa(); }
int essim_has_isa(int isa) { return has(isa); }
void essim_mailbox_layout(const Config* c, MailboxLayout* out) { *out = mailbox_layout(*c); }

// `mailbox` may be memory that another device writes (page-aligned, mailbox_layout().total bytes);
// null lets the pool have its own.
void* essim_create(const Config* c, void* mailbox) {
  try {
    return new Pool(*c, kernels_for(c->isa), mailbox);
  } catch (...) {
    return nullptr;
  }
}
void essim_destroy(Pool* p) { delete p; }
void* essim_mailbox(Pool* p) { return p->box; }

// The pool must be idle while these write.
void essim_set_up(Pool* p, int layer, const uint16_t* up) { p->store.set_up(layer, up); }
void essim_set_down(Pool* p, int layer, const uint16_t* rows) { p->store.set_down(layer, rows); }
void essim_set_rope(Pool* p, const float* table, int64_t n) { p->store.set_rope(table, n); }
void essim_build(Pool* p, int layer, int sequence, const uint16_t* keys, int64_t tokens) {
  p->store.build(kernels_for(p->c.isa), layer, sequence, keys, tokens);
}
void essim_read(Pool* p, int layer, int sequence, int64_t tokens, void* codes) {
  p->store.read(kernels_for(p->c.isa), layer, sequence, tokens, static_cast<uint8_t*>(codes));
}

int essim_update(Pool* p, int layer, const void* keys, const int32_t* tokens, double timeout_s) {
  write_keys(*p, keys, tokens);
  const int rc = await(*p, p->box->update_answer, post_update(*p, layer), timeout_s);
  return rc ? rc : p->box->update_error.load();
}

// Ask for a route and return at once: the request's sequence. One may be outstanding.
uint32_t essim_post(Pool* p, int layer, int kind, const void* input, const int32_t* positions,
                    const int32_t* tokens) {
  const Config& c = p->c;
  memcpy(p->part<uint8_t>(p->layout().input), input, size_t(input_bytes(c, kind)));
  memcpy(p->part<int32_t>(p->layout().positions), positions, size_t(4 * c.batch));
  memcpy(p->part<int32_t>(p->layout().context_tokens), tokens, size_t(4 * c.batch));
  return post_route(*p, layer, kind);
}

int essim_answered(Pool* p, uint32_t sequence) {
  return uint32_t(p->box->route_answer.load(std::memory_order_acquire)) == sequence;
}

// Wait for the answer to a posted route and copy its indices.
int essim_collect(Pool* p, uint32_t sequence, int32_t* indices, double timeout_s) {
  const Config& c = p->c;
  const int rc = await(*p, p->box->route_answer, sequence, timeout_s);
  if (rc) return rc;
  if (const int error = p->box->route_error.load()) return error;
  memcpy(indices, p->part<int32_t>(p->layout().indices),
         size_t(4) * c.batch * c.kv_heads * c.top_pages);
  return 0;
}

// What the last route saw, kept only after essim_keep(p, 1): for comparison with a reference.
void essim_keep(Pool* p, int on) { p->keep = on; }
void essim_query(Pool* p, uint16_t* out) {
  memcpy(out, p->query(), size_t(2) * p->c.batch * p->c.heads * p->c.head_dim);
}
void essim_choice(Pool* p, int sequence, int kv_head, int32_t* channels, float* group, int pages) {
  const int unit = kv_head * p->c.batch + sequence;
  memcpy(channels, p->choice(unit).channel, size_t(4) * p->c.channels);
  memcpy(group, p->scores(unit) + p->store.group * p->stride(), size_t(4) * pages);
}

// Test hook: a worker that neither works nor beats, as if its thread had died.
void essim_stall(Pool* p, int worker, int on) { p->worker(worker).stalled.store(on); }

// When each of the last kSpans routes was seen and when it was done, by sequence.
void essim_spans(Pool* p, Span* out) { memcpy(out, p->spans(), sizeof(Span) * kSpans); }

// Fill the layers with plausible noise and write a random request, for timing.
void essim_randomize(Pool* p, uint32_t seed) {
  const Config& c = p->c;
  Noise noise{seed | 1};
  uint16_t* up = p->store.up.at<uint16_t>();
  for (int64_t i = 0; i < p->store.up_size * c.layers; ++i) up[i] = noise.bf16();
  uint16_t* down = p->store.down.at<uint16_t>();
  for (int64_t i = 0; i < p->store.down_size * c.layers; ++i) down[i] = noise.bf16();
  const SummaryShape& shape = p->store.shape;
  for (int64_t unit = 0; unit < p->store.units(c.layers); ++unit)
    for (int64_t row = 0; row < shape.unit / shape.row; ++row) {
      // Max planes positive, min planes negative; eight codes at once, there are gigabytes.
      const uint64_t base = row / shape.dim & 1 ? 0x3838383838383838u : 0xb8b8b8b8b8b8b8b8u;
      uint8_t* out = p->store.summaries.at(unit * shape.unit + row * shape.row);
      for (int64_t i = 0; i < shape.row; i += 8) {
        const uint64_t codes = base + (noise.next() & 0x0707070707070707u);
        memcpy(out + i, &codes, size_t(shape.row - i < 8 ? shape.row - i : 8));
      }
    }
  const int64_t values = (p->layout().key_tokens - p->layout().input) / 2;
  for (int64_t i = 0; i < values; ++i) p->part<uint16_t>(p->layout().input)[i] = noise.bf16();
}

// Change what an idle worker prefetches and how far a scan does.
void essim_tune(Pool* p, int prefetch_bytes, int prefetch_chunks) {
  p->prefetch_bytes = prefetch_bytes;
  p->prefetch_chunks = prefetch_chunks;
}

// Time `calls` routes (and, before each, an update of the layer before if `updates`), layer after
// layer as a decode step takes them, `gap_s` idle between calls. Seconds from request to answer.
// Each call's input is new: its query chooses channels anew, whose rows no cache holds yet.
int essim_bench(Pool* p, int kind, int tokens, int updates, double gap_s, int warm_up, int calls,
                double* seconds) {
  const Config& c = p->c;
  const PinnedToFirst pinned(c.threads);
  for (int s = 0; s < c.batch; ++s) {
    p->part<int32_t>(p->layout().context_tokens)[s] = tokens;
    p->part<int32_t>(p->layout().positions)[s] = tokens - 1;
    for (int i = 0; i < kRing; ++i)
      p->part<int32_t>(p->layout().key_tokens)[i * c.batch + s] = tokens - 1;
  }
  Noise noise{1};
  uint16_t* input = p->part<uint16_t>(p->layout().input);
  for (int i = -warm_up; i < calls; ++i) {
    const int layer = 1 + (i + warm_up) % (c.layers - 1);
    for (int64_t value = 0; value < input_bytes(c, kind) / 2; ++value) input[value] = noise.bf16();
    for (const auto idle = Clock::now(); seconds_since(idle) < gap_s;) __builtin_ia32_pause();
    const auto start = Clock::now();
    const uint32_t update = updates ? post_update(*p, layer - 1) : 0;
    const int rc = await(*p, p->box->route_answer, post_route(*p, layer, kind), 10.0);
    if (i >= 0) seconds[i] = seconds_since(start);
    if (rc) return rc;
    if (const int error = p->box->route_error.load()) return error;
    if (updates && await(*p, p->box->update_answer, update, 10.0)) return kTimeout;
  }
  return 0;
}
}
