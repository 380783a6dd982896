// The GPU's side of the CPU router's mailbox (measure/kernels/router/layout.h), in mapped pinned
// memory: publish what a route or an update needs, take an answer. Numbers are counted in device
// memory, so a CUDA graph replays without new arguments.
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kThreads = 512, kSlots = 4;
constexpr int kRouteRequest = 0, kUpdateRequests = 8, kAnswers = 64, kErrors = 80;
constexpr uint32_t kNoAnswer = 1, kRefused = 2;

// Device words: numbers of the last route and update, what went wrong first, blocks done.
struct State {
  uint32_t route, update, failed, blocks;
};

// Byte offsets are those of the mailbox's layout. Without `values` nothing is routed, without
// `keys` nothing is updated.
struct Publish {
  uint8_t* box;
  State* state;
  const int32_t* context;    // [batch], the current token included
  const int32_t* evicted;    // tokens between a slot and its RoPE position
  const uint4 *values, *keys;
  int64_t positions, context_tokens, input, key_tokens, key_slots;
  int32_t value_words, key_words, batch, layer, kind, key_layer, update_first;
};

__device__ void store(uint8_t* at, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ uint64_t load(const uint8_t* at) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

__device__ uint64_t load_acquire(const uint8_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

// What __threadfence_system is, without its order among fences of other threads, which costs more.
__device__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__device__ uint64_t request(uint32_t number, int layer, int kind) {
  return number | static_cast<uint64_t>(layer) << 32 | static_cast<uint64_t>(kind) << 48;
}

__device__ void post_route(const Publish& p) {
  store(p.box + kRouteRequest, request(++p.state->route, p.layer, p.kind));
}

__device__ void post_update(const Publish& p) {
  const uint32_t number = ++p.state->update;
  store(p.box + kUpdateRequests + 8 * (number % kSlots), request(number, p.key_layer, 0));
}

__global__ void __launch_bounds__(kThreads) publish(Publish p) {
  const int first = blockIdx.x * kThreads + threadIdx.x, stride = gridDim.x * kThreads;
  const uint32_t slot = (p.state->update + 1) % kSlots;
  if (p.values) {
    auto* to = reinterpret_cast<uint4*>(p.box + p.input);
    for (int i = first; i < p.value_words; i += stride) to[i] = p.values[i];
  }
  if (p.keys) {
    auto* to = reinterpret_cast<uint4*>(p.box + p.key_slots) + int64_t(slot) * p.key_words;
    for (int i = first; i < p.key_words; i += stride) to[i] = p.keys[i];
  }
  if (first < p.batch) {
    const int32_t tokens = p.context[first];
    reinterpret_cast<int32_t*>(p.box + p.positions)[first] = tokens - 1 + *p.evicted;
    reinterpret_cast<int32_t*>(p.box + p.context_tokens)[first] = tokens;
    if (p.keys)
      reinterpret_cast<int32_t*>(p.box + p.key_tokens)[slot * p.batch + first] = tokens - 1;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  // The payload comes before the flags. Which of the two flags is seen first changes no answer: a
  // route reads another layer's keys, or its own of the steps before. So one fence does.
  fence();
  if (gridDim.x > 1) {
    if (atomicAdd(&p.state->blocks, 1) != gridDim.x - 1) return;
    fence();  // what the other blocks wrote comes before the flags, too
    p.state->blocks = 0;
  }
  if (p.keys && p.update_first) post_update(p);
  if (p.values) post_route(p);
  if (p.keys && !p.update_first) post_update(p);
}

// Wait for the last route's answer and copy the indices; then until at most kSlots - 1 updates are
// outstanding, so that the next has a slot. An answer that does not come within the limit, or that
// is an error, sets `failed`, and nobody waits any more: the graph ends, and the host reports.
// Without words to copy it is a wait alone.
__global__ void __launch_bounds__(kThreads)
    take(const uint8_t* box, State* state, const uint4* answer, uint4* indices, int words,
         uint64_t limit_ns) {
  __shared__ bool good;
  const uint64_t start = now_ns();
  if (threadIdx.x == 0) {
    const uint32_t route = state->route;
    good = !state->failed;
    while (good && int32_t(uint32_t(load_acquire(box + kAnswers)) - route) < 0)
      if (now_ns() - start > limit_ns) state->failed = kNoAnswer, good = false;
  }
  __syncthreads();
  if (!good) return;
  // The rest is looked at while the indices are under way. The pool's next good answer clears an
  // error, so it is looked at with each.
  uint64_t updated = 0, errors = 0;
  if (threadIdx.x == 0) updated = load_acquire(box + kAnswers + 8), errors = load(box + kErrors);
  for (int i = threadIdx.x; i < words; i += kThreads) indices[i] = __ldcv(answer + i);
  if (threadIdx.x != 0) return;
  if (errors) state->failed = kRefused;
  const uint32_t update = state->update - (kSlots - 1);
  while (!state->failed && int32_t(uint32_t(updated) - update) < 0) {
    updated = load_acquire(box + kAnswers + 8);
    if (load(box + kErrors)) state->failed = kRefused;
    if (now_ns() - start > limit_ns) state->failed = kNoAnswer;
  }
}

__global__ void advance(int32_t* context, int batch) {
  if (threadIdx.x < batch) context[threadIdx.x] += 1;
}

__global__ void empty() {}

__global__ void stamp(uint64_t* at) { *at = now_ns(); }

}  // namespace

extern "C" {

int essim_box_publish(const void* arguments, void* stream) {
  const auto* p = static_cast<const Publish*>(arguments);
  const int words = p->value_words > p->key_words ? p->value_words : p->key_words;
  const int wanted = (words + kThreads - 1) / kThreads;
  const int blocks = wanted < 1 ? 1 : wanted > 8 ? 8 : wanted;
  publish<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*p);
  return cudaGetLastError();
}

int essim_box_take(const void* box, void* state, int64_t answer, void* indices, int words,
                   uint64_t limit_ns, void* stream) {
  const auto* from = static_cast<const uint8_t*>(box);
  take<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      from, static_cast<State*>(state), reinterpret_cast<const uint4*>(from + answer),
      static_cast<uint4*>(indices), words, limit_ns);
  return cudaGetLastError();
}

int essim_advance(void* context, int batch, void* stream) {
  advance<<<1, 64, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<int32_t*>(context), batch);
  return cudaGetLastError();
}

int essim_empty(void* stream) {
  empty<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return cudaGetLastError();
}

int essim_stamp(void* at, void* stream) {
  stamp<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<uint64_t*>(at));
  return cudaGetLastError();
}

}  // extern "C"
