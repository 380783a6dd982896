// AVX-512 F/BW/VL/DQ without bf16 arithmetic: fp32 FMA, e5m2 through fp16 and vcvtph2ps.
#include "avx512_common.inl"
constexpr bool kScoresBf16 = false;
constexpr int kBatchTile = 8;

inline __m512 even_lanes(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 odd_lanes(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
}

template <int batch>
void project_tile(const uint16_t* weights, const uint16_t* latent, int rank, float (*out)[2][16]) {
  __m512 acc[batch][2] = {};
  for (int r = 0; r < rank; r += 2) {
    const __m512i a = _mm512_loadu_si512(weights + r * 32);
    const __m512i b = _mm512_loadu_si512(weights + r * 32 + 32);
    const __m512 w[4] = {even_lanes(a), odd_lanes(a), even_lanes(b), odd_lanes(b)};
    for (int s = 0; s < batch; ++s) {
      int pair;
      __builtin_memcpy(&pair, latent + int64_t(s) * rank + r, 4);
      const __m512i both = _mm512_set1_epi32(pair);
      const __m512 even = even_lanes(both), odd = odd_lanes(both);
      acc[s][0] = _mm512_fmadd_ps(w[1], odd, _mm512_fmadd_ps(w[0], even, acc[s][0]));
      acc[s][1] = _mm512_fmadd_ps(w[3], odd, _mm512_fmadd_ps(w[2], even, acc[s][1]));
    }
  }
  for (int s = 0; s < batch; ++s)
    for (int j = 0; j < 2; ++j) _mm512_storeu_ps(out[s][j], acc[s][j]);
}

float dot_bf16(const uint16_t* a, const uint16_t* b, int n) {
  __m512 acc[2] = {};
  for (int i = 0; i < n; i += 32) {
    const __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);
    acc[0] = _mm512_fmadd_ps(even_lanes(x), even_lanes(y), acc[0]);
    acc[1] = _mm512_fmadd_ps(odd_lanes(x), odd_lanes(y), acc[1]);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(acc[0], acc[1]));
}

template <int storage>
inline void decode(const uint8_t* row, __m512* v) {   // 64 pages
  for (int j = 0; j < 2; ++j) {
    if (storage == kE5m2) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * j));
      const __m512i half = _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
      v[2 * j] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
      v[2 * j + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
    } else {
      for (int k = 2 * j; k < 2 * j + 2; ++k) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * k));
        v[k] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
      }
    }
  }
}

template <int storage, int heads>
void score_heads(const uint8_t* base, const uint8_t* prefetch, const Choice& c, int head, float* out,
                 int64_t stride) {
  __m512 acc[heads][4] = {};
  for (int i = 0; i < c.count; ++i) {
    __m512 v[4];
    decode<storage>(base + c.offset[i], v);
    if (prefetch) {
      prefetch_line(prefetch + c.offset[i]);
      if (storage == kBf16) prefetch_line(prefetch + c.offset[i] + 64);
    }
    for (int h = 0; h < heads; ++h) {
      const __m512 q = _mm512_set1_ps(c.query[head + h][i]);
      for (int j = 0; j < 4; ++j) acc[h][j] = _mm512_fmadd_ps(v[j], q, acc[h][j]);
    }
  }
  for (int h = 0; h < heads; ++h)
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out + h * stride + 16 * j, acc[h][j]);
}
#include "score_dispatch.inl"
#include "project_dispatch.inl"
