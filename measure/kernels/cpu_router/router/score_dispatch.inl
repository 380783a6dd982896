// The number of heads is a compile-time constant, so that the accumulators stay in registers.
template <int storage>
void score_chunk(const uint8_t* base, const uint8_t* prefetch, const Choice& c, int head, int heads,
                 float* out, int64_t stride) {
  switch (heads) {
    case 1: score_heads<storage, 1>(base, prefetch, c, head, out, stride); break;
    case 2: score_heads<storage, 2>(base, prefetch, c, head, out, stride); break;
    case 3: score_heads<storage, 3>(base, prefetch, c, head, out, stride); break;
    default: score_heads<storage, 4>(base, prefetch, c, head, out, stride);
  }
}
