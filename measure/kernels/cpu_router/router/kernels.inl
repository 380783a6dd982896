// The arithmetic, written on GCC vectors of kLanes floats. This file is compiled once per
// instruction set, inside a namespace and a target region; score, project and the compressing
// stores come from the file of that instruction set.

#include "top_k.inl"

// Channel choice of a KV head (RocketKV stage 2, steps 2-4): the `count` channels with the largest
// summed |q|, the plane each reads, and the softmax scale sqrt(D * sum|q_chosen| / sum|q|).
void choose(const uint16_t* query, int heads, const SummaryShape& shape, int count, int storage,
            Choice& c, const TopK& scratch) {
  const int dim = shape.dim;
  float q[kMaxGroup][kMaxDim], magnitude[kMaxDim], total[kMaxDim], all[kMaxGroup];
  vf sum[kMaxGroup] = {};
  for (int d = 0; d < dim; d += kLanes) {
    vf absolute = {}, sign = {};
    for (int h = 0; h < heads; ++h) {
      const vf x = load_bf16(query + h * dim + d), y = larger(x, -x);
      store(q[h] + d, x);
      absolute += y;
      sign += x;
      sum[h] += y;
    }
    store(magnitude + d, absolute);
    store(total + d, sign);
  }
  for (int h = 0; h < heads; ++h) all[h] = reduce_add(sum[h]);
  c.count = count;
  c.heads = heads;
  top_k(magnitude, dim, count, c.channel, scratch);
  for (int i = 0; i < count; ++i) {
    int d = c.channel[i];
    bool reads_max = total[d] > 0;
    c.offset[i] = uint32_t((reads_max ? shape.plane : 0) + d * shape.row);
    if (reads_max) c.channel[i] |= kReadsMax;
  }
  c.offset[count] = c.offset[count - 1];   // an odd count is padded with a zero query
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < count; ++i) c.query[h][i] = q[h][c.channel[i] & ~kReadsMax];
    store(c.query[h] + count, vf{});
    vf part = {};
    for (int i = 0; i < count; i += kLanes) {
      const vf x = load(c.query[h] + i);
      part += larger(x, -x);
    }
    const float chosen = reduce_add(part);
    float scale = chosen > 0 ? __builtin_sqrtf(dim * (chosen / all[h])) : 1.0f;
    c.coefficient[h] = 1.44269504f / scale;
    if (!kScoresBf16) continue;
    const float shift = storage == kE5m2 ? 0x1p96f : 1.0f;
    if (storage == kE5m2) c.coefficient[h] *= 0x1p16f;
    for (int i = 0; i < (count + 1) / 2; ++i) {
      c.pair[h][i] = bits_of(c.query[h][2 * i] * shift) >> 16 |
                     (bits_of(c.query[h][2 * i + 1] * shift) & 0xffff0000u);
    }
  }
}

// Softmax over the pages of each head, sum over the heads, top pages (steps 4 and 5). scores holds
// heads + 1 rows of `stride`; the last row receives the group's sums.
void select_pages(float* scores, int64_t stride, const Choice& c, int pages, int top, int32_t* out,
                  const TopK& scratch) {
  const int padded = (pages + kChunk - 1) / kChunk * kChunk;
  float* group = scores + c.heads * stride;
  float weight[kMaxGroup];
  for (int h = 0; h < c.heads; ++h) {
    float* row = scores + h * stride;
    for (int i = pages; i < padded; ++i) row[i] = -3e38f;
    vf high[4] = {load(row), load(row + kLanes), load(row + 2 * kLanes), load(row + 3 * kLanes)};
    for (int i = 4 * kLanes; i < padded; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) high[j] = larger(high[j], load(row + i + j * kLanes));
    const float peak = reduce_max(larger(larger(high[0], high[1]), larger(high[2], high[3])));
    const vf coefficient = splat(c.coefficient[h]), offset = splat(peak * c.coefficient[h]);
    vf sum[4] = {};
    for (int i = 0; i < padded; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        vf e = exp2_fast(load(row + i + j * kLanes) * coefficient - offset);
        store(row + i + j * kLanes, e);
        sum[j] += e;
      }
    }
    weight[h] = 1.0f / reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  for (int i = 0; i < padded; i += kLanes) {
    vf sum = {};
    for (int h = 0; h < c.heads; ++h) sum += load(scores + h * stride + i) * weight[h];
    store(group + i, sum);
  }
  for (int i = pages; i < padded; ++i) group[i] = -1.0f;
  top_k(group, pages, top, out, scratch);
  for (int i = pages; i < top; ++i) out[i] = -1;
}

// Rotate-half RoPE of 16 + 16 lanes, rounded to bf16 as the model's query is.
inline void rotate(const float* a, const float* b, const float* cosine, const float* sine,
                   uint16_t* low, uint16_t* high) {
  for (int i = 0; i < 16; ++i) {
    low[i] = narrow(a[i] * cosine[i] - b[i] * sine[i]);
    high[i] = narrow(b[i] * cosine[i] + a[i] * sine[i]);
  }
}

// Up-projection and RoPE of some items; an item's weights are read once for the whole batch.
void project(const Project& p, int first, int last) {
  const int per_head = p.dim / 32;
  alignas(64) float out[kBatchTile][2][16];
  for (int item = first; item < last; ++item) {
    const uint16_t* weights = p.up + int64_t(item) * p.rank * 32;
    const int head = item / per_head, at = item % per_head * 16;
    for (int s = 0; s < p.batch; s += kBatchTile) {
      const int tile = p.batch - s < kBatchTile ? p.batch - s : kBatchTile;
      project_item(weights, p.latent + int64_t(s) * p.rank, p.rank, tile, out);
      for (int i = 0; i < tile; ++i) {
        uint16_t* q = p.query + (int64_t(s + i) * p.heads + head) * p.dim + at;
        rotate(out[i][0], out[i][1], p.cosine[s + i] + at, p.sine[s + i] + at, q, q + p.dim / 2);
      }
    }
  }
}

