"""The main flow besides attention: norms, RoPE, activation, GEMMs, projection, stage 1."""
