// AVX-512 with vdpbf16ps and GFNI: two channels a multiply-add, products exact (q is bf16), sums
// fp32. The e5m2 bits are moved into a bf16 by two GF(2) bit matrices; subnormal codes (below
// 2^-14) read as zero because vdpbf16ps flushes them.
#include "avx512_common.inl"
constexpr bool kScoresBf16 = true;
constexpr int kBatchTile = 8;

inline __m512 dot_pairs(__m512 acc, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}
inline __m512i broadcast_pair(const void* p) {
  int pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm512_set1_epi32(pair);
}

// Independent sums hide the latency of the multiply-add at small batch.
template <int batch>
void project_tile(const uint16_t* weights, const uint16_t* latent, int rank, float (*out)[2][16]) {
  constexpr int unroll = batch <= 2 ? 4 : batch <= 4 ? 2 : 1;
  __m512 acc[batch][2][unroll] = {};
  int r = 0;
  for (; r + 2 * unroll <= rank; r += 2 * unroll)
    for (int u = 0; u < unroll; ++u) {
      const __m512i a = _mm512_loadu_si512(weights + (r + 2 * u) * 32);
      const __m512i b = _mm512_loadu_si512(weights + (r + 2 * u) * 32 + 32);
      for (int s = 0; s < batch; ++s) {
        const __m512i x = broadcast_pair(latent + int64_t(s) * rank + r + 2 * u);
        acc[s][0][u] = dot_pairs(acc[s][0][u], a, x);
        acc[s][1][u] = dot_pairs(acc[s][1][u], b, x);
      }
    }
  for (; r < rank; r += 2)
    for (int s = 0; s < batch; ++s) {
      const __m512i x = broadcast_pair(latent + int64_t(s) * rank + r);
      for (int j = 0; j < 2; ++j)
        acc[s][j][0] = dot_pairs(acc[s][j][0], _mm512_loadu_si512(weights + r * 32 + 32 * j), x);
    }
  for (int s = 0; s < batch; ++s)
    for (int j = 0; j < 2; ++j) {
      for (int u = 1; u < unroll; ++u) acc[s][j][0] = _mm512_add_ps(acc[s][j][0], acc[s][j][u]);
      _mm512_storeu_ps(out[s][j], acc[s][j][0]);
    }
}

float dot_bf16(const uint16_t* a, const uint16_t* b, int n) {
  __m512 acc[4] = {};
  int i = 0;
  for (; i + 128 <= n; i += 128)
    for (int j = 0; j < 4; ++j)
      acc[j] = dot_pairs(acc[j], _mm512_loadu_si512(a + i + 32 * j),
                         _mm512_loadu_si512(b + i + 32 * j));
  for (; i < n; i += 32) acc[0] = dot_pairs(acc[0], _mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i));
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]),
                                            _mm512_add_ps(acc[2], acc[3])));
}

// Two rows of 64 codes -> four vectors of (channel a, channel b) bf16 pairs. Unpacking works in
// 128-bit lanes: vector j, lane l holds pages 16 l + 4 j .. + 3.
inline void decode_e5m2(const uint8_t* a, const uint8_t* b, __m512i* v) {
  // byte s eeeee mm -> high byte s 000 e4..e1 and low byte e0 m1 m0 00000
  const __m512i to_high = _mm512_set1_epi64(int64_t(0x0810204000000080));
  const __m512i to_low = _mm512_set1_epi64(int64_t(0x0000000000010204));
  const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
  const __m512i ab[2] = {_mm512_unpacklo_epi8(x, y), _mm512_unpackhi_epi8(x, y)};
  for (int j = 0; j < 2; ++j) {
    const __m512i high = _mm512_gf2p8affine_epi64_epi8(ab[j], to_high, 0);
    const __m512i low = _mm512_gf2p8affine_epi64_epi8(ab[j], to_low, 0);
    v[2 * j] = _mm512_unpacklo_epi8(low, high);
    v[2 * j + 1] = _mm512_unpackhi_epi8(low, high);
  }
}
// 4 x 4 transpose of 128-bit lanes: back to the order of the pages.
inline void store_e5m2(const __m512* acc, float* out) {
  const __m512 a = _mm512_shuffle_f32x4(acc[0], acc[1], 0x44), b = _mm512_shuffle_f32x4(acc[0], acc[1], 0xee);
  const __m512 c = _mm512_shuffle_f32x4(acc[2], acc[3], 0x44), d = _mm512_shuffle_f32x4(acc[2], acc[3], 0xee);
  _mm512_storeu_ps(out, _mm512_shuffle_f32x4(a, c, 0x88));
  _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(a, c, 0xdd));
  _mm512_storeu_ps(out + 32, _mm512_shuffle_f32x4(b, d, 0x88));
  _mm512_storeu_ps(out + 48, _mm512_shuffle_f32x4(b, d, 0xdd));
}

// bf16 rows need no decoding, only pairing: vector 2 i + j, lane l holds pages 32 i + 8 l + 4 j.
inline void decode_bf16(const uint8_t* a, const uint8_t* b, __m512i* v) {
  for (int i = 0; i < 2; ++i) {
    const __m512i x = _mm512_loadu_si512(a + 64 * i), y = _mm512_loadu_si512(b + 64 * i);
    v[2 * i] = _mm512_unpacklo_epi16(x, y);
    v[2 * i + 1] = _mm512_unpackhi_epi16(x, y);
  }
}
inline void store_bf16(const __m512* acc, float* out) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int i = 0; i < 2; ++i) {
    _mm512_storeu_ps(out + 32 * i, _mm512_permutex2var_ps(acc[2 * i], low, acc[2 * i + 1]));
    _mm512_storeu_ps(out + 32 * i + 16, _mm512_permutex2var_ps(acc[2 * i], high, acc[2 * i + 1]));
  }
}

template <int storage, int heads>
void score_heads(const uint8_t* base, const uint8_t* prefetch, const Choice& c, int head, float* out,
                 int64_t stride) {
  __m512 acc[heads][4] = {};
  const int pairs = (c.count + 1) / 2;
  for (int i = 0; i < pairs; ++i) {
    const uint32_t a = c.offset[2 * i], b = c.offset[2 * i + 1];
    if (prefetch) {
      prefetch_line(prefetch + a);
      prefetch_line(prefetch + b);
      if (storage == kBf16) {
        prefetch_line(prefetch + a + 64);
        prefetch_line(prefetch + b + 64);
      }
    }
    __m512i v[4];
    if (storage == kE5m2) decode_e5m2(base + a, base + b, v);
    else decode_bf16(base + a, base + b, v);
    for (int h = 0; h < heads; ++h) {
      const __m512i q = _mm512_set1_epi32(int(c.pair[head + h][i]));
      for (int j = 0; j < 4; ++j) acc[h][j] = dot_pairs(acc[h][j], v[j], q);
    }
  }
  for (int h = 0; h < heads; ++h) {
    if (storage == kE5m2) store_e5m2(acc[h], out + h * stride);
    else store_bf16(acc[h], out + h * stride);
  }
}
#include "score_dispatch.inl"
#include "project_dispatch.inl"
