// Page-aligned memory that asks for huge pages: a scan touches many rows and few of them twice.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace router {

class Memory {
 public:
  Memory() = default;
  explicit Memory(int64_t bytes) : bytes_(bytes ? (bytes + kHuge - 1) / kHuge * kHuge : 0) {
    if (!bytes_) return;
    // Over-allocate to align to a huge page; the zero pages stay untouched.
    raw_ = mmap(nullptr, size_t(bytes_ + kHuge), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw_ == MAP_FAILED) throw std::bad_alloc();
    data_ = reinterpret_cast<uint8_t*>((reinterpret_cast<intptr_t>(raw_) + kHuge - 1) & -kHuge);
    madvise(data_, size_t(bytes_), MADV_HUGEPAGE);
  }
  ~Memory() { if (data_) munmap(raw_, size_t(bytes_ + kHuge)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T = uint8_t>
  T* at(int64_t index = 0) const { return reinterpret_cast<T*>(data_) + index; }

 private:
  static constexpr int64_t kHuge = 2 << 20;
  void* raw_ = nullptr;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace router
