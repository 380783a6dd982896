// Softmax weights and the exact choice of the top pages, by the leader.
#pragma once

#include "score.cuh"

namespace {

// A warp's softmax over all pages: each lane has the largest exponent and the inverse sum of one
// head, lane % kGroup. Every warp computes them anew, which is faster than waiting for one.
template <int kGroup>
__device__ __forceinline__ float2 normaliser(int group, int tiles, const Collected<kGroup>& c) {
  constexpr int kStep = 32 / kGroup;
  const int lane = threadIdx.x % 32;
  const float2* ml = reinterpret_cast<const float2*>(c.tiles) + lane;
  float m = -INFINITY, l = 0;
#pragma unroll 4
  for (int i = lane / kGroup; i < tiles; i += kStep) m = fmaxf(m, ml[(i - lane / kGroup) * kGroup].x);
#pragma unroll
  for (int step = kGroup; step < 32; step *= 2) m = fmaxf(m, __shfl_xor_sync(kAll, m, step));
#pragma unroll 4
  for (int i = lane / kGroup; i < tiles; i += kStep) {
    const float2 tile = ml[(i - lane / kGroup) * kGroup];
    l += tile.y * exp2_fast(tile.x - m);
  }
#pragma unroll
  for (int step = kGroup; step < 32; step *= 2) l += __shfl_xor_sync(kAll, l, step);
  return make_float2(m, lane % kGroup < group ? 1.f / l : 0.f);
}

// Page at a position: tiles hold their pages interleaved, see score_tile.
template <int kWords>
__device__ __forceinline__ int page_at(int position) {
  const int in = position % (32 * kWords);
  return position - in + in % 8 * 4 * kWords + in / 8;
}

// Scores of all pages, summed over the group's heads; returns the largest of the thread's own.
template <int kThreads, int kWords, int kGroup>
__device__ __forceinline__ float score_pages(int group, int pages, int tiles,
                                             const Collected<kGroup>& c) {
  constexpr int kTile = 32 * kWords, kRounds = 32 / kGroup;
  __shared__ alignas(16) float weights[kThreads / 32][kRounds][kGroup];
  const int tid = threadIdx.x, lane = tid % 32, end = tiles * kTile;
  const float2 whole = normaliser<kGroup>(group, tiles, c);
  float best = -1;
#pragma unroll 1
  for (int base = tid; base < end; base += kRounds * kThreads) {
    // A warp's 32 positions lie in one tile, so that a lane weighs one round's tile for one head.
    const int tile = min(base + lane / kGroup * kThreads, end - 1) / kTile;
    const float* ml = c.tiles + (tile * kGroup + lane % kGroup) * 2;
    weights[tid / 32][lane / kGroup][lane % kGroup] = exp2_fast(*ml - whole.x) * whole.y;
    __syncwarp();
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int at = base + round * kThreads;
      if (at >= end) break;
      const float4* e = reinterpret_cast<const float4*>(c.exponentials + at * kGroup);
      const float4* w = reinterpret_cast<const float4*>(weights[tid / 32][round]);
      float score = 0;
#pragma unroll
      for (int i = 0; i < kGroup / 4; ++i)
        score += e[i].x * w[i].x + e[i].y * w[i].y + e[i].z * w[i].z + e[i].w * w[i].w;
      c.scores[at] = score = page_at<kWords>(at) < pages ? score : -1.f;
      best = fmaxf(best, score);
    }
    __syncwarp();
  }
  return best;
}

// The `top`-th largest of the maxima of kGroups groups of pages, or a little less: maxima lose
// their last bits to the group's number, so that none are equal.
template <int kThreads, int kGroups>
__device__ __forceinline__ float least_of_best(float best, int top) {
  constexpr int kLanes = kThreads / kGroups, kShare = kGroups / kLanes;
  __shared__ alignas(16) int maxima[kGroups];
  __shared__ float threshold;
  const int part = threadIdx.x % kLanes, mine = threadIdx.x / kLanes;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2)
    best = fmaxf(best, __shfl_xor_sync(kAll, best, step));
  const int own = (__float_as_int(best) & -kGroups) | mine;
  if (part == 0) maxima[mine] = own;
  __syncthreads();
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kShare; ++i) rank += maxima[i * kLanes + part] > own;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) rank += __shfl_xor_sync(kAll, rank, step);
  if (rank == top - 1 && part == 0) threshold = fmaxf(__int_as_float(own & -kGroups), 0.f);
  __syncthreads();
  return threshold;
}

// Lists the scores that reach the threshold as keys that sort as pages do: the larger score first,
// then the lower page. One atomic a warp.
template <int kThreads, int kWords>
__device__ __forceinline__ void collect(int positions, float threshold, int* count, uint64_t* keys,
                                        const float* scores) {
  constexpr int kRounds = 8;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int base = threadIdx.x; base < positions; base += kRounds * kThreads) {
    float score[kRounds];
    unsigned hits[kRounds];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int at = base + i * kThreads;
      score[i] = at < positions ? scores[at] : -1.f;
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      hits[i] = __ballot_sync(kAll, score[i] >= threshold);
      sum += __popc(hits[i]);
    }
    if (sum == 0) continue;
    int slot = 0;
    if (lane == 0) slot = atomicAdd(count, sum);
    slot = __shfl_sync(kAll, slot, 0);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const uint32_t page = page_at<kWords>(base + i * kThreads);
      const uint64_t key = static_cast<uint64_t>(__float_as_uint(score[i])) << 32 | ~page;
      if (hits[i] >> lane & 1) keys[slot + __popc(hits[i] & ((1u << lane) - 1))] = key;
      slot += __popc(hits[i]);
    }
  }
}

// Exact top pages of the collected scores. Few scores reach the `top`-th largest of the maxima of
// kGroups groups of pages as long as there are clearly more groups than top pages.
template <int kThreads, int kWords, int kGroup, int kGroups>
__device__ void select(const RouteArgs& a, int pair, int pages, int tiles,
                       const Collected<kGroup>& c) {
  constexpr int kSharers = kThreads / 64;  // threads that rank one candidate
  __shared__ int count;
  const int tid = threadIdx.x;
  if (tid == 0) count = 0;
  const float best = score_pages<kThreads, kWords, kGroup>(a.group, pages, tiles, c);
  const float threshold = least_of_best<kThreads, kGroups>(best, a.top);
  auto* keys = reinterpret_cast<uint64_t*>(c.exponentials);
  collect<kThreads, kWords>(tiles * 32 * kWords, threshold, &count, keys, c.scores);
  __syncthreads();
  int32_t* out = a.indices + static_cast<size_t>(pair) * a.top;
#pragma unroll 1
  for (int base = 0; base < count; base += kThreads / kSharers) {
    const int candidate = base + tid / kSharers;
    const uint64_t own = candidate < count ? keys[candidate] : 0;
    int before = 0;
#pragma unroll 4
    for (int j = tid % kSharers; j < count; j += kSharers) before += keys[j] > own;
#pragma unroll
    for (int step = 1; step < kSharers; step *= 2)
      before += __shfl_xor_sync(kAll, before, step);
    if (candidate < count && tid % kSharers == 0 && before < a.top)
      out[before] = static_cast<int32_t>(~static_cast<uint32_t>(own));
  }
#pragma unroll 1
  for (int i = count + tid; i < a.top; i += kThreads) out[i] = -1;
}

}  // namespace
