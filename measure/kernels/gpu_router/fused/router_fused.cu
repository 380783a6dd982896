// The whole of RocketKV's second stage as one kernel: summary update, channel choice, scoring from
// FP8 e5m2 page summaries, softmax over pages, sum over the group, top pages.
//
// A cluster of blocks serves one (sequence, KV head); its blocks share out the pages, its first
// block, the leader, collects. Summaries are channel-major, so that only the chosen sign plane of
// the chosen channels is read. Scores are products of tensor cores: e5m2 is the top byte of fp16, a
// tile of pages is the A operand, the group's queries in fp16 are B. Blocks send exponentials
// relative to their tile's maximum to the leader, so that the leader waits once; it weighs them, and
// selects exactly: the `top`-th largest of 64 or 128 group maxima is a lower bound of the `top`-th
// largest score, and the few scores above it are ranked by counting.
#include "router_fused/select.cuh"

namespace {

template <int kThreads, int kWords, int kGroup>
__global__ void __launch_bounds__(kThreads) route(const RouteArgs a) {
  extern __shared__ __align__(16) float dynamic[];
  __shared__ alignas(16) Chosen<kGroup> chosen;
  __shared__ uint64_t barrier;
  constexpr int kTile = 32 * kWords;
  const int rank = blockIdx.x, pair = blockIdx.z * a.kv_heads + blockIdx.y, tid = threadIdx.x;
  if (tid == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
  cluster_arrive();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int context = a.context[blockIdx.z];
  float q[kGroup];
  load_queries<kGroup>(a, pair, q);
  cluster_wait();  // the leader runs and its barrier is there, so others may send
  const int pages = min((context - 1) / a.page_tokens, a.max_pages);
  const int tiles = (pages + kTile - 1) / kTile;
  choose_channels<kThreads, kGroup>(a, q, chosen);

  uint8_t* summaries = a.summaries + static_cast<size_t>(pair) * 2 * kDim * a.row_pages;
  const int padded = (a.max_pages + kTile - 1) / kTile;
  Collected<kGroup> c;
  c.exponentials = dynamic;
  c.scores = c.exponentials + padded * kTile * kGroup;
  c.tiles = c.scores + padded * kTile;
  c.barrier = &barrier;
  if (rank == 0 && tid == 0) {
    const int sent = tiles - (tiles + a.cluster - 1) / a.cluster;  // all but the leader's own
    barrier_expect(&barrier, sent * (kTile + 2) * kGroup * sizeof(float));
  }
#pragma unroll 1
  for (int tile = tid / 32 * a.cluster + rank; tile < tiles; tile += kThreads / 32 * a.cluster) {
    score_tile<kWords, kGroup>(a, summaries, tile, pages, chosen, c);
    if (rank != 0) send_tile<kWords, kGroup>(tile, c);
  }

  // The tail page never competes, so its update does not wait for the scan nor the scan for it.
  const bool updates = rank == a.cluster - 1 && tid < 2 * kDim && a.keys != nullptr;
  uint8_t* slot = summaries + static_cast<size_t>(tid) * a.row_pages + pages;
  __nv_bfloat16 key;
  uint8_t old;
  if (updates) {
    key = a.keys[static_cast<size_t>(pair) * kDim + tid % kDim];
    old = *slot;
  }
  if (rank == 0) {
    __syncthreads();
    barrier_wait(&barrier);
    cluster_arrive();  // copied: the other blocks may end
    if (a.top <= 32)
      select<kThreads, kWords, kGroup, 64>(a, pair, pages, tiles, c);
    else
      select<kThreads, kWords, kGroup, 128>(a, pair, pages, tiles, c);
  }
  if (updates) {
    const bool opens = (context - 1) % a.page_tokens == 0;
    const uint8_t code = to_e5m2(__bfloat162float(key));
    const float was = from_e5m2(old), now = from_e5m2(code);
    if (opens || (tid < kDim ? now < was : now > was)) *slot = code;
  }
  if (rank != 0) {
    cluster_arrive();
    cluster_wait();
  }
}

template <int kThreads, int kWords, int kGroup>
cudaError_t launch(const RouteArgs& a, cudaStream_t stream) {
  constexpr int kTile = 32 * kWords;
  const size_t tiles = (a.max_pages + kTile - 1) / kTile;
  const size_t bytes = tiles * (kTile * (kGroup + 1) + 2 * kGroup) * sizeof(float);
  auto kernel = route<kThreads, kWords, kGroup>;
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess && a.cluster > 8)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(a.cluster, a.kv_heads, a.batch);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(a.cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = a.overlap ? 2 : 1;
  error = cudaLaunchKernelEx(&config, kernel, a);
  return error == cudaSuccess ? cudaGetLastError() : error;
}

template <int kThreads, int kWords>
cudaError_t by_group(const RouteArgs& a, cudaStream_t stream) {
  return a.group <= 4 ? launch<kThreads, kWords, 4>(a, stream)
                      : launch<kThreads, kWords, 8>(a, stream);
}

template <int kThreads>
cudaError_t by_words(const RouteArgs& a, cudaStream_t stream) {
  if (a.words == 1) return by_group<kThreads, 1>(a, stream);
  if (a.words == 2) return by_group<kThreads, 2>(a, stream);
  return by_group<kThreads, 4>(a, stream);
}

}  // namespace

// Returns a CUDA error code; the stream is a cudaStream_t.
extern "C" int essim_route_fused(const RouteArgs* a, void* stream) {
  auto s = static_cast<cudaStream_t>(stream);
  return a->threads == 256 ? by_words<256>(*a, s) : by_words<512>(*a, s);
}
