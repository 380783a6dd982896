// The kernels of one instruction set as a table, and what they share.
#pragma once
#include <cstdint>

#include "layout.h"

namespace router {

// Scratch for the candidates of a top-k, as long as the values and 64 more.
struct TopK {
  float* value;
  int32_t* index;
};

// An item is 16 dimensions of one head and their RoPE partners half a head up; its weights are
// [rank / 2][two halves][16][2] bf16.
struct Project {
  const uint16_t* up;
  const uint16_t* latent;      // [batch][rank] bf16
  const float* const* cosine;  // per sequence, [head_dim / 2]
  const float* const* sine;
  uint16_t* query;             // [batch][heads][head_dim] bf16
  int batch, heads, dim, rank;
};

struct Kernels {
  void (*choose)(const uint16_t* query, int heads, const SummaryShape&, int count, int storage,
                 Choice&, const TopK&);
  void (*select_pages)(float* scores, int64_t stride, const Choice&, int pages, int top,
                       int32_t* out, const TopK&);
  void (*project)(const Project&, int first, int last);
  void (*down)(const uint16_t* rows, int first, int last, const uint16_t* hidden, int size,
               int batch, float eps, uint16_t* latent, int rank);
  void (*merge_key)(const uint16_t* key, int dim, bool opens, int16_t* open);
  void (*encode_page)(const int16_t* open, int dim, int storage, void* codes);
  void (*close_page)(const int16_t* open, const SummaryShape&, int storage, int64_t page,
                     uint8_t* unit);
  void (*score)(const uint8_t* unit, const SummaryShape&, int storage, const Choice&, int first,
                int last, float* scores, int64_t stride, int ahead);
  void (*warm)(const uint8_t* unit, const SummaryShape&, const Choice&, int first, int last,
               int ahead);
  uint64_t (*read_all)(const uint8_t* data, int64_t bytes);
};


}  // namespace router
