// Shapes, memory layout and the shared mailbox of the CPU router. Plain data, no code paths.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace router {

constexpr int kChunk = 64;          // pages handled at once: one cache line of e5m2 codes
constexpr int kMaxDim = 256;        // largest head dimension
constexpr int kMaxGroup = 16;       // most query heads of one KV head
constexpr int kMaxBatch = 64;
constexpr int kRing = 4;            // updates that may be outstanding

enum Storage : int32_t { kE5m2 = 0, kBf16 = 1 };
// The last two only read what a route from a query or a latent reads: the bandwidth to compare with.
enum Kind : int32_t { kQuery = 0, kLatent = 1, kHidden = 2, kReadQuery = 3, kReadLatent = 4 };
enum Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3,
                     kAmx = 4 };
enum Error : int32_t { kOk = 0, kBadLayer = 1, kBadTokens = 2, kBadPosition = 3, kBadKind = 4,
                       kOverrun = 5 };

// The Python side mirrors this struct field by field.
struct Config {
  int32_t layers, batch, heads, kv_heads, head_dim, rank, hidden;
  int32_t page_tokens, capacity_tokens, top_pages, channels;
  int32_t storage;
  int32_t row_pages;         // consecutive pages of one channel: multiple of 64
  int32_t threads, isa, pin;
  int32_t prefetch_bytes;    // what an idle worker may pull into its L2 for the next layer
  int32_t prefetch_chunks;   // how far scoring prefetches ahead, in chunks of 64 pages
  float rms_eps;
};

// Where the parts of a mailbox lie, in bytes from its start. A GPU reads this to drive the server.
struct MailboxLayout {
  int64_t total, heartbeat, positions, context_tokens, input, key_tokens, keys, indices;
};

// Head of the mailbox. A request word is sequence | layer << 32 | kind << 48, written after its
// payload; an answer is the sequence of the finished request. Sequences start at 1, routes and
// updates count apart. One route may be outstanding; update n uses slot n % kRing of the request
// words, key_tokens and keys. After a route a pending update goes first, so neither starves the
// other. One line per writer.
struct Mailbox {
  alignas(64) std::atomic<uint64_t> route_request;
  std::atomic<uint64_t> update_request[kRing];
  alignas(64) std::atomic<uint64_t> route_answer;
  std::atomic<uint64_t> update_answer;
  std::atomic<int32_t> route_error, update_error;
  alignas(64) std::atomic<uint32_t> stop;
  alignas(64) std::atomic<uint32_t> alive;
};

static_assert(offsetof(Mailbox, update_request) == 8 && offsetof(Mailbox, route_answer) == 64 &&
              offsetof(Mailbox, route_error) == 80 && offsetof(Mailbox, stop) == 128 &&
              offsetof(Mailbox, alive) == 192 && sizeof(Mailbox) == 256);

struct alignas(64) Heartbeat { std::atomic<uint64_t> beats; };

inline int64_t align_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

inline MailboxLayout mailbox_layout(const Config& c) {
  MailboxLayout m{};
  int64_t input = int64_t(c.heads) * c.head_dim;
  if (c.rank > input) input = c.rank;
  if (c.hidden > input) input = c.hidden;
  int64_t end = sizeof(Mailbox);
  auto place = [&](int64_t bytes) { int64_t at = end; end = align_up(end + bytes, 64); return at; };
  m.heartbeat = place(int64_t(sizeof(Heartbeat)) * c.threads);
  m.positions = place(4 * c.batch);
  m.context_tokens = place(4 * c.batch);
  m.input = place(2 * input * c.batch);
  m.key_tokens = place(int64_t(4) * kRing * c.batch);
  m.keys = place(int64_t(2) * kRing * c.batch * c.kv_heads * c.head_dim);
  m.indices = place(int64_t(4) * c.batch * c.kv_heads * c.top_pages);
  m.total = align_up(end, 4096);
  return m;
}

// Summaries of one (layer, sequence, KV head): [block][min, max][channel][row_pages] codes. The
// pages of a channel are contiguous, so a scan reads only the chosen plane of the chosen channels.
struct SummaryShape {
  int64_t element, row, plane, block, unit;   // bytes
  int32_t row_pages, blocks, dim;

  explicit SummaryShape(const Config& c) {
    element = c.storage == kE5m2 ? 1 : 2;
    int64_t pages = align_up((c.capacity_tokens + c.page_tokens - 1) / c.page_tokens, kChunk);
    row_pages = c.row_pages < pages ? c.row_pages : int32_t(pages);
    blocks = int32_t((pages + row_pages - 1) / row_pages);
    dim = c.head_dim;
    // An odd number of lines: at a power of two the rows of a chunk would share few cache sets.
    row = (row_pages * element / 64 | 1) * 64;
    plane = row * dim;
    block = 2 * plane;
    unit = block * blocks;
  }
  // Byte offset of a page in plane 0, channel 0; add plane and channel * row.
  int64_t page(int64_t p) const { return p / row_pages * block + p % row_pages * element; }
};

// One (sequence, KV head): which rows to read and the query against them.
struct Choice {
  int32_t count;                           // chosen channels
  int32_t heads;                           // query heads of the group
  int32_t channel[kMaxDim];                // ascending; bit 30 set where `max` is read
  uint32_t offset[kMaxDim + 2];            // byte offset of the chosen row in a block
  float query[kMaxGroup][kMaxDim + 16];    // zeros after the last
  uint32_t pair[kMaxGroup][kMaxDim / 2 + 1];   // two bf16 query values, scaled by 2^query_shift
  float coefficient[kMaxGroup];            // score -> log2 of the unnormalised probability
};
constexpr int32_t kReadsMax = 1 << 30;

// e5m2 bits moved into a bf16 are too small by 2^112; 2^96 of it goes into the query, which keeps
// the query finite, and 2^16 into the coefficient.
constexpr int kQueryShift = 96, kScoreShift = 16;

}  // namespace router
