"""The static figure of predicted over measured steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reports.palette import look
from reports.parity_svg import svg

# Times of 1 to 90 ms: both axes go from 1 to 100 ms, 200 units a decade, from (70, 420).
PAIRS = [
    {"mode": "dense", "measured_s": 1e-3, "predicted_s": 1e-3},
    {"mode": "gpu-target", "measured_s": 1e-2, "predicted_s": 1e-2},
    {"mode": "gpu_side-mid-fused", "measured_s": 2e-2, "predicted_s": 1e-2},
    {"mode": "cpu-mid", "measured_s": 1e-2, "predicted_s": 5e-2},
    {"mode": "cpu-in", "measured_s": 9e-2, "predicted_s": 4e-2},
]
COLOURS = [look(str(pair["mode"])).colour for pair in PAIRS]


def found(text: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def test_a_dot_a_cell_in_the_colour_of_its_routing() -> None:
    dots = found(svg(PAIRS), "circle")
    assert [(d.get("cx"), d.get("cy"), d.get("fill")) for d in dots] == [
        ("70.0", "420.0", COLOURS[0]),
        ("270.0", "220.0", COLOURS[1]),
        ("330.2", "220.0", COLOURS[2]),
        ("270.0", "80.2", COLOURS[3]),
        ("460.8", "99.6", COLOURS[4]),
    ]


def test_ground_diagonal_ticks_and_legend() -> None:
    text = svg(PAIRS)
    ground, *keys = found(text, "rect")
    assert ground.attrib == {"width": "500", "height": "480", "fill": "#fff"}
    assert [key.get("fill") for key in keys] == COLOURS
    dashed = [path.get("d") for path in found(text, "path") if path.get("stroke-dasharray")]
    assert dashed == ["M70.0 420.0L470.0 20.0"]
    said = [(t.text, t.get("x")) for t in found(text, "text")]
    assert [s for s in said if s[0] in ("1", "10", "100")] == [
        *(("1", "70.0"), ("1", "62.0"), ("10", "270.0"), ("10", "62.0")),
        *(("100", "470.0"), ("100", "62.0")),
    ]
    words = [t for t, _ in said if t and not t.isdigit()]
    assert words == [
        *("measured decode step, ms", "predicted decode step, ms"),
        *("dense", "gpu-target", "gpu_side-mid-fused", "cpu-mid", "cpu-in"),
    ]


def test_a_narrow_range_has_every_tick() -> None:
    text = svg([{"mode": "cpu-mid", "measured_s": 6.5e-3, "predicted_s": 7.5e-3}])
    assert [t.text for t in found(text, "text")][:6] == ["6", "6", "7", "7", "8", "8"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reports.parity_svg", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_pairs_of_a_file(tmp_path: Path) -> None:
    source, target = tmp_path / "pairs.csv", tmp_path / "out.svg"
    lines = [f"{p['mode']},{p['predicted_s']},{p['measured_s']},x" for p in PAIRS]
    source.write_text("\n".join(["mode,predicted_s,measured_s,more", *lines]))
    assert run(source, target).returncode == 0
    assert target.read_text() == svg(PAIRS)


@pytest.mark.parametrize("content", ["mode,predicted_s\ncpu-mid,1", "mode,predicted_s,measured_s"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    source, target = tmp_path / "pairs.csv", tmp_path / "out.svg"
    source.write_text(content)
    done = run(source, target)
    assert (done.returncode, done.stdout, target.exists()) == (2, "", False)
    assert done.stderr.startswith(f"{source}: ")
    assert "Traceback" not in done.stderr