// Rows of the down-projection. RMSNorm's weight is folded into the rows, its scale is applied to
// the sum, so the hidden state is read as it arrives.
void down(const uint16_t* rows, int first, int last, const uint16_t* hidden, int size, int batch,
          float eps, uint16_t* latent, int rank) {
  for (int s = 0; s < batch; ++s) {
    const uint16_t* x = hidden + int64_t(s) * size;
    const float scale = 1.0f / __builtin_sqrtf(dot_bf16(x, x, size) / size + eps);
    for (int r = first; r < last; ++r)
      latent[int64_t(s) * rank + r] = narrow(scale * dot_bf16(rows + int64_t(r) * size, x, size));
  }
}

// bf16 bits <-> int16 that compares like the value; its own inverse.
inline int16_t ordered(int16_t b) { return int16_t(b ^ ((b >> 15) & 0x7fff)); }

// bf16 -> e5m2, round to nearest even, saturating, no negative zero. Below the smallest normal,
// adding 128 rounds to multiples of 2^-16, the subnormal step, and leaves the code in the mantissa.
inline uint8_t to_e5m2(uint16_t b) {
  int32_t magnitude = b & 0x7fff, rebased = magnitude - (112 << 7);
  int32_t normal = (rebased + 15 + ((rebased >> 5) & 1)) >> 5;
  normal = normal > 0x7b ? 0x7b : normal;
  int32_t small = int32_t(bits_of(widen(uint16_t(magnitude)) + 128.0f) - 0x43000000u);
  int32_t code = magnitude < (113 << 7) ? small : normal;
  return uint8_t(code ? code | ((b >> 8) & 0x80) : 0);
}

// Merge one key into the open page of a KV head, [min, max][dim] ordered int16.
void merge_key(const uint16_t* key, int dim, bool opens, int16_t* open) {
  int16_t* low = open;
  int16_t* high = open + dim;
  for (int d = 0; d < dim; ++d) {
    int16_t k = ordered(int16_t(key[d]));
    low[d] = opens || k < low[d] ? k : low[d];
    high[d] = opens || k > high[d] ? k : high[d];
  }
}

// Codes of the open page, [min, max][dim], in the element type of the storage.
void encode_page(const int16_t* open, int dim, int storage, void* codes) {
  if (storage == kE5m2) {
    uint8_t* out = static_cast<uint8_t*>(codes);
    for (int i = 0; i < 2 * dim; ++i) out[i] = to_e5m2(uint16_t(ordered(open[i])));
  } else {
    uint16_t* out = static_cast<uint16_t*>(codes);
    for (int i = 0; i < 2 * dim; ++i) {
      uint16_t b = uint16_t(ordered(open[i]));
      out[i] = b == 0x8000 ? 0 : b;
    }
  }
}

// Write a finished page into its column of the channel-major block.
void close_page(const int16_t* open, const SummaryShape& shape, int storage, int64_t page,
                uint8_t* unit) {
  uint8_t* column = unit + shape.page(page);
  alignas(64) uint16_t codes[2 * kMaxDim];
  encode_page(open, shape.dim, storage, codes);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(codes);
  for (int i = 0; i < 2 * shape.dim; ++i)   // the max plane follows the min plane
    __builtin_memcpy(column + i * shape.row, bytes + i * shape.element, size_t(shape.element));
}

// Score pages [first, last) in chunks; first is a multiple of kChunk. scores has heads rows.
void score(const uint8_t* unit, const SummaryShape& shape, int storage, const Choice& c, int first,
           int last, float* scores, int64_t stride, int ahead) {
  for (int page = first; page < last; page += kChunk) {
    const uint8_t* base = unit + shape.page(page);
    const int later = page + ahead * kChunk;
    const uint8_t* next = later < last ? unit + shape.page(later) : nullptr;
    for (int h = 0; h < c.heads; h += kHeadTile) {
      const int heads = c.heads - h < kHeadTile ? c.heads - h : kHeadTile;
      float* out = scores + h * stride + page;
      const uint8_t* prefetch = h ? nullptr : next;
      if (storage == kE5m2) score_chunk<kE5m2>(base, prefetch, c, h, heads, out, stride);
      else score_chunk<kBf16>(base, prefetch, c, h, heads, out, stride);
    }
  }
}

// Pull the first chunks of a scan into L1.
void warm(const uint8_t* unit, const SummaryShape& shape, const Choice& c, int first, int last,
          int ahead) {
  const int lines = int(kChunk * shape.element / 64);
  for (int j = 0; j < ahead && first + j * kChunk < last; ++j) {
    const uint8_t* base = unit + shape.page(first + j * kChunk);
    for (int i = 0; i < c.count; ++i)
      for (int l = 0; l < lines; ++l) __builtin_prefetch(base + c.offset[i] + 64 * l);
  }
}

// Sum of bytes read as integers: the plain read bandwidth of this instruction set.
uint64_t read_all(const uint8_t* data, int64_t bytes) {
  vi sum[8] = {};
  for (int64_t i = 0; i + int64_t(sizeof sum) <= bytes; i += sizeof sum)
    for (int j = 0; j < 8; ++j) {
      vi v;
      __builtin_memcpy(&v, data + i + j * sizeof v, sizeof v);
      sum[j] += v;
    }
  uint64_t total = 0;
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < kLanes; ++i) total += uint32_t(sum[j][i]);
  return total;
}

constexpr Kernels kernels() {
  return {choose, select_pages, project, down, merge_key, encode_page, close_page, score, warm,
          read_all};
}
