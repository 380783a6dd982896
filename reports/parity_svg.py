"""One static figure: predicted over measured step time. ``python -m reports.parity_svg``."""

from __future__ import annotations

import csv
import math
import sys
from html import escape
from pathlib import Path

from essim.results.column import AnyRow, Rows
from essim.results.tables import column
from reports.palette import look

_SIDES = ("predicted_s", "measured_s")
_LEFT, _TOP, _EDGE = 70.0, 20.0, 400.0
_TICKS_MS = [digit * 10.0**power for power in range(-6, 9) for digit in range(1, 10)]
_USAGE = "usage: python -m reports.parity_svg PAIRS.csv OUT.svg (essim compare --out PAIRS.csv)"


def svg(pairs: Rows) -> str:
    """Return predicted over measured step time: a dot a cell, a line where both are equal.

    Parameters
    ----------
    pairs : sequence of mappings
        At least one; ``mode``, ``predicted_s`` and ``measured_s`` of each.
    """
    times = [_ms(row, side) for row in pairs for side in _SIDES]
    low = max(tick for tick in _TICKS_MS if tick <= min(times))
    high = min(tick for tick in _TICKS_MS if tick > max(times))
    bottom, right = _TOP + _EDGE, _LEFT + _EDGE

    def along(time_ms: float) -> float:
        return _EDGE * math.log(time_ms / low) / math.log(high / low)

    ticks = [tick for tick in _TICKS_MS if low <= tick <= high]
    round_ones = [tick for tick in ticks if f"{tick:e}"[0] in "125"]
    parts = []
    for tick in ticks:
        x, y = _LEFT + along(tick), bottom - along(tick)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        if tick in round_ones or len(round_ones) < 3:
            parts.append(_text(x, bottom + 18, f"{tick:g}", "middle"))
            parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", "end"))
    parts += [
        f'<path d="M{_LEFT} {bottom}L{right} {_TOP}" stroke="#444" stroke-dasharray="4 4"/>',
        _text(_LEFT + _EDGE / 2, bottom + 42, "measured decode step, ms", "middle"),
        f'<g transform="translate(20 {_TOP + _EDGE / 2}) rotate(-90)">'
        f"{_text(0, 0, 'predicted decode step, ms', 'middle')}</g>",
    ]
    for row in pairs:
        x, y = _LEFT + along(_ms(row, "measured_s")), bottom - along(_ms(row, "predicted_s"))
        colour = look(str(row["mode"])).colour
        dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"'
        parts.append(f'{dot} fill-opacity="0.65"/>')
    return _page([*parts, *_legend(pairs)])


def _page(parts: list[str]) -> str:
    """Return the drawing on white, so that its text is readable on a dark page too."""
    size = 'width="500" height="480"'
    style = f'{size} viewBox="0 0 500 480" font-family="sans-serif" font-size="13" fill="#222"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {style}>'
    title = "<title>Predicted over measured decode step</title>"
    return "\n".join([head, title, f'<rect {size} fill="#fff"/>', *parts, "</svg>\n"])


def _legend(pairs: Rows) -> list[str]:
    found = dict.fromkeys(str(row["mode"]) for row in pairs)
    lines = []
    for i, mode in enumerate(found):
        y, colour = _TOP + 12 + 20 * i, look(mode).colour
        lines.append(f'<rect x="{_LEFT + 10}" y="{y}" width="10" height="10" fill="{colour}"/>')
        lines.append(_text(_LEFT + 28, y + 10, escape(mode), "start"))
    return lines


def _ms(row: AnyRow, key: str) -> float:
    time_ms = column(key).shown.scaled(row[key])
    if not time_ms or time_ms < 0:
        raise ValueError(f"{key} is {row[key]}, no time")
    return time_ms


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def main(arguments: list[str]) -> int:
    """Draw the pairs of a CSV; return the exit code."""
    if len(arguments) != 2:
        print(_USAGE, file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    if source.resolve() == target.resolve():
        print(f"{target} would be overwritten. {_USAGE}", file=sys.stderr)
        return 2
    try:
        with source.open(newline="") as lines:
            pairs = [
                {"mode": row["mode"], **{side: float(row[side]) for side in _SIDES}}
                for row in csv.DictReader(lines)
            ]
        target.write_text(svg(pairs))
    except (OSError, KeyError, TypeError, ValueError) as error:
        print(f"{source}: {error!r}. {_USAGE}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
