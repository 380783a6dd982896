"""What every report says beside its numbers, and which of its numbers say nothing."""

from __future__ import annotations

from typing import Any

from essim.results.column import AnyRow

QUALITY_NOTE = "Output quality is not modelled: these are times and bytes alone."
PROVISIONAL = "The hardware profile is provisional: first numbers, not a calibration."

_GAINS = ("decode_gain_frac", "decode_gain_frac_p5", "decode_gain_frac_p95", "output_gain_frac")
_OF_DENSE = (*_GAINS, "gain_ceiling_frac", "output_ceiling_frac", "gain_over_dense_frac")


def gains_over_others(row: AnyRow, baseline: str) -> dict[str, Any]:
    """Return a result's row without the gains of a thing over itself.

    These are the baseline's gains over the baseline, and all of dense attention, which routes
    nothing.
    """
    itself = {"none": _OF_DENSE, baseline: _GAINS}.get(str(row.get("routing")), ())
    return {key: None if key in itself else value for key, value in row.items()}
