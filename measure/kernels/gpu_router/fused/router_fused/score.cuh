// Scores of tiles of pages, into the leader's shared memory.
#pragma once

#include "choose.cuh"

namespace {

// Where the leader collects: all in dynamic shared memory.
template <int kGroup>
struct Collected {
  float* exponentials;  // [positions, kGroup]; later the candidates
  float* scores;        // [positions]
  float* tiles;         // [tiles, kGroup, 2]: maximum and sum of a tile
  uint64_t* barrier;    // counts the bytes that arrive
};

// A lane's bytes of 32 chosen channels: a run of 4 * kWords pages of each of 8 channels.
template <int kWords, int kGroup>
__device__ __forceinline__ void load_rows(const uint8_t* base, const Chosen<kGroup>& s, int k,
                                          uint32_t (&w)[8][kWords]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    load<kWords>(base + s.rows[k + (j >> 1) * 8 + 2 * t + (j & 1)], w[j]);
}

// Adds 32 channels: acc[x][i / 2][i % 2 * 2 + head % 2] is page 4x + i of the lane's run.
template <int kWords, int kGroup>
__device__ __forceinline__ void multiply(const uint32_t (&w)[8][kWords], const Chosen<kGroup>& s,
                                         int k, float (&acc)[kWords][2][4]) {
  const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
  uint32_t b[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto* q = reinterpret_cast<const uint32_t*>(&s.queries[row % kGroup][k + j * 8 + 2 * t]);
    b[j] = row < kGroup ? *q : 0u;
  }
#pragma unroll
  for (int x = 0; x < kWords; ++x)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int i = half * 2, j = step * 4;
        mma(acc[x][half], pick(w[j][x], w[j + 1][x], i), pick(w[j][x], w[j + 1][x], i + 1),
            pick(w[j + 2][x], w[j + 3][x], i), pick(w[j + 2][x], w[j + 3][x], i + 1),
            b[step * 2], b[step * 2 + 1]);
      }
}

// Scores a tile; its exponentials, maximum and sum go to the leader.
template <int kWords, int kGroup>
__device__ __forceinline__ void score_tile(const RouteArgs& a, const uint8_t* summaries, int tile,
                                           int pages, const Chosen<kGroup>& s,
                                           const Collected<kGroup>& out) {
  constexpr int kTile = 32 * kWords;
  const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
  const int first = tile * kTile + row * 4 * kWords;
  float acc[kWords][2][4] = {};
  uint32_t w[8][kWords];
  float2 scale;
#pragma unroll 1
  for (int k = 0; k < a.channels; k += 32) {
    load_rows<kWords, kGroup>(summaries + first, s, k, w);
    if (k == 0) scale = scales<kGroup>(s, a.channels);  // while the loads are in flight
    multiply<kWords, kGroup>(w, s, k, acc);
  }
  if ((tile + 1) * kTile > pages) {
#pragma unroll
    for (int x = 0; x < kWords; ++x)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + x * 4 + i >= pages)
          acc[x][i / 2][i % 2 * 2] = acc[x][i / 2][i % 2 * 2 + 1] = -INFINITY;
  }
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0, l1 = 0;
#pragma unroll
  for (int x = 0; x < kWords; ++x)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      m0 = fmaxf(m0, acc[x][i / 2][i % 2 * 2]);
      m1 = fmaxf(m1, acc[x][i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    m0 = fmaxf(m0, __shfl_xor_sync(kAll, m0, step));
    m1 = fmaxf(m1, __shfl_xor_sync(kAll, m1, step));
  }
  m0 *= scale.x, m1 *= scale.y;
  const bool writes = 2 * t < kGroup;
  float* to = out.exponentials + (tile * kTile + row) * kGroup + 2 * t;
#pragma unroll
  for (int x = 0; x < kWords; ++x)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float e0 = exp2_fast(fmaf(acc[x][i / 2][i % 2 * 2], scale.x, -m0));
      const float e1 = exp2_fast(fmaf(acc[x][i / 2][i % 2 * 2 + 1], scale.y, -m1));
      l0 += e0, l1 += e1;
      const int at = (x * 4 + i) * 8 * kGroup;
      if (writes) *reinterpret_cast<float2*>(to + at) = make_float2(e0, e1);
    }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    l0 += __shfl_xor_sync(kAll, l0, step);
    l1 += __shfl_xor_sync(kAll, l1, step);
  }
  float* at = out.tiles + (tile * kGroup + 2 * t) * 2;
  if (writes && row == 0) *reinterpret_cast<float4*>(at) = make_float4(m0, l0, m1, l1);
}

// Copies a scored tile to the leader.
template <int kWords, int kGroup>
__device__ __forceinline__ void send_tile(int tile, const Collected<kGroup>& c) {
  constexpr int kTile = 32 * kWords;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const uint32_t barrier = leader_address(c.barrier);
  copy_to_leader(c.exponentials + tile * kTile * kGroup, kTile * kGroup * 4, barrier);
  copy_to_leader(c.tiles + tile * kGroup * 2, kGroup * 8, barrier);
}

}  // namespace
