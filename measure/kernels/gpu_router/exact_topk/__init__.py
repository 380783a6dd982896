"""Exact top-k's router."""
