// The projection and the scan on tiles: a product of 16 x 32 by 32 x 16 an instruction, exact
// products of bf16, sums in fp32. The rest is as with vdpbf16ps, which this is a hundred times the
// rate of. Subnormals read as zero here, too.
using namespace avx512bf16;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums and 4 is the left factor, of `rows` rows; 5 is the right factor.
inline void configure(int rows) {
  static thread_local int configured = 0;
  if (configured == rows) return;
  configured = rows;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.column_bytes[tile] = 64;
    config.rows[tile] = uint8_t(tile < 5 ? rows : 16);
  }
  asm volatile("ldtilecfg %0" ::"m"(config));
}

// A product onto a tile that `tilezero` has cleared takes four times as long as onto a loaded one.
alignas(64) constexpr float kZeros[16][16] = {};

// GCC's own functions do not say that they read and write memory, so stores could move past them.
template <int tile>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}

inline void rotate_lanes(const float* a, const float* b, const float* cosine, const float* sine,
                         uint16_t* low, uint16_t* high) {
  const __m512 x = _mm512_load_ps(a), y = _mm512_load_ps(b);
  const __m512 c = _mm512_loadu_ps(cosine), s = _mm512_loadu_ps(sine);
  const __m512 first = _mm512_fmsub_ps(x, c, _mm512_mul_ps(y, s));
  const __m512 second = _mm512_fmadd_ps(y, c, _mm512_mul_ps(x, s));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), (__m256i)_mm512_cvtneps_pbh(first));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), (__m256i)_mm512_cvtneps_pbh(second));
}

// Up-projection and RoPE of some items, sixteen sequences at once.
void project_tiled(const Project& p, int first, int last) {
  if (p.rank % 32) return project(p, first, last);
  const int per_head = p.dim / 32;
  alignas(64) float out[2][16][16];
  for (int s = 0; s < p.batch; s += 16) {
    const int tile = p.batch - s < 16 ? p.batch - s : 16;
    configure(tile);
    for (int item = first; item < last; ++item) {
      const uint16_t* weights = p.up + int64_t(item) * p.rank * 32;
      load_tile<0>(kZeros, 64);
      load_tile<1>(kZeros, 64);
      for (int r = 0; r < p.rank; r += 32) {
        load_tile<4>(p.latent + int64_t(s) * p.rank + r, p.rank * 2);
        load_tile<5>(weights + r * 32, 128);
        _tile_dpbf16ps(0, 4, 5);
        load_tile<6>(weights + r * 32 + 32, 128);
        _tile_dpbf16ps(1, 4, 6);
      }
      store_tile<0>(out[0], 64);
      store_tile<1>(out[1], 64);
      const int head = item / per_head, at = item % per_head * 16;
      for (int i = 0; i < tile; ++i) {
        uint16_t* q = p.query + (int64_t(s + i) * p.heads + head) * p.dim + at;
        rotate_lanes(out[0][i], out[1][i], p.cosine[s + i] + at, p.sine[s + i] + at, q,
                     q + p.dim / 2);
      }
    }
  }
}

// Two rows of 64 codes -> a row of each of four right factors: 16 pages of (channel a, channel b).
inline void decode_pair(const uint8_t* a, const uint8_t* b, uint8_t* row) {
  // A page's byte of each channel twice: as 16 bits, shifted by three, it is a bf16 but for 2^112.
  alignas(64) static const auto twice = [] {
    struct { uint8_t of[2][64]; } t{};
    for (int q = 0; q < 2; ++q)
      for (int i = 0; i < 64; ++i) t.of[q][i] = uint8_t((i & 2 ? 32 : 0) + 16 * q + i / 4);
    return t;
  }();
  const __m512i kept = _mm512_set1_epi16(int16_t(0x8fe0));
  for (int half = 0; half < 2; ++half) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + 32 * half));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 32 * half));
    const __m512i both = _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(x), 0xf0, y);
    for (int q = 0; q < 2; ++q) {
      const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(twice.of[q]), both);
      _mm512_store_si512(row + (2 * half + q) * 1024,
                         _mm512_and_si512(_mm512_srai_epi16(bytes, 3), kept));
    }
  }
}

void score_tiled(const uint8_t* unit, const SummaryShape& shape, int storage, const Choice& c,
                 int first, int last, float* scores, int64_t stride, int ahead) {
  if (storage != kE5m2) return score(unit, shape, storage, c, first, last, scores, stride, ahead);
  const int pairs = (c.count + 1) / 2, steps = (pairs + 15) / 16;
  alignas(64) uint32_t left[kMaxDim / 32][kMaxGroup][16] = {};
  alignas(64) uint8_t right[2][4][16][64];
  for (int h = 0; h < c.heads; ++h)
    for (int i = 0; i < pairs; ++i) left[i / 16][h][i % 16] = c.pair[h][i];
  if (pairs % 16) __builtin_memset(right, 0, sizeof right);   // zero times what is left there
  configure(c.heads);
  if (steps == 1) load_tile<4>(left[0], 64);
  for (int page = first, turn = 0; page < last; page += kChunk, turn ^= 1) {
    const uint8_t* base = unit + shape.page(page);
    const int later = page + ahead * kChunk;
    const uint8_t* next = unit + shape.page(later < last ? later : page);
    load_tile<0>(kZeros, 64);
    load_tile<1>(kZeros, 64);
    load_tile<2>(kZeros, 64);
    load_tile<3>(kZeros, 64);
    for (int step = 0; step < steps; ++step) {
      const int end = pairs - 16 * step < 16 ? pairs - 16 * step : 16;
      for (int i = 0; i < end; ++i) {
        const uint32_t a = c.offset[32 * step + 2 * i], b = c.offset[32 * step + 2 * i + 1];
        prefetch_line(next + a);
        prefetch_line(next + b);
        decode_pair(base + a, base + b, right[turn][0][i]);
      }
      if (steps > 1) load_tile<4>(left[step], 64);
      load_tile<5>(right[turn][0], 64);
      load_tile<6>(right[turn][1], 64);
      _tile_dpbf16ps(0, 4, 5);
      load_tile<7>(right[turn][2], 64);
      _tile_dpbf16ps(1, 4, 6);
      load_tile<5>(right[turn][3], 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 4, 5);
    }
    store_tile<0>(scores + page, stride * 4);
    store_tile<1>(scores + page + 16, stride * 4);
    store_tile<2>(scores + page + 32, stride * 4);
    store_tile<3>(scores + page + 48, stride * 4);
  }
}

constexpr Kernels tiled() {
  Kernels k = kernels();
  k.project = project_tiled;
  k.score = score_tiled;
  return k;
}
