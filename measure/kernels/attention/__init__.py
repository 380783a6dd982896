"""Attention of a decode step."""
