"""The first numbers of an H200, round and few: what tests compute by hand.

Its name is h200-sxm, as that of the shipped profile, which is measured and changes.
"""

from __future__ import annotations

from pathlib import Path

FIRST_DAY = Path(__file__).parent / "data" / "h200-first-day.yaml"
