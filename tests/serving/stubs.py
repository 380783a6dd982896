"""Prices that tests know by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from essim.serving.load import Chunk


@dataclass(frozen=True)
class Linear:
    """A step costs so much, and so much more a sequence, token of context and chunk token.

    The line of a decode step breaks every `cell` tokens of the mean and of the longest context.
    """

    step: int = 1000
    sequence: int = 0
    mean: int = 0
    longest: int = 0
    chunk: int = 0
    past: int = 0
    cell: int = 1 << 40

    def decode_line(self, batch: int, mean: int, longest: int) -> tuple[int, int, int]:
        kinks = mean // self.cell * 7 + longest // self.cell * 3
        first = self.step + self.sequence * batch + self.mean * mean + self.longest * longest
        left = self.cell - max(mean % self.cell, longest % self.cell)
        return first + kinks, self.mean + self.longest, left

    def chunk_step(self, batch: int, mean: int, longest: int, chunks: Sequence[Chunk]) -> int:
        time = self.step + self.sequence * batch + self.mean * mean + self.longest * longest
        return time + sum(size * self.chunk + self.past * past for size, past, _ in chunks)
