// The server: T pinned threads that poll the mailbox's request words and run each job together.
// There is no dispatcher and no global barrier. A route is tasks: query heads to project, then
// parts of (KV head, sequence) to score. They are cut in advance into equal ranges, KV-head-major, so
// that with T dividing the KV heads a thread works on its own heads; one that is done helps the
// slowest (`Ranges`). Who finishes the last part of a unit selects its pages, who finishes the last
// unit answers.
#pragma once
#include <pthread.h>

#include <algorithm>

#include "ranges.h"
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
        pieces_(pieces()), parts_(new Counter[size_t(units_)]),
        projected_(new Counter[size_t(c.kv_heads)]), projections_(c.threads), scorings_(c.threads),
        query_(int64_t(c.batch) * c.heads * c.head_dim * 2), latent_(int64_t(c.batch) * c.rank * 2),
        workers_(new Worker[size_t(c.threads)]) {
    prefetch_bytes = c.prefetch_bytes;
    prefetch_chunks = c.prefetch_chunks;
    box = mailbox ? static_cast<Mailbox*>(mailbox) : own_box_.at<Mailbox>();
    memset(static_cast<void*>(box), 0, size_t(layout_.total));
    box->alive.store(uint32_t(c.threads));
    open_round(1);
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
  const Span* spans() const { return spans_.get(); }
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
  const int pieces_;                   // that a unit is cut into
  std::unique_ptr<Counter[]> parts_, projected_;
  Ranges projections_, scorings_;      // tasks: query heads; units * pieces_
  Counter latents_, scored_;           // of the rank; tasks of scoring
  std::atomic<uint32_t> round_{0}, completed_{0};   // the open round; sequence of the last one
  std::atomic<int64_t> begun_ns_{0};
  std::unique_ptr<Span[]> spans_{new Span[kSpans]()};
  Memory query_, latent_;
  std::unique_ptr<Worker[]> workers_;

  int64_t unit_scores() const { return (store.group + 1) * stride_; }
  Share share(int64_t total, int t) const {
    return {total * t / c.threads, total * (t + 1) / c.threads};
  }

  // Few units are cut so that all workers have much the same. What a piece costs beyond its scan is
  // about 0.15 of a unit.
  int pieces() const {
    int best = 1;
    double least = 1e9;
    for (int pieces = 1; pieces <= 4; ++pieces) {
      const int rounds = (units_ * pieces + c.threads - 1) / c.threads;
      const double time = rounds * (1.0 / pieces + 0.15);
      if (time < least) least = time, best = pieces;
    }
    return best;
  }

  // Nobody may take tasks of a round before it is open, or of an earlier one after.
  void open_round(uint32_t round) {
    for (int g = 0; g < c.kv_heads; ++g) projected_[g].value.store(0, std::memory_order_relaxed);
    latents_.value.store(0, std::memory_order_relaxed);
    scored_.value.store(0, std::memory_order_relaxed);
    begun_ns_.store(0, std::memory_order_relaxed);
    projections_.cut(round, c.heads);
    scorings_.cut(round, int64_t(units_) * pieces_);
    round_.store(round, std::memory_order_release);
  }

  void start(int t) {
    Worker& w = workers_[t];
    w.beats = &part<Heartbeat>(layout_.heartbeat)[t].beats;
    const int64_t longest = stride_ > kMaxDim ? stride_ : kMaxDim;
    new (&w.scores) Memory(unit_scores() * 4);
    new (&w.candidates) Memory((longest + kChunk) * 8);
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
    Unanswered update_left;   // only the first worker's is ever open
    uint32_t routed = 0, updated = 0;
    int64_t to_prefetch = 0, prefetched = 0;
    int prefetch_layer = 0;
    while (!box->stop.load(std::memory_order_relaxed)) {
      w.beat();
      while (w.stalled.load(std::memory_order_relaxed))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      // The round first: a request that was answered meanwhile must not be taken for its next one.
      const uint32_t round = round_.load(std::memory_order_acquire);
      const Job r = decode(box->route_request.load(std::memory_order_acquire));
      if (r.sequence != routed) {
        routed = r.sequence;
        if (completed_.load(std::memory_order_acquire) != r.sequence) route(r, round, t);
        // Layers come in order; the first is dense and never routed.
        prefetch_layer = r.layer + 1 < c.layers ? r.layer + 1 : 1 % c.layers;
        to_prefetch = prefetch_bytes;
        prefetched = w.spins = 0;
      }
      answer(update_left);
      const int slot = (updated + 1) % kRing;
      const Job u = decode(box->update_request[slot].load(std::memory_order_acquire));
      if (!update_left.open && int32_t(u.sequence - updated) > 0) {
        const int32_t error = u.sequence != updated + 1 ? kOverrun : check_update(u);
        updated = u.sequence;
        if (!error) update(u, t);
        w.update_done.store(u.sequence, std::memory_order_release);
        update_left = {t == 0, u.sequence, error};
        w.spins = 0;
      } else if (update_left.open) {
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
  // waits: another worker may be inside a route that needs a task of the first's.
  void answer(Unanswered& left) {
    if (!left.open) return;
    for (int i = 1; i < c.threads; ++i)
      if (int32_t(workers_[i].update_done.load(std::memory_order_acquire) - left.sequence) < 0)
        return;
    left.open = false;
    box->update_error.store(left.error, std::memory_order_relaxed);
    box->update_answer.store(left.sequence, std::memory_order_release);
  }

  // The route is over: the next round is open before its request can come.
  void answer_route(const Job& j, uint32_t round, int32_t error) {
    spans_[j.sequence % kSpans] = {begun_ns_.load(std::memory_order_relaxed), now_ns()};
    completed_.store(j.sequence, std::memory_order_release);
    open_round(round + 1);
    box->route_error.store(error, std::memory_order_relaxed);
    box->route_answer.store(j.sequence, std::memory_order_release);
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

  // The queries of some heads, all sequences at once.
  void make_queries(const Job& j, uint32_t round, int t) {
    const float* cosine[kMaxBatch];
    const float* sine[kMaxBatch];
    for (int s = 0; s < c.batch; ++s) {
      cosine[s] = store.cosine(part<int32_t>(layout_.positions)[s]);
      sine[s] = store.sine(part<int32_t>(layout_.positions)[s]);
    }
    const Project p{store.up_of(j.layer),
                    j.kind == kLatent ? part<uint16_t>(layout_.input) : latent_.at<uint16_t>(),
                    cosine, sine, query_.at<uint16_t>(), c.batch, c.heads, c.head_dim, c.rank};
    const int per_head = c.head_dim / 32;
    for (;;) {
      int head = projections_.take(round, t);
      if (head < 0) head = projections_.steal(round, [](int) { return true; });
      if (head < 0) return;
      k_.project(p, head * per_head, (head + 1) * per_head);
      projected_[head / store.group].value.fetch_add(1, std::memory_order_release);
    }
  }

  // Chunks [first, last) of the pages of a unit.
  Part part_of(int task) const {
    const int unit = task / pieces_, piece = task % pieces_, g = unit / c.batch, s = unit % c.batch;
    const int pages = pages_of(part<int32_t>(layout_.context_tokens)[s]);
    const int chunks = (pages + kChunk - 1) / kChunk;
    return {g, s, chunks * piece / pieces_, chunks * (piece + 1) / pieces_, chunks, pages};
  }

  void route(const Job& j, uint32_t round, int t) {
    const int32_t error = check_route(j);
    if (error) {
      if (t == 0) answer_route(j, round, error);
      return;
    }
    int64_t unseen = 0;
    begun_ns_.compare_exchange_strong(unseen, now_ns(), std::memory_order_relaxed);
    if (j.kind == kHidden && !make_latents(j, t)) return;
    if (j.kind == kLatent || j.kind == kHidden) make_queries(j, round, t);
    // Keys of a layer are taken in by their unit's own worker. Another's may be behind, but never by
    // more updates than may be outstanding: with fewer layers than that it is not helped.
    const bool helps = c.layers - 1 > kRing;
    Worker& w = workers_[t];
    for (;;) {
      int task = scorings_.take(round, t);
      if (task < 0 && helps) task = scorings_.steal(round, [](int) { return true; });
      if (task < 0) return;
      const Part part = part_of(task);
      if (j.kind >= kReadQuery) {
        read_only(j, part);
      } else if (part.pages == 0) {
        std::fill_n(indices(part.g, part.s), c.top_pages, -1);
      } else {
        if (!choose(j, t, part, w.choice)) return;
        float* scores = score(j, t, part, w.choice);
        if (completes(part))
          k_.select_pages(scores, stride_, w.choice, part.pages, c.top_pages,
                          indices(part.g, part.s), scratch(w));
      }
      const int64_t all = int64_t(units_) * pieces_;
      if (scored_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == all)
        return answer_route(j, round, kOk);
    }
  }

  // Read the bytes of a part, contiguously, and do nothing else.
  void read_only(const Job& j, const Part& p) {
    uint64_t sum = 0;
    const int64_t weights = int64_t(store.items) * c.rank * 64 / (int64_t(units_) * pieces_);
    const uint8_t* up = reinterpret_cast<const uint8_t*>(store.up_of(j.layer));
    const int unit = p.g * c.batch + p.s;
    if (j.kind == kReadLatent) sum += k_.read_all(up + unit * pieces_ * weights, weights);
    const SummaryShape& shape = store.shape;
    const int first = p.first * kChunk, end = p.last * kChunk < p.pages ? p.last * kChunk : p.pages;
    for (int page = first; page < end; page += shape.row_pages) {
      const int last = page + shape.row_pages < end ? shape.row_pages : end - page;
      sum += k_.read_all(store.summary(j.layer, p.g, p.s) + shape.page(page),
                         int64_t(c.channels) * last * shape.element);
    }
    workers_[0].read.fetch_add(sum & 1, std::memory_order_relaxed);   // keeps the sum alive
  }

  // Pages that compete: all before the tail page, which is always kept.
  int pages_of(int32_t tokens) const { return (tokens - 1) / c.page_tokens; }

  int32_t* indices(int g, int s) const {
    return part<int32_t>(layout_.indices) + (int64_t(s) * c.kv_heads + g) * c.top_pages;
  }

  TopK scratch(const Worker& w) const {
    const int64_t longest = stride_ > kMaxDim ? stride_ : kMaxDim;
    return {w.candidates.at<float>(), w.candidates.at<int32_t>(longest + kChunk)};
  }

  // Channels of a part, once its query is there; false on stop.
  bool choose(const Job& j, int t, const Part& p, Choice& choice) {
    if (j.kind != kQuery && !wait_for(projected_[p.g], store.group, t)) return false;
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
    const Share heads = share(c.heads, t), units = share(units_, t);
    const int64_t head_bytes = int64_t(c.rank) * c.head_dim * 2;
    const int64_t weights = (heads.last - heads.first) * head_bytes;
    const int64_t total = weights + (units.last - units.first) * store.shape.unit;
    if (limit > total) limit = total;
    const int64_t stop = done + 1024 < limit ? done + 1024 : limit;
    const uint8_t* up = reinterpret_cast<const uint8_t*>(store.up_of(layer)) +
                        heads.first * head_bytes;
    const uint8_t* summary = store.summaries.at((store.units(layer) + units.first) *
                                                store.shape.unit);
    for (; done < stop; done += 64)
      __builtin_prefetch(done < weights ? up + done : summary + (done - weights), 0, 2);
    return done < limit ? done : INT64_MAX;
  }
};

}  // namespace router
