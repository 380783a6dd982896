// The server: T pinned threads that poll the mailbox's request words and run each job together.
// There is no dispatcher and no global barrier. Work is cut in advance into equal shares of
// (KV head, sequence, chunk of pages), KV-head-major, so that with T dividing the KV heads a thread
// projects, scores and selects its own heads alone. Where a share ends inside a KV head, the last
// thread to finish a part of it selects the pages.
#pragma once
#include <pthread.h>

#include <chrono>

#include "store.h"
#include "worker.h"

namespace router {

class Pool {
 public:
  Store store;
  const Config& c;
  Mailbox* box;
  bool keep = false;     // keep scores and choices of every unit for inspection
  int prefetch_bytes, prefetch_chunks;

  Pool(const Config& config, const Kernels& kernels, void* mailbox)
      : store(config), c(store.c), k_(kernels), layout_(mailbox_layout(c)),
        own_box_(mailbox ? 0 : layout_.total), units_(c.batch * c.kv_heads),
        stride_(align_up((c.capacity_tokens + c.page_tokens - 1) / c.page_tokens, kChunk) + 16),
        shared_scores_(int64_t(units_) * unit_scores() * 4), choices_(new Choice[size_t(units_)]),
        parts_(new Counter[size_t(units_)]), projected_(new Counter[size_t(c.kv_heads)]),
        query_(int64_t(c.batch) * c.heads * c.head_dim * 2), latent_(int64_t(c.batch) * c.rank * 2),
        workers_(new Worker[size_t(c.threads)]) {
    prefetch_bytes = c.prefetch_bytes;
    prefetch_chunks = c.prefetch_chunks;
    box = mailbox ? static_cast<Mailbox*>(mailbox) : own_box_.at<Mailbox>();
    memset(static_cast<void*>(box), 0, size_t(layout_.total));
    box->alive.store(uint32_t(c.threads));
    for (int t = 0; t < c.threads; ++t) start(t);
  }

  ~Pool() {
    box->stop.store(1);
    for (int t = 0; t < c.threads; ++t) {
      workers_[t].stalled.store(false);
      workers_[t].thread.join();
    }
  }

  template <class T>
  T* part(int64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(box) + offset);
  }
  const MailboxLayout& layout() const { return layout_; }
  Worker& worker(int t) { return workers_[t]; }
  const uint16_t* query() const { return query_.at<uint16_t>(); }
  const Choice& choice(int unit) const { return choices_[unit]; }
  const float* scores(int unit) const { return shared_scores_.at<float>(unit * unit_scores()); }
  int64_t stride() const { return stride_; }

 private:
  struct Job { uint32_t sequence; int32_t layer, kind; };
  struct Share { int64_t first, last; };   // of a range cut into equal parts

  const Kernels& k_;
  const MailboxLayout layout_;
  Memory own_box_;
  const int units_;
  const int64_t stride_;
  Memory shared_scores_;
  std::unique_ptr<Choice[]> choices_;
  std::unique_ptr<Counter[]> parts_, projected_;
  Counter latents_;
  Memory query_, latent_;
  std::unique_ptr<Worker[]> workers_;

  int64_t unit_scores() const { return (store.group + 1) * stride_; }
  Share share(int64_t total, int t) const {
    return {total * t / c.threads, total * (t + 1) / c.threads};
  }

