"""Texts to measure on: domains by name."""
