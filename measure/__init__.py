"""Measuring the machine: kernels, a harness, calibration. torch lives here and nowhere else."""
