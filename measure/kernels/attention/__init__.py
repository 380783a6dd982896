"""Decode attention on a GPU: dense, and sparse over chosen pages."""

SOURCES = ("attention/launch.py", "attention/kernels.py")
GPU_TABLES = dict.fromkeys(("attn_dense", "attn_sparse"), SOURCES)
