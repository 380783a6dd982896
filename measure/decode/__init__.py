"""The real decode run: random weights, a growing KV cache, RocketKV for real, a clock around it."""
