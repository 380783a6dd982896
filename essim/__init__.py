"""Simulate sparse KV selection in decoding: earlier routing, elsewhere, on real hardware."""
