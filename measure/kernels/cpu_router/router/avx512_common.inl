// Shared by both AVX-512 paths.
constexpr int kLanes = 16;
#include "vector.inl"
constexpr int kHeadTile = 4;

inline vf larger(vf a, vf b) { return _mm512_max_ps(a, b); }
inline float reduce_max(vf v) { return _mm512_reduce_max_ps(v); }
inline float reduce_min(vf v) { return _mm512_reduce_min_ps(v); }
inline float reduce_add(vf v) { return _mm512_reduce_add_ps(v); }
inline vf exp2_fast(vf x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(exp2_fraction(x - whole), whole);
}
inline int count_at_least(const float* values, int n, uint32_t threshold) {
  const __m512i t = _mm512_set1_epi32(int(threshold));
  int sum = 0;
  for (int i = 0; i < n; i += 16)
    sum += __builtin_popcount(_mm512_cmpge_epi32_mask(_mm512_loadu_si512(values + i), t));
  return sum;
}

// vpcompressd to a register and a full store: compressing to memory is microcoded on some CPUs.
int keep_at_least(const float* values, const int32_t* indices, int n, float threshold, float* kept,
                  int32_t* kept_index) {
  int found = 0;
  const __m512 t = _mm512_set1_ps(threshold);
  __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int i = 0; i < n; i += 16) {
    const __m512 v = _mm512_loadu_ps(values + i);
    const __mmask16 mask = _mm512_cmp_ps_mask(v, t, _CMP_GE_OQ);
    if (mask) {
      const __m512i index = indices ? _mm512_loadu_si512(indices + i) : at;
      _mm512_storeu_ps(kept + found, _mm512_maskz_compress_ps(mask, v));
      _mm512_storeu_si512(kept_index + found, _mm512_maskz_compress_epi32(mask, index));
      found += __builtin_popcount(mask);
    }
    at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
  }
  return found;
}

inline void prefetch_line(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
