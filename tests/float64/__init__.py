"""What kernels and decode steps are compared with: the same in float64 numpy."""
