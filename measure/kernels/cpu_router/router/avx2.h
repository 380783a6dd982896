// AVX2 + FMA + F16C: e5m2 is widened to fp16 by a shift and to fp32 by vcvtph2ps.
constexpr int kLanes = 8;
#include "vector.inl"
#include "reduce.inl"
constexpr bool kScoresBf16 = false;
constexpr int kBatchTile = 4, kHeadTile = 4;

inline vf larger(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf exp2_fast(vf x) { return exp2_magic(x); }
inline int count_at_least(const float* values, int n, uint32_t threshold) {
  return count_lanes(values, n, threshold);
}

inline float lanes_sum(__m256 v) {
  alignas(32) float x[8];
  _mm256_store_ps(x, v);
  return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
}
inline __m256 even_lanes(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 odd_lanes(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))));
}
inline __m256i load_pairs(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

int keep_at_least(const float* values, const int32_t* indices, int n, float threshold, float* kept,
                  int32_t* kept_index) {
  int found = 0;
  const __m256 t = _mm256_set1_ps(threshold);
  for (int i = 0; i < n; i += 8) {
    __m256 v = _mm256_loadu_ps(values + i);
    unsigned mask = unsigned(_mm256_movemask_ps(_mm256_cmp_ps(v, t, _CMP_GE_OQ)));
    for (; mask; mask &= mask - 1) {
      int at = i + __builtin_ctz(mask);
      kept[found] = values[at];
      kept_index[found++] = indices ? indices[at] : at;
    }
  }
  return found;
}

void project_item(const uint16_t* weights, const uint16_t* latent, int rank, int batch,
                  float (*out)[2][16]) {
  for (int s = 0; s < batch; ++s) {
    __m256 acc[4] = {};
    __m256 odd[4] = {};
    for (int r = 0; r < rank; r += 2) {
      int pair;
      __builtin_memcpy(&pair, latent + int64_t(s) * rank + r, 4);
      const __m256i both = _mm256_set1_epi32(pair);
      for (int j = 0; j < 4; ++j) {
        const __m256i w = load_pairs(weights + r * 32 + 16 * j);
        acc[j] = _mm256_fmadd_ps(even_lanes(w), even_lanes(both), acc[j]);
        odd[j] = _mm256_fmadd_ps(odd_lanes(w), odd_lanes(both), odd[j]);
      }
    }
    for (int j = 0; j < 4; ++j)
      _mm256_storeu_ps(&out[s][0][0] + 8 * j, _mm256_add_ps(acc[j], odd[j]));
  }
}

float dot_bf16(const uint16_t* a, const uint16_t* b, int n) {
  __m256 acc[4] = {};
  for (int i = 0; i < n; i += 32)
    for (int j = 0; j < 2; ++j) {
      const __m256i x = load_pairs(a + i + 16 * j), y = load_pairs(b + i + 16 * j);
      acc[j] = _mm256_fmadd_ps(even_lanes(x), even_lanes(y), acc[j]);
      acc[2 + j] = _mm256_fmadd_ps(odd_lanes(x), odd_lanes(y), acc[2 + j]);
    }
  return lanes_sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
}

template <int storage>
inline __m256 decode(const uint8_t* codes) {   // eight pages
  if (storage == kE5m2) {
    __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
  }
  __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

// Sixteen pages at a time: two decoded vectors against up to four heads fill the 16 registers.
template <int storage, int heads>
void score_heads(const uint8_t* base, const uint8_t* prefetch, const Choice& c, int head, float* out,
                 int64_t stride) {
  constexpr int width = storage == kE5m2 ? 1 : 2;
  for (int p = 0; p < kChunk; p += 16) {
    __m256 acc[heads][2] = {};
    for (int i = 0; i < c.count; ++i) {
      const uint8_t* row = base + c.offset[i] + p * width;
      if (prefetch && (p * width) % 64 == 0)
        _mm_prefetch(reinterpret_cast<const char*>(prefetch + c.offset[i] + p * width), _MM_HINT_T0);
      const __m256 a = decode<storage>(row), b = decode<storage>(row + 8 * width);
      for (int h = 0; h < heads; ++h) {
        const __m256 q = _mm256_broadcast_ss(&c.query[head + h][i]);
        acc[h][0] = _mm256_fmadd_ps(a, q, acc[h][0]);
        acc[h][1] = _mm256_fmadd_ps(b, q, acc[h][1]);
      }
    }
    for (int h = 0; h < heads; ++h) {
      _mm256_storeu_ps(out + h * stride + p, acc[h][0]);
      _mm256_storeu_ps(out + h * stride + p + 8, acc[h][1]);
    }
  }
}
#include "score_dispatch.inl"
