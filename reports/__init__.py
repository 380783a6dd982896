"""Figures and self-contained HTML pages of result tables."""
