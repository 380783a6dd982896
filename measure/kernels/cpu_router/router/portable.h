// Plain C++ with short vectors: any x86-64 (and the reading copy of the algorithms).
constexpr int kLanes = 4;
#include "vector.inl"
#include "reduce.inl"
constexpr bool kScoresBf16 = false;
constexpr int kBatchTile = 4, kHeadTile = 4;

inline vf larger(vf a, vf b) { return a > b ? a : b; }
inline vf exp2_fast(vf x) { return exp2_magic(x); }
inline int count_at_least(const float* values, int n, uint32_t threshold) {
  return count_lanes(values, n, threshold);
}

inline float from_bf16(uint16_t b) {
  uint32_t u = uint32_t(b) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// e5m2 is the top byte of an fp16: rebias the exponent by a multiplication, exact for subnormals.
inline float from_e5m2(uint8_t code) {
  uint32_t u = uint32_t(code & 0x7f) << 21 | uint32_t(code & 0x80) << 24;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f * 0x1p112f;
}

int keep_at_least(const float* values, const int32_t* indices, int n, float threshold, float* kept,
                  int32_t* kept_index) {
  int found = 0;
  for (int i = 0; i < n; ++i) {
    if (!(values[i] >= threshold)) continue;
    kept[found] = values[i];
    kept_index[found++] = indices ? indices[i] : i;
  }
  return found;
}

void project_item(const uint16_t* weights, const uint16_t* latent, int rank, int batch,
                  float (*out)[2][16]) {
  for (int s = 0; s < batch; ++s) {
    float acc[32] = {};
    for (int r = 0; r < rank; r += 2) {
      const uint16_t* w = weights + r * 32;
      const float even = from_bf16(latent[int64_t(s) * rank + r]);
      const float odd = from_bf16(latent[int64_t(s) * rank + r + 1]);
      for (int i = 0; i < 32; ++i)
        acc[i] += from_bf16(w[2 * i]) * even + from_bf16(w[2 * i + 1]) * odd;
    }
    __builtin_memcpy(out[s], acc, sizeof acc);
  }
}

float dot_bf16(const uint16_t* a, const uint16_t* b, int n) {
  float acc[16] = {};
  for (int i = 0; i < n; i += 16)
    for (int j = 0; j < 16; ++j) acc[j] += from_bf16(a[i + j]) * from_bf16(b[i + j]);
  float sum = 0;
  for (int j = 0; j < 16; ++j) sum += acc[j];
  return sum;
}

template <int storage>
void score_chunk(const uint8_t* base, const uint8_t*, const Choice& c, int head, int heads,
                 float* out, int64_t stride) {
  float acc[kHeadTile][kChunk] = {};
  float row[kChunk];
  for (int i = 0; i < c.count; ++i) {
    const uint8_t* codes = base + c.offset[i];
    for (int p = 0; p < kChunk; ++p) {
      if (storage == kE5m2) {
        row[p] = from_e5m2(codes[p]);
      } else {
        uint16_t b;
        __builtin_memcpy(&b, codes + 2 * p, 2);
        row[p] = from_bf16(b);
      }
    }
    for (int h = 0; h < heads; ++h) {
      const float q = c.query[head + h][i];
      for (int p = 0; p < kChunk; ++p) acc[h][p] += q * row[p];
    }
  }
  for (int h = 0; h < heads; ++h) __builtin_memcpy(out + h * stride, acc[h], sizeof acc[h]);
}
