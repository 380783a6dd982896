// Over the lanes of a vector, by halves.
inline float reduce_max(vf v) {
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
  return v[0];
}
inline float reduce_min(vf v) { return -reduce_max(-v); }
inline float reduce_add(vf v) {
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  return v[0];
}
