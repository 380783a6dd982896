"""RocketKV routing as separate kernels."""
