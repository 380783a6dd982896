"""The decode run of a machine with an NVIDIA GPU."""
