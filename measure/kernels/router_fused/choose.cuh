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

// Top `channels` of 128 by summed |q| (ties: the lowest), by counting the channels before each.
template <int kThreads, int kGroup>
__device__ void choose_channels(const RouteArgs& a, int pair, Chosen<kGroup>& s) {
  constexpr int kParts = kThreads / kDim;
  const int tid = threadIdx.x;
  if (tid < kDim) {
    const __nv_bfloat16* q = a.queries + static_cast<size_t>(pair) * a.group * kDim + tid;
    float q_of[kGroup], sum = 0, magnitude = 0;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) q_of[h] = h < a.group ? __bfloat162float(q[h * kDim]) : 0.f;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      sum += q_of[h], magnitude += fabsf(q_of[h]);
      s.all[h][tid] = __float2half_rn(q_of[h]);
    }
    s.sums[tid] = __float_as_uint(magnitude);
    s.plane[tid] = sum > 0;
  }
  __syncthreads();
  const int channel = tid / kParts, part = tid % kParts;
  const int own = static_cast<int>(s.sums[channel]);
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kDim / 4 / kParts; ++i) {
    const int chunk = i * kParts + part;
    const int4 v = reinterpret_cast<const int4*>(s.sums)[chunk];
    const int bound = own - (chunk * 4 + 3 < channel);
    rank += (v.x > bound) + (v.y > bound) + (v.z > bound) + (v.w > bound);
  }
  for (int j = channel & ~3; part == 0 && j < channel; ++j)
    rank += static_cast<int>(s.sums[j]) == own;
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) rank += __shfl_xor_sync(kAll, rank, step);
  const bool kept = rank < a.channels;
  if (part == 0) s.rows[rank] = kept ? (s.plane[channel] * kDim + channel) * a.row_pages : 0;
  for (int h = part; h < kGroup; h += kParts)
    s.queries[h][rank] = kept ? s.all[h][channel] : __float2half_rn(0.f);
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