  void start(int t) {
    Worker& w = workers_[t];
    w.beats = &part<Heartbeat>(layout_.heartbeat)[t].beats;
    const int64_t longest = stride_ > kMaxDim ? stride_ : kMaxDim;
    new (&w.scores) Memory(unit_scores() * 4);
    new (&w.candidates) Memory((longest + kChunk) * 8);
    for (auto& choice : w.choice) choice.reset(new Choice);
    w.parts.reserve(size_t(units_));
    w.thread = std::thread([this, t] { run(t); });
    if (!c.pin) return;
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) < c.threads) return;
    // Leave the first allowed CPU to the caller where there is one to spare.
    int wanted = t + (CPU_COUNT(&allowed) > c.threads);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(w.thread.native_handle(), sizeof one, &one);
      return;
    }
  }

  static Job decode(uint64_t word) {
    return {uint32_t(word), int32_t(word >> 32 & 0xffff), int32_t(word >> 48)};
  }

  void run(int t) {
    Worker& w = workers_[t];
    Unanswered route_left, update_left;   // only the first worker's are ever open
    uint32_t routed = 0, updated = 0;
    int64_t to_prefetch = 0, prefetched = 0;
    int prefetch_layer = 0;
    while (!box->stop.load(std::memory_order_relaxed)) {
      w.beat();
      while (w.stalled.load(std::memory_order_relaxed))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const Job r = decode(box->route_request.load(std::memory_order_acquire));
      if (r.sequence != routed) {
        routed = r.sequence;
        const int32_t error = check_route(r);
        if (!error) r.kind < kReadQuery ? route(r, t) : read_only(r, t);
        w.route_done.store(r.sequence, std::memory_order_release);
        route_left = {t == 0, r.sequence, error};
        // Layers come in order; the first is dense and never routed.
        prefetch_layer = r.layer + 1 < c.layers ? r.layer + 1 : 1 % c.layers;
        to_prefetch = prefetch_bytes;
        prefetched = w.spins = 0;
      }
      answer(route_left, &Worker::route_done, box->route_error, box->route_answer);
      answer(update_left, &Worker::update_done, box->update_error, box->update_answer);
      const int slot = (updated + 1) % kRing;
      const Job u = decode(box->update_request[slot].load(std::memory_order_acquire));
      if (!update_left.open && int32_t(u.sequence - updated) > 0) {
        const int32_t error = u.sequence != updated + 1 ? kOverrun : check_update(u);
        updated = u.sequence;
        if (!error) update(u, t);
        w.update_done.store(u.sequence, std::memory_order_release);
        update_left = {t == 0, u.sequence, error};
        w.spins = 0;
      } else if (route_left.open || update_left.open) {
        w.idle();
      } else if (prefetched < to_prefetch) {
        prefetched = prefetch(prefetch_layer, t, prefetched, to_prefetch);
      } else {
        w.idle();
      }
    }
    box->alive.fetch_sub(1);
  }

  struct Unanswered {
    bool open = false;
    uint32_t sequence = 0;
    int32_t error = 0;
  };

  // Each worker reports on its own line; the first answers once all have. It looks, and never
  // waits: another worker may be inside a route that needs a share of the first's.
  void answer(Unanswered& left, std::atomic<uint32_t> Worker::*done,
              std::atomic<int32_t>& error_word, std::atomic<uint64_t>& answer_word) {
    if (!left.open) return;
    for (int i = 1; i < c.threads; ++i)
      if (int32_t((workers_[i].*done).load(std::memory_order_acquire) - left.sequence) < 0) return;
    if (done == &Worker::route_done) {
      latents_.value.store(0, std::memory_order_relaxed);
      for (int g = 0; g < c.kv_heads; ++g) projected_[g].value.store(0, std::memory_order_relaxed);
    }
    left.open = false;
    error_word.store(left.error, std::memory_order_relaxed);
    answer_word.store(left.sequence, std::memory_order_release);
  }

  int32_t check_route(const Job& j) const {
    if (j.layer >= c.layers) return kBadLayer;
    if (j.kind > kReadLatent || (j.kind == kLatent && !c.rank) || (j.kind == kHidden && !c.hidden))
      return kBadKind;
    for (int s = 0; s < c.batch; ++s) {
      const int32_t tokens = part<int32_t>(layout_.context_tokens)[s];
      const int32_t position = part<int32_t>(layout_.positions)[s];
      if (tokens < 1 || tokens > c.capacity_tokens) return kBadTokens;
      if ((j.kind == kLatent || j.kind == kHidden) && (position < 0 || position >= store.positions)) return kBadPosition;
    }
    return kOk;
  }

  int32_t check_update(const Job& j) const {
    if (j.layer >= c.layers) return kBadLayer;
    for (int s = 0; s < c.batch; ++s) {
      const int32_t token = part<int32_t>(layout_.key_tokens)[j.sequence % kRing * c.batch + s];
      if (token < 0 || token >= c.capacity_tokens) return kBadTokens;
    }
    return kOk;
  }

  void update(const Job& j, int t) {
    const int slot = j.sequence % kRing;
    const int64_t dim = c.head_dim, keys_at = int64_t(slot) * c.batch * c.kv_heads * dim;
    const uint16_t* keys = part<uint16_t>(layout_.keys) + keys_at;
    const int32_t* tokens = part<int32_t>(layout_.key_tokens) + slot * c.batch;
    const Share mine = share(units_, t);
    for (int64_t u = mine.first; u < mine.last; ++u) {
      const int g = int(u / c.batch), s = int(u % c.batch);
      store.append(k_, j.layer, g, s, keys + (int64_t(s) * c.kv_heads + g) * dim, tokens[s]);
    }
  }

  // Wait until a counter that other workers advance reaches its end; false on stop.
  bool wait_for(const Counter& counter, int64_t end, int t) {
    while (counter.value.load(std::memory_order_acquire) < end) {
      if (box->stop.load(std::memory_order_relaxed)) return false;
      workers_[t].idle();
    }
    return true;
  }

  // The latent of every sequence from its hidden state, cut over the rank.
  bool make_latents(const Job& j, int t) {
    const Share rows = share(c.rank, t);
    k_.down(store.down_of(j.layer), int(rows.first), int(rows.last),
            part<uint16_t>(layout_.input), c.hidden, c.batch, c.rms_eps, latent_.at<uint16_t>(),
            c.rank);
    latents_.value.fetch_add(rows.last - rows.first, std::memory_order_release);
    return wait_for(latents_, c.rank, t);
  }

  void make_queries(const Job& j, int t) {
    const float* cosine[kMaxBatch];
    const float* sine[kMaxBatch];
    for (int s = 0; s < c.batch; ++s) {
      cosine[s] = store.cosine(part<int32_t>(layout_.positions)[s]);
      sine[s] = store.sine(part<int32_t>(layout_.positions)[s]);
    }
    const Project p{store.up_of(j.layer),
                    j.kind == kLatent ? part<uint16_t>(layout_.input) : latent_.at<uint16_t>(),
                    cosine, sine, query_.at<uint16_t>(), c.batch, c.heads, c.head_dim, c.rank};
    const int64_t per_group = store.items / c.kv_heads;
    const Share mine = share(store.items, t);
    for (int64_t first = mine.first; first < mine.last;) {
      const int64_t g = first / per_group;
      const int64_t last = (g + 1) * per_group < mine.last ? (g + 1) * per_group : mine.last;
      k_.project(p, int(first), int(last));
      projected_[g].value.fetch_add(last - first, std::memory_order_release);
      first = last;
    }
  }

  void route(const Job& j, int t) {
    if (j.kind == kHidden && !make_latents(j, t)) return;
    if (j.kind != kQuery) make_queries(j, t);
    const int32_t* tokens = part<int32_t>(layout_.context_tokens);
    int64_t start[kMaxBatch + 1] = {};   // chunks before a sequence, within one KV head
    for (int s = 0; s < c.batch; ++s)
      start[s + 1] = start[s] + (pages_of(tokens[s]) + kChunk - 1) / kChunk;
    const int64_t per_head = start[c.batch];
    const Share mine = share(per_head * c.kv_heads, t);
    if (t == 0) fill_empty(tokens);
    Worker& w = workers_[t];
    w.parts.clear();
    for (int64_t at = mine.first; at < mine.last;) {
      const int g = int(at / per_head);
      int s = 0;
      while (start[s + 1] <= at % per_head) ++s;
      const int64_t base = g * per_head + start[s], end = g * per_head + start[s + 1];
      const int64_t last = end < mine.last ? end : mine.last;
      w.parts.push_back({g, s, int(at - base), int(last - base), int(end - base),
                         pages_of(tokens[s])});
      at = last;
    }
    // The next part's channels are chosen before this part's pages, so that its rows can be on
    // their way meanwhile.
    const size_t count = w.parts.size();
    if (count && !choose(j, t, w.parts[0], *w.choice[0])) return;
    for (size_t i = 0; i < count; ++i) {
      const Part& part = w.parts[i];
      Choice& choice = *w.choice[i % 2];
      float* scores = score(j, t, part, choice);
      Lines coming;
      if (i + 1 < count) {
        Choice& next = *w.choice[(i + 1) % 2];
        if (!choose(j, t, w.parts[i + 1], next)) return;
        if (prefetch_chunks) coming = lines_of(j, w.parts[i + 1], next);
      }
      if (completes(part))
        k_.select_pages(scores, stride_, choice, part.pages, c.top_pages, indices(part.g, part.s),
                        scratch(w), coming);
    }
  }

  // Read the bytes of this worker's share of a route, contiguously, and do nothing else.
  void read_only(const Job& j, int t) {
    uint64_t sum = 0;
    const Share items = share(store.items, t), units = share(units_, t);
    const int64_t item_bytes = int64_t(c.rank) * 64;
    const uint8_t* up = reinterpret_cast<const uint8_t*>(store.up_of(j.layer));
    if (j.kind == kReadLatent)
      sum += k_.read_all(up + items.first * item_bytes, (items.last - items.first) * item_bytes);
    const SummaryShape& shape = store.shape;
    for (int64_t u = units.first; u < units.last; ++u) {
      const int g = int(u / c.batch), s = int(u % c.batch);
      const int pages = pages_of(part<int32_t>(layout_.context_tokens)[s]);
      for (int page = 0; page < pages; page += shape.row_pages) {
        const int last = page + shape.row_pages < pages ? shape.row_pages : pages - page;
        sum += k_.read_all(store.summary(j.layer, g, s) + shape.page(page),
                           int64_t(c.channels) * last * shape.element);
      }
    }
    latents_.value.fetch_add(int64_t(sum & 1), std::memory_order_relaxed);   // keeps the sum alive
  }

  // Pages that compete: all before the tail page, which is always kept.
  int pages_of(int32_t tokens) const { return (tokens - 1) / c.page_tokens; }

  int32_t* indices(int g, int s) const {
    return part<int32_t>(layout_.indices) + (int64_t(s) * c.kv_heads + g) * c.top_pages;
  }

  void fill_empty(const int32_t* tokens) const {
    for (int s = 0; s < c.batch; ++s)
      if (pages_of(tokens[s]) == 0)
        for (int g = 0; g < c.kv_heads; ++g)
          for (int i = 0; i < c.top_pages; ++i) indices(g, s)[i] = -1;
  }

  TopK scratch(const Worker& w) const {
    const int64_t longest = stride_ > kMaxDim ? stride_ : kMaxDim;
    return {w.candidates.at<float>(), w.candidates.at<int32_t>(longest + kChunk)};
  }

  // Channels of a part, once its query is there; false on stop.
  bool choose(const Job& j, int t, const Part& p, Choice& choice) {
    if (j.kind != kQuery && !wait_for(projected_[p.g], store.items / c.kv_heads, t)) return false;
    const uint16_t* queries =
        j.kind == kQuery ? part<uint16_t>(layout_.input) : query_.at<uint16_t>();
    k_.choose(queries + (int64_t(p.s) * c.heads + p.g * store.group) * c.head_dim, store.group,
              store.shape, c.channels, c.storage, choice, scratch(workers_[t]));
    if (keep && p.first == 0) choices_[p.g * c.batch + p.s] = choice;
    return true;
  }

  float* score(const Job& j, int t, const Part& p, const Choice& choice) {
    float* scores = p.whole() && !keep
                        ? workers_[t].scores.at<float>()
                        : shared_scores_.at<float>((p.g * c.batch + p.s) * unit_scores());
    const uint8_t* summary = store.summary(j.layer, p.g, p.s);
    const int first = p.first * kChunk, last = p.last * kChunk;
    k_.warm(summary, store.shape, choice, first, last, prefetch_chunks);
    k_.score(summary, store.shape, c.storage, choice, first, last, scores, stride_,
             prefetch_chunks);
    return scores;
  }

  // The rows of a part, as far as they lie in its first block.
  Lines lines_of(const Job& j, const Part& p, const Choice& choice) const {
    const SummaryShape& shape = store.shape;
    const int first = p.first * kChunk, left = shape.row_pages - first % shape.row_pages;
    const int pages = (p.last - p.first) * kChunk;
    Lines lines;
    lines.base = store.summary(j.layer, p.g, p.s) + shape.page(first);
    lines.offset = choice.offset;
    lines.rows = choice.count;
    lines.lines = int((pages < left ? pages : left) * shape.element / 64);
    return lines;
  }

  // Whether every part of this unit is scored now.
  bool completes(const Part& p) {
    if (p.whole()) return true;
    std::atomic<int64_t>& scored = parts_[p.g * c.batch + p.s].value;
    const int64_t own = p.last - p.first;
    if (scored.fetch_add(own, std::memory_order_acq_rel) + own < p.chunks) return false;
    scored.store(0, std::memory_order_relaxed);
    return true;
  }

  // Idle: pull the next layer's share into this core's L2, weights first, a few lines a call so
  // that a request is seen at once. Returns how far it came.
  int64_t prefetch(int layer, int t, int64_t done, int64_t limit) const {
    const Share items = share(store.items, t), units = share(units_, t);
    const int64_t item_bytes = int64_t(c.rank) * 64;
    const int64_t weights = (items.last - items.first) * item_bytes;
    const int64_t total = weights + (units.last - units.first) * store.shape.unit;
    if (limit > total) limit = total;
    const int64_t stop = done + 1024 < limit ? done + 1024 : limit;
    const uint8_t* up = reinterpret_cast<const uint8_t*>(store.up_of(layer)) +
                        items.first * item_bytes;
    const uint8_t* summary = store.summaries.at((store.units(layer) + units.first) *
                                                store.shape.unit);
    for (; done < stop; done += 64)
      __builtin_prefetch(done < weights ? up + done : summary + (done - weights), 0, 2);
    return done < limit ? done : INT64_MAX;
  }
};

}  // namespace router
