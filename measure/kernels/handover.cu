// Hand-over between a stream and a CPU thread through mapped pinned memory: publish a payload and a
// flag, await an answer's flag and read its indices. Both are single kernels, fit for a CUDA graph:
// the request's number is counted in device memory, so a replay needs no new arguments.
#include <cuda_runtime.h>
#include <stdint.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

namespace {

constexpr int kThreads = 512;

// Words of the mapped mailbox, a cache line apart.
struct Mailbox {
  alignas(64) std::atomic<uint32_t> request;
  alignas(64) std::atomic<uint32_t> answer;
};

struct Channel {
  Mailbox* mailbox;      // mapped pinned
  uint8_t* payload;      // mapped pinned, written by the GPU
  int32_t* indices;      // mapped pinned, read by the GPU
  uint32_t* counter;     // device: number of the last request
  size_t payload_bytes, index_bytes;
  std::thread thread;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> busy_ns{0};
  std::atomic<size_t> answer_bytes{0};  // what the last await reads
};

__device__ __forceinline__ void store_release(uint32_t* p, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// One block, or several for large payloads: the last to finish sets the flag.
__global__ void __launch_bounds__(kThreads)
    publish(const uint4* source, uint4* payload, int words, uint32_t* counter, uint32_t* flag) {
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < words; i += gridDim.x * kThreads)
    payload[i] = source[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    __threadfence_system();
    if (atomicAdd(counter + 1, 1) != gridDim.x - 1) return;
    counter[1] = 0;
  }
  const uint32_t number = counter[0] + 1;
  counter[0] = number;
  store_release(flag, number);
}

__global__ void __launch_bounds__(kThreads)
    await_answer(const uint4* answer, uint4* indices, int words, const uint32_t* counter,
                 const uint32_t* flag) {
  if (threadIdx.x == 0) {
    const uint32_t number = counter[0];
    while (static_cast<int32_t>(load_acquire(flag) - number) < 0) {
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < words; i += kThreads) indices[i] = __ldcv(answer + i);
}

__global__ void empty() {}

// Answers each request after `busy_ns`: the request's number in every index that is read.
void serve(Channel* c) {
  uint32_t done = c->mailbox->answer.load();
  while (!c->stop.load(std::memory_order_relaxed)) {
    const uint32_t wanted = c->mailbox->request.load(std::memory_order_acquire);
    if (wanted == done) continue;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(c->busy_ns.load());
    while (std::chrono::steady_clock::now() < end) {
    }
    done += 1;
    for (size_t i = 0; i < c->answer_bytes / 4; ++i) c->indices[i] = static_cast<int32_t>(done);
    c->mailbox->answer.store(done, std::memory_order_release);
  }
}

}  // namespace

extern "C" {

void* essim_channel(size_t payload_bytes, size_t index_bytes) {
  auto* c = new (std::nothrow) Channel{};
  void *mailbox = nullptr, *payload = nullptr, *indices = nullptr, *counter = nullptr;
  const unsigned mapped = cudaHostAllocMapped | cudaHostAllocPortable;
  bool good = c && cudaHostAlloc(&mailbox, sizeof(Mailbox), mapped) == cudaSuccess &&
              cudaHostAlloc(&payload, payload_bytes, mapped) == cudaSuccess &&
              cudaHostAlloc(&indices, index_bytes, mapped) == cudaSuccess &&
              cudaMalloc(&counter, 8) == cudaSuccess && cudaMemset(counter, 0, 8) == cudaSuccess;
  if (!good) return nullptr;
  c->mailbox = new (mailbox) Mailbox{};
  c->payload = static_cast<uint8_t*>(payload);
  c->indices = static_cast<int32_t*>(indices);
  c->counter = static_cast<uint32_t*>(counter);
  c->payload_bytes = payload_bytes, c->index_bytes = index_bytes;
  std::memset(payload, 0, payload_bytes), std::memset(indices, 0, index_bytes);
  return c;
}

void essim_channel_free(void* channel) {
  auto* c = static_cast<Channel*>(channel);
  c->stop = true;
  if (c->thread.joinable()) c->thread.join();
  cudaDeviceSynchronize();
  cudaFreeHost(c->mailbox), cudaFreeHost(c->payload), cudaFreeHost(c->indices);
  cudaFree(c->counter);
  delete c;
}

// Starts the answering thread where it does not run; from now on it works `busy_s` a request.
void essim_channel_serve(void* channel, double busy_s) {
  auto* c = static_cast<Channel*>(channel);
  c->busy_ns = static_cast<uint64_t>(busy_s * 1e9);
  if (!c->thread.joinable()) c->thread = std::thread(serve, c);
}

// Every await passes at once: the answer is `ahead` requests ahead. Without a serving thread.
void essim_channel_answered(void* channel, uint32_t ahead) {
  auto* c = static_cast<Channel*>(channel);
  c->mailbox->answer.store(c->mailbox->request.load() + ahead);
}

const void* essim_channel_payload(void* channel) { return static_cast<Channel*>(channel)->payload; }

int essim_publish(void* channel, const void* source, size_t bytes, void* stream) {
  auto* c = static_cast<Channel*>(channel);
  if (bytes % 16 || bytes > c->payload_bytes) return cudaErrorInvalidValue;
  const int words = static_cast<int>(bytes / 16), wanted = (words + kThreads - 1) / kThreads;
  const int blocks = wanted < 1 ? 1 : wanted > 8 ? 8 : wanted;
  publish<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(source), reinterpret_cast<uint4*>(c->payload), words, c->counter,
      reinterpret_cast<uint32_t*>(&c->mailbox->request));
  return cudaGetLastError();
}

int essim_await(void* channel, void* indices, size_t bytes, void* stream) {
  auto* c = static_cast<Channel*>(channel);
  if (bytes % 16 || bytes > c->index_bytes) return cudaErrorInvalidValue;
  c->answer_bytes = bytes;
  await_answer<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      reinterpret_cast<const uint4*>(c->indices), static_cast<uint4*>(indices),
      static_cast<int>(bytes / 16), c->counter,
      reinterpret_cast<const uint32_t*>(&c->mailbox->answer));
  return cudaGetLastError();
}

int essim_empty(void* stream) {
  empty<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return cudaGetLastError();
}

}  // extern "C"
