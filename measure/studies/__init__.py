"""Measurements that price no op: chains of ops, the host beside a GPU, the CPU router alone."""
