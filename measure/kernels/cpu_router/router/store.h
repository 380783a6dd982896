// What outlives a call: K-summaries, open pages, packed projection weights, the RoPE table.
#pragma once
#include <cstring>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace router {

struct Store {
  const Config c;
  const SummaryShape shape;
  const int group;                     // query heads of a KV head
  const int items;                     // project items of a layer
  const int64_t up_size, down_size;    // bf16 values of a layer
  Memory summaries, open, up, down, rope;
  int64_t positions = 0;

  explicit Store(const Config& config)
      : c(config), shape(config), group(c.heads / c.kv_heads), items(c.heads * (c.head_dim / 32)),
        up_size(int64_t(c.rank) * c.heads * c.head_dim), down_size(int64_t(c.rank) * c.hidden),
        summaries(units(c.layers) * shape.unit),
        open(units(c.layers) * 2 * c.head_dim * 2),
        up(int64_t(c.layers) * up_size * 2), down(int64_t(c.layers) * down_size * 2) {}

  int64_t units(int64_t layer) const { return layer * c.kv_heads * c.batch; }
  // KV-head-major, so that the threads that project a head also score it for every sequence.
  int64_t unit(int64_t layer, int g, int s) const { return units(layer) + g * c.batch + s; }
  uint8_t* summary(int64_t layer, int g, int s) const {
    return summaries.at(unit(layer, g, s) * shape.unit);
  }
  int16_t* open_page(int64_t layer, int g, int s) const {
    return open.at<int16_t>(unit(layer, g, s) * 2 * c.head_dim);
  }
  const uint16_t* up_of(int64_t layer) const { return up.at<uint16_t>(layer * up_size); }
  const uint16_t* down_of(int64_t layer) const { return down.at<uint16_t>(layer * down_size); }
  const float* cosine(int64_t position) const { return rope.at<float>(position * c.head_dim); }
  const float* sine(int64_t position) const { return cosine(position) + c.head_dim / 2; }

  // up [rank][heads * dim] -> [item][rank / 2][half][16][2]
  void set_up(int64_t layer, const uint16_t* source) {
    uint16_t* out = up.at<uint16_t>(layer * up_size);
    const int per_head = c.head_dim / 32, width = c.heads * c.head_dim;
    for (int item = 0; item < items; ++item)
      for (int r = 0; r < c.rank; r += 2)
        for (int half = 0; half < 2; ++half)
          for (int lane = 0; lane < 16; ++lane)
            for (int odd = 0; odd < 2; ++odd)
              *out++ = source[int64_t(r + odd) * width + item / per_head * c.head_dim +
                              half * (c.head_dim / 2) + item % per_head * 16 + lane];
  }

  // rows [rank][hidden], with RMSNorm's weight already folded in
  void set_down(int64_t layer, const uint16_t* rows) {
    memcpy(down.at<uint16_t>(layer * down_size), rows, size_t(down_size) * 2);
  }

  // table [positions][cosine | sine][dim / 2]; freed with the store, set once
  void set_rope(const float* table, int64_t count) {
    rope.~Memory();
    new (&rope) Memory(count * c.head_dim * 4);
    memcpy(rope.at(), table, size_t(count * c.head_dim * 4));
    positions = count;
  }

  void append(const Kernels& k, int64_t layer, int g, int s, const uint16_t* key, int64_t token) {
    int16_t* page = open_page(layer, g, s);
    k.merge_key(key, c.head_dim, token % c.page_tokens == 0, page);
    if (token % c.page_tokens == c.page_tokens - 1)
      k.close_page(page, shape, c.storage, token / c.page_tokens, summary(layer, g, s));
  }

  // keys [tokens][kv_heads][dim] of one sequence
  void build(const Kernels& k, int64_t layer, int s, const uint16_t* keys, int64_t tokens) {
    for (int g = 0; g < c.kv_heads; ++g)
      for (int64_t t = 0; t < tokens; ++t)
        append(k, layer, g, s, keys + (t * c.kv_heads + g) * c.head_dim, t);
  }

  // codes [kv_heads][pages][min, max][dim], the page that is still open included
  void read(const Kernels& k, int64_t layer, int s, int64_t tokens, uint8_t* out) const {
    const int64_t e = shape.element, full = tokens / c.page_tokens;
    for (int g = 0; g < c.kv_heads; ++g) {
      for (int64_t page = 0; page < full; ++page) {
        const uint8_t* column = summary(layer, g, s) + shape.page(page);
        for (int i = 0; i < 2 * c.head_dim; ++i, out += e)
          memcpy(out, column + i * shape.row, size_t(e));
      }
      if (tokens % c.page_tokens == 0) continue;
      k.encode_page(open_page(layer, g, s), c.head_dim, c.storage, out);
      out += 2 * c.head_dim * e;
    }
  }
};

}  // namespace router
