// The k largest of n non-negative values, as ascending indices; of equal values the lowest index
// wins. values is padded with negative numbers to a multiple of kLanes. No sort: the smallest of k
// maxima over disjoint subsets bounds the k-th value from below, which leaves a few k candidates,
// and a bisection over their bits finds the exact threshold.
inline void top_k(const float* values, int n, int k, int32_t* out, const TopK& c) {
  if (k >= n) {
    for (int i = 0; i < n; ++i) out[i] = i;
    return;
  }
  const int padded = (n + kLanes - 1) / kLanes * kLanes;
  constexpr int kSets = 128 / kLanes;
  const int sets = (k + kLanes - 1) / kLanes;
  float floor = 0.0f, top;
  if (sets <= kSets && sets * kLanes <= padded) {
    vf best[kSets];
    for (int s = 0; s < sets; ++s) best[s] = load(values + s * kLanes);
    int s = 0;
    for (int i = sets * kLanes; i < padded; i += kLanes) {
      best[s] = larger(best[s], load(values + i));
      s = s + 1 == sets ? 0 : s + 1;
    }
    vf lowest = best[0], highest = best[0];
    for (s = 1; s < sets; ++s) {
      lowest = best[s] < lowest ? best[s] : lowest;
      highest = larger(highest, best[s]);
    }
    floor = reduce_min(lowest);
    if (floor < 0) floor = 0;
    top = reduce_max(highest);
  } else {
    vf highest = load(values);
    for (int i = kLanes; i < padded; i += kLanes) highest = larger(highest, load(values + i));
    top = reduce_max(highest);
  }
  int found = keep_at_least(values, nullptr, padded, floor, c.value, c.index);
  for (int i = 0; i < kLanes; ++i) c.value[found + i] = -1.0f;
  uint32_t low = bits_of(floor), high = bits_of(top);   // the k-th value is in [low, high]
  int at_least = found;
  while (low < high && at_least != k) {
    // Three thresholds at once: their counts do not wait for each other, and none is guessed.
    const uint32_t quarter = (high - low) / 4;
    const uint32_t at[3] = {low + quarter + 1, low + 2 * quarter + 1, low + 3 * quarter + 1};
    for (const uint32_t threshold : at) {
      const int count = count_at_least(c.value, found, threshold);
      const bool enough = count >= k;
      const uint32_t below = threshold - 1 < high ? threshold - 1 : high;
      low = enough ? threshold : low;
      at_least = enough ? count : at_least;
      high = enough ? high : below;
    }
  }
  float threshold;
  __builtin_memcpy(&threshold, &low, 4);
  if (at_least == k) {
    int32_t kept[128 + 64];
    if (k <= 128) {
      float ignored[128 + 64];
      keep_at_least(c.value, c.index, (found + kLanes - 1) / kLanes * kLanes, threshold, ignored,
                    kept);
      __builtin_memcpy(out, kept, sizeof(int32_t) * k);
      return;
    }
  }
  int ties = k - count_at_least(c.value, found, low + 1);
  for (int i = 0, n_out = 0; n_out < k; ++i) {
    if (c.value[i] > threshold || (c.value[i] == threshold && ties-- > 0)) out[n_out++] = c.index[i];
  }
}
