// Channel choice and the scale of the scores.
#pragma once

#include "common.cuh"

namespace {

template <int kGroup>
struct Chosen {
  int rows[kDim];                      // byte offset of a chosen channel's row
  __half queries[kGroup][kDim + 8];    // of the chosen channels, by rank; zero beyond
  uint32_t sums[kDim];                 // bits of sum |q| over the group
  __half all[kGroup][kDim + 8];
  uint8_t plane[kDim];
};

// A channel's queries, from global memory.
template <int kGroup>
__device__ __forceinline__ void load_queries(const RouteArgs& a, int pair, float (&q)[kGroup]) {
  if (threadIdx.x >= kDim) return;
  const __nv_bfloat16* from = a.queries + static_cast<size_t>(pair) * a.group * kDim + threadIdx.x;
#pragma unroll
  for (int h = 0; h < kGroup; ++h) q[h] = h < a.group ? __bfloat162float(from[h * kDim]) : 0.f;
}

// Top `channels` of 128 by summed |q| (ties: the lowest), by counting the channels before each.
template <int kThreads, int kGroup>
__device__ __forceinline__ void choose_channels(const RouteArgs& a, const float (&q)[kGroup],
                                                Chosen<kGroup>& s) {
  constexpr int kParts = kThreads / kDim;
  const int tid = threadIdx.x;
  if (tid < kDim) {
    float sum = 0, magnitude = 0;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      sum += q[h], magnitude += fabsf(q[h]);
      s.all[h][tid] = __float2half_rn(q[h]);
    }
    s.sums[tid] = __float_as_uint(magnitude) + 1;
    s.plane[tid] = sum > 0;
  }
  __syncthreads();
  const int channel = tid / kParts, part = tid % kParts;
  const uint4* sums = reinterpret_cast<const uint4*>(s.sums);
  const uint32_t own = s.sums[channel];
  int minus = 0;
#pragma unroll
  for (int i = 0; i < kDim / 4 / kParts; ++i) {
    const int chunk = i * kParts + part;
    const uint4 v = sums[chunk];
    const uint32_t bound = own - (chunk * 4 + 3 < channel);  // before: an equal one counts too
    count_above(minus, v.x, bound), count_above(minus, v.y, bound);
    count_above(minus, v.z, bound), count_above(minus, v.w, bound);
  }
  const uint4 v = sums[channel / 4];
  const int place = part == 0 ? channel % 4 : 0;
  minus -= (place > 0 & v.x == own) + (place > 1 & v.y == own) + (place > 2 & v.z == own);
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) minus += __shfl_xor_sync(kAll, minus, step);
  const int rank = -minus;
  const bool kept = rank < a.channels;
  if (part == 0) s.rows[rank] = kept ? (s.plane[channel] * kDim + channel) * a.row_pages : 0;
#pragma unroll
  for (int h = 0; h < kGroup; h += kParts)
    if (h + part < kGroup)
      s.queries[h + part][rank] = kept ? s.all[h + part][channel] : __half();
  __syncthreads();
}

// log2(e) / sqrt(128 * sum|q chosen| / sum|q|) of the two heads whose scores the lane holds.
template <int kGroup>
__device__ __forceinline__ float2 scales(const Chosen<kGroup>& s, int channels) {
  constexpr int kLanes = 32 / kGroup;
  const int lane = threadIdx.x % 32, head = lane / kLanes;
  float chosen = 0, total = 0;
  for (int i = lane % kLanes * 2; i < kDim; i += kLanes * 2) {
    const float2 q = __half22float2(*reinterpret_cast<const __half2*>(&s.all[head][i]));
    total += fabsf(q.x) + fabsf(q.y);
    if (i >= channels) continue;
    const float2 c = __half22float2(*reinterpret_cast<const __half2*>(&s.queries[head][i]));
    chosen += fabsf(c.x) + fabsf(c.y);
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    chosen += __shfl_xor_sync(kAll, chosen, step);
    total += __shfl_xor_sync(kAll, total, step);
  }
  const float scale = chosen > 0 ? kLog2E * rsqrtf(kDim * chosen / total) : kLog2E;
  const int first = (lane % 4) * 2 % kGroup;
  return make_float2(__shfl_sync(kAll, scale, first * kLanes),
                     __shfl_sync(kAll, scale, (first + 1) * kLanes));
}

}  // namespace
