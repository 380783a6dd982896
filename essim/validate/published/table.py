"""All comparisons: ``essim published``, and whether an error has grown.

``python -m essim.validate.published.table`` writes the errors that are expected from now on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from essim.results.column import Row
from essim.simulate.sweep import Simulator
from essim.validate.published import arithmetic, curves, earlyselect, prhs, speedups
from essim.validate.published.row import FOLDER, Kind, Published, read

# Numbers from which a parameter of their selector was taken: they check nothing.
TAKEN = dict.fromkeys(
    ("cis-ratio", "comp-cis", "compact-dense", "compact-flashprefill", "kap-read"), 1
)
# Numbers that two parameters were fitted for, on two others.
_FITTED = {"vestige-abstract": 2, "vestige-readme": 2}
_KINDS: dict[str, Kind] = {
    kind: kind for kind in ("exact arithmetic", "table", "headline", "upper bound")
}
# An error may grow by so much before it is said to have.
TOLERANCE = 0.005


def comparisons(simulator: Simulator) -> Iterator[Published]:
    """Yield every published number that essim predicts."""
    yield from prhs.comparisons()
    yield from earlyselect.comparisons(simulator)
    yield from curves.figure2_comparisons()
    yield from curves.louver_comparisons()
    for row in read("numbers.csv"):
        name = row["id"]
        own = arithmetic.PREDICTIONS.get(name)
        predicted = own() if own else speedups.PREDICTIONS[name](simulator)
        taken, fitted = TAKEN.get(name, 0), _FITTED.get(name, 0)
        yield Published(
            system=row["system"],
            setting=row["setting"],
            metric=row["metric"],
            unit=row["unit"],
            published=float(row["published"]),
            predicted=predicted,
            kind=_KINDS[row["kind"]],
            fitted=taken + fitted,
            fitted_on=taken + fitted,
            held_out=not taken,
            note=row["source"],
        )


def unpredicted() -> list[Row]:
    """Return published numbers that have no prediction, with the reason."""
    return [dict(row) for row in read("unpredicted.csv")]


def grown(found: Sequence[Published]) -> list[str]:
    """Return sentences about errors that are larger than those that are committed."""
    expected = {row["number"]: float(row["error"]) for row in read("expected.csv")}
    lines = []
    for number in found:
        if number.key not in expected:
            lines.append(f"{number.key}: new, with an error of {number.error:+.2%}.")
        elif abs(number.error) > abs(expected[number.key]) + TOLERANCE:
            before, now = expected[number.key], number.error
            lines.append(f"{number.key}: the error grew from {before:+.2%} to {now:+.2%}.")
    gone = set(expected) - {number.key for number in found}
    return lines + [f"{key}: gone." for key in sorted(gone)]


def summary(found: Sequence[Published]) -> list[Row]:
    """Return how far off each system's held-out numbers are, by kind."""
    rows: list[Row] = []
    for system, kind in dict.fromkeys((number.system, str(number.kind)) for number in found):
        own = [n for n in found if (n.system, n.kind) == (system, kind)]
        errors = [abs(number.error) for number in own if number.held_out]
        rows.append(
            {
                "system": system,
                "kind": kind,
                "numbers": len(own),
                "checked": len(errors),
                "fitted": max(number.fitted for number in own),
                "median_error_frac": median(errors) if errors else None,
                "worst_error_frac": max(errors) if errors else None,
            }
        )
    return rows


if __name__ == "__main__":
    lines = [f'"{number.key}",{number.error:.6f}\n' for number in comparisons(Simulator())]
    (FOLDER / "expected.csv").write_text("".join(["number,error\n", *lines]), encoding="utf-8")
