// kernels.inl compiled for four instruction sets, and the choice between them at run time.
#pragma once
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>

#include "kernels.h"

namespace router {

namespace portable {
#include "portable.h"
#include "kernels.inl"
}  // namespace portable

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#include "avx2.h"
#include "kernels.inl"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
namespace avx512 {
#include "avx512.h"
#include "kernels.inl"
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,gfni,prefer-vector-width=512")
namespace avx512bf16 {
#include "avx512bf16.h"
#include "kernels.inl"
}  // namespace avx512bf16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,gfni,amx-tile,amx-bf16,prefer-vector-width=512")
namespace amx {
#include "amx.inl"
}  // namespace amx
#pragma GCC pop_options

// The kernel hands tiles out to a process that asks.
inline bool may_use_tiles() {
  constexpr int kAskForState = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

inline bool has(int isa) {
  __builtin_cpu_init();
  const bool two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c");
  const bool five = two && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case kPortable: return true;
    case kAvx2: return two;
    case kAvx512: return five;
    case kAvx512Bf16:
      return five && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("gfni");
    case kAmx:
      return has(kAvx512Bf16) && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
             may_use_tiles();
    default: return false;
  }
}

inline int best_isa() {
  for (int isa = kAmx; isa > kPortable; --isa)
    if (has(isa)) return isa;
  return kPortable;
}

inline const Kernels& kernels_for(int isa) {
  static const Kernels all[] = {portable::kernels(), avx2::kernels(), avx512::kernels(),
                                avx512bf16::kernels(), amx::tiled()};
  if (!has(isa)) throw std::invalid_argument("this CPU lacks the instruction set");
  return all[isa];
}

}  // namespace router
