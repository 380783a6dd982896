"""The shipped profile h200-sxm, which is measured and changes."""

from __future__ import annotations

from pathlib import Path

from essim.hardware.profile import find_profile, load_profile

ROOT = Path(__file__).parent.parent
H200 = load_profile(find_profile("h200-sxm", ROOT))
