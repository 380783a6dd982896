// GCC vectors of kLanes floats and the scalar conversions, for every instruction set.
typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint16_t vh __attribute__((vector_size(2 * kLanes)));

inline vf load(const float* p) { vf v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, vf v) { __builtin_memcpy(p, &v, sizeof v); }
inline vf splat(float x) { return vf{} + x; }
inline vf load_bf16(const uint16_t* p) {
  vh h;
  __builtin_memcpy(&h, p, sizeof h);
  vi wide = __builtin_convertvector(h, vi) << 16;
  vf v;
  __builtin_memcpy(&v, &wide, sizeof v);
  return v;
}
inline vf larger(vf a, vf b);
inline float widen(uint16_t b) {
  uint32_t u = uint32_t(b) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline uint32_t bits_of(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
inline uint16_t narrow(float f) {   // float -> bf16, round to nearest even
  uint32_t u = bits_of(f);
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// 2^f for |f| <= 1/2: minimax of degree 5, relative error 7.5e-8.
inline vf exp2_fraction(vf f) {
  vf y = splat(1.3276471e-3f);
  y = y * f + 9.6755410e-3f;
  y = y * f + 5.5507131e-2f;
  y = y * f + 2.4022120e-1f;
  y = y * f + 6.9314694e-1f;
  return y * f + 1.00000007f;
}

// 2^x for -126 <= x <= 0: round to an integer with the 1.5 * 2^23 trick, then add it to the
// exponent of 2^fraction.
inline vf exp2_magic(vf x) {
  x = larger(x, splat(-126.0f));
  const vf magic = splat(12582912.0f);
  const vf t = x + magic;
  vf y = exp2_fraction(x - (t - magic));
  vi e, r;
  __builtin_memcpy(&e, &t, sizeof e);
  __builtin_memcpy(&r, &y, sizeof r);
  r += e << 23;
  __builtin_memcpy(&y, &r, sizeof y);
  return y;
}

// Number of non-negative floats >= threshold; their bits compare like integers.
inline int count_lanes(const float* values, int n, uint32_t threshold) {
  vi total = {};
  const vi t = vi{} + int32_t(threshold);
  for (int i = 0; i < n; i += kLanes) {
    vi v;
    __builtin_memcpy(&v, values + i, sizeof v);
    total -= (v >= t);
  }
  int sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += total[i];
  return sum;
}
