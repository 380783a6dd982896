"""Predictions beside a measured run."""
