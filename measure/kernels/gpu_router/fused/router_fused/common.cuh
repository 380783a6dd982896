// Arguments, cluster barriers, e5m2 and the tensor cores' product.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kDim = 128;       // channels of a head
constexpr float kLog2E = 1.4426950408889634f;
constexpr unsigned kAll = 0xffffffffu;

}  // namespace

// Mirrored by RouteArgs in router_fused.py.
struct RouteArgs {
  const __nv_bfloat16* queries;  // [batch, kv_heads, group, 128], after RoPE
  const __nv_bfloat16* keys;     // [batch, kv_heads, 128] of the current token; null: no update
  uint8_t* summaries;            // [batch, kv_heads, 2 (min, max), 128, row_pages]
  const int32_t* context;        // [batch] tokens, the current one included
  int32_t* indices;              // [batch, kv_heads, top]: best first, -1 where pages run out
  int32_t batch, kv_heads, group, row_pages, page_tokens, top, channels;
  int32_t max_pages;             // bound of routable pages that shared memory is sized for
  int32_t cluster, threads, words;
  int32_t overlap;               // launch before the kernel ahead has ended, and wait inside
};

namespace {

// A release by barrier.cluster.arrive would wait for every earlier access to global memory, so the
// barrier only says that the blocks run; data travel by bulk copies between shared memories, which
// a barrier in the leader's counts by bytes.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ uint32_t leader_address(const void* shared) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(shared_address(shared)));
  return remote;
}


// Copies from the block's own shared memory to the same place of the leader's.
__device__ __forceinline__ void copy_to_leader(const void* own, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(leader_address(own)), "r"(shared_address(own)), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void barrier_expect(const uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// count - 1 where x > bound, both unsigned: a subtraction's borrow.
__device__ __forceinline__ void count_above(int& minus, uint32_t x, uint32_t bound) {
  asm("{.reg .u32 t; sub.cc.u32 t, %2, %1; subc.u32 %0, %0, 0;}" : "+r"(minus) : "r"(x), "r"(bound));
}

__device__ __forceinline__ void barrier_wait(const uint64_t* barrier) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(shared_address(barrier))
        : "memory");
}

// Round to nearest even; values beyond the largest e5m2 number saturate; no negative zero.
__device__ __forceinline__ uint8_t to_e5m2(float x) {
  x = fminf(fmaxf(x, -57344.f), 57344.f);
  uint32_t h = __half_as_ushort(__float2half_rn(x));
  uint32_t code = (h + 0x7f + ((h >> 8) & 1)) >> 8;
  return code == 0x80 ? 0 : static_cast<uint8_t>(code);
}

__device__ __forceinline__ float from_e5m2(uint8_t code) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(code << 8)));
}

// Byte `i` of two channel rows as a half2 (two channels of one page).
__device__ __forceinline__ uint32_t pick(uint32_t a, uint32_t b, int i) {
  uint32_t selector = static_cast<uint32_t>(i << 4 | i | (i + 4) << 12 | (i + 4) << 8);
  return __byte_perm(a, b, selector) & 0xff00ff00u;
}

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <int kWords>
__device__ __forceinline__ void load(const uint8_t* p, uint32_t (&w)[kWords]) {
  if constexpr (kWords == 1) {
    w[0] = __ldcs(reinterpret_cast<const unsigned int*>(p));
  } else if constexpr (kWords == 2) {
    uint2 v = __ldcs(reinterpret_cast<const uint2*>(p));
    w[0] = v.x, w[1] = v.y;
  } else {
    uint4 v = __ldcs(reinterpret_cast<const uint4*>(p));
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  }
}

}  // namespace
