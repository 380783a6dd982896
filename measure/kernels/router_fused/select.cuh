// Softmax weights and the exact choice of the top pages, by the leader.
#pragma once

#include "score.cuh"

namespace {

// Factor that turns a tile's exponentials into softmax probabilities; one warp a head.
template <int kThreads, int kGroup>
__device__ __forceinline__ void weigh_tiles(int group, int tiles, const Collected<kGroup>& c) {
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < kGroup; head += kThreads / 32) {
    const float2* ml = reinterpret_cast<const float2*>(c.tiles) + head;
    float m = -INFINITY, l = 0;
#pragma unroll 1
    for (int i = lane; i < tiles; i += 32) m = fmaxf(m, ml[i * kGroup].x);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) m = fmaxf(m, __shfl_xor_sync(kAll, m, step));
#pragma unroll 1
    for (int i = lane; i < tiles; i += 32) l += ml[i * kGroup].y * exp2_fast(ml[i * kGroup].x - m);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) l += __shfl_xor_sync(kAll, l, step);
    const float inverse = head < group ? 1.f / l : 0.f;
#pragma unroll 1
    for (int i = lane; i < tiles; i += 32)
      c.weights[i * kGroup + head] = exp2_fast(ml[i * kGroup].x - m) * inverse;
  }
}

// Page at a position: tiles hold their pages interleaved, see score_tile.
template <int kWords>
__device__ __forceinline__ int page_at(int position) {
  const int in = position % (32 * kWords);
  return position - in + in % 8 * 4 * kWords + in / 8;
}

// Lists the scores that reach the threshold; one atomic a warp.
template <int kThreads, int kWords, int kGroup>
__device__ __forceinline__ void collect(int positions, float threshold, int* count, float* values,
                                        int* ids, const float* scores) {
  const int lane = threadIdx.x % 32;
  int mine = 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < positions; at += kThreads) mine += scores[at] >= threshold;
  int sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kAll, sum, step);
    sum += lane >= step ? below : 0;
  }
  int slot = 0;
  if (lane == 31 && sum > 0) slot = atomicAdd(count, sum);
  slot = __shfl_sync(kAll, slot, 31) + sum - mine;
  if (mine == 0) return;
#pragma unroll 1
  for (int at = threadIdx.x; at < positions; at += kThreads) {
    const float score = scores[at];
    if (score < threshold) continue;
    values[slot] = score, ids[slot] = page_at<kWords>(at);
    ++slot;
  }
}

// Exact top pages of the collected scores. Few scores reach the `top`-th largest of the maxima of
// kGroups groups of pages as long as there are clearly more groups than top pages.
template <int kThreads, int kWords, int kGroup, int kGroups>
__device__ void select(const RouteArgs& a, int pair, int pages, int tiles,
                       const Collected<kGroup>& c) {
  constexpr int kTile = 32 * kWords, kLanes = kThreads / kGroups;
  __shared__ alignas(16) float maxima[kGroups];
  __shared__ float threshold;
  __shared__ int count;
  const int tid = threadIdx.x;
  if (tid == 0) count = 0;
  weigh_tiles<kThreads, kGroup>(a.group, tiles, c);
  __syncthreads();
  float best = -1;
#pragma unroll 2
  for (int at = tid; at < tiles * kTile; at += kThreads) {
    const int tile = at / kTile;
    const float4* e = reinterpret_cast<const float4*>(c.exponentials + at * kGroup);
    const float4* w = reinterpret_cast<const float4*>(c.weights + tile * kGroup);
    float score = 0;
#pragma unroll
    for (int i = 0; i < kGroup / 4; ++i)
      score += e[i].x * w[i].x + e[i].y * w[i].y + e[i].z * w[i].z + e[i].w * w[i].w;
    const int page = page_at<kWords>(at);
    c.scores[at] = score = page < pages ? score : -1.f;
    best = fmaxf(best, score);
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2)
    best = fmaxf(best, __shfl_xor_sync(kAll, best, step));
  const int mine = tid / kLanes;
  if (tid % kLanes == 0) maxima[mine] = best;
  __syncthreads();
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kGroups / kLanes; ++i) {
    const int j = i * kLanes + tid % kLanes;
    rank += (maxima[j] > best) | (maxima[j] == best & j < mine);
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) rank += __shfl_xor_sync(kAll, rank, step);
  if (rank == a.top - 1 && tid % kLanes == 0) threshold = fmaxf(best, 0.f);
  __syncthreads();
  float* values = c.exponentials;
  int* ids = reinterpret_cast<int*>(c.exponentials + tiles * kTile);
  collect<kThreads, kWords, kGroup>(tiles * kTile, threshold, &count, values, ids, c.scores);
  __syncthreads();
  int32_t* out = a.indices + static_cast<size_t>(pair) * a.top;
#pragma unroll 1
  for (int base = 0; base < count; base += kThreads / 4) {
    const int candidate = base + tid / 4;
    const bool real = candidate < count;
    const float value = real ? values[candidate] : 0.f;
    const int id = real ? ids[candidate] : 0;
    int before = 0;
#pragma unroll 4
    for (int j = tid % 4; j < count; j += 4)
      before += (values[j] > value) | (values[j] == value & ids[j] < id);
    before += __shfl_xor_sync(kAll, before, 1);
    before += __shfl_xor_sync(kAll, before, 2);
    if (real && tid % 4 == 0 && before < a.top) out[before] = id;
  }
#pragma unroll 1
  for (int i = count + tid; i < a.top; i += kThreads) out[i] = -1;
}

}  // namespace
