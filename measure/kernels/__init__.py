"""Kernels that are measured, one file a family, each with a float64 reference in the tests."""
