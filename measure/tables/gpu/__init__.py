"""Tables of a machine with an NVIDIA GPU."""
