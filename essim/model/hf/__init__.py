"""Hugging Face ``config.json`` -> `ModelShape`: what is read, what is refused, what is assumed."""

from essim.model.hf.config import expand_model, read_config

__all__ = ["expand_model", "read_config"]
