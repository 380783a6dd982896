"""A small calibration of this very machine: measure, simulate with it, resume it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from decodes import essim

from essim.hardware.kernels import stale_tables
from essim.hardware.profile import load_profile

ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "scenarios" / "laptop.yaml"


@pytest.mark.filterwarnings("ignore:.*kept:UserWarning")
def test_the_profile_holds_tables_errors_and_provenance(measured: Path) -> None:
    profile = load_profile(measured / "hardware_profiles" / "mine.yaml")
    decode = {"embed", "norm", "rope", "act", "head", "gemm", "attn_dense", "attn_sparse"}
    routing = {"gpu_route_stepwise", "proxy_down", "cpu_route", "cpu_update"}
    prefill = {"attn_prefill", "stage1_select", "summary_build"}
    assert set(profile.tables) == decode | routing | prefill
    assert all(table.heldout for table in profile.spec.tables.values())
    assert profile.spec.provenance["command"] == "essim measure --profile mine"
    assert set(profile.spec.constants) == {"publish", "await", "host"}
    assert not profile.spec.provisional
    assert stale_tables(profile) == []


def test_every_decode_op_of_the_laptop_scenario_is_priced_by_it(measured: Path) -> None:
    done = essim(
        *("run", str(LAPTOP), "--set", "hardware=mine", "--json"),
        *("--set", "workload.input_tokens=512", "--set", "workload.output_tokens=256"),
        cwd=measured,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["row"]
    assert row["measured_frac"] == pytest.approx(1.0, abs=1e-3)
    # Flags carry a few bytes inside one memory.
    parts = dict(part.split(": ") for part in row["price_sources"].split("; "))
    assert set(parts) == {"measured", "interpolated", "roofline", "assumed"}
    assert parts["roofline"] == "anchor_d2h index_h2d key_d2h"
    assert row["step_s"] > 0


def test_measuring_again_measures_nothing_twice(measured: Path) -> None:
    folder = measured / "hardware_profiles" / "mine"
    before = {file: file.read_bytes() for file in folder.rglob("*.csv")}
    done = essim("measure", "--profile", "mine", "--quick", cwd=measured)
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in folder.rglob("*.csv")} == before
    assert done.stdout.splitlines()[-1] == "Next: essim sweep laptop --set hardware=mine"
    assert "of 20 samples, fewer than 30" in done.stdout


def test_tables_of_other_kernels_warn_and_are_not_resumed(measured: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hardware_profiles"
    folder.mkdir()
    profile = (measured / "hardware_profiles" / "mine.yaml").read_text()
    (folder / "mine.yaml").write_text(re.sub(r"kernel_hash: .*", "kernel_hash: other", profile))
    for file in (measured / "hardware_profiles" / "mine").rglob("*.csv"):
        target = folder / file.relative_to(measured / "hardware_profiles")
        target.parent.mkdir(parents=True, exist_ok=True)
        header, *rows = file.read_text().splitlines()
        assert header.endswith(",source_hash")
        old = [row.rsplit(",", 1)[0] + ",0123456789abcdef" for row in rows]
        target.write_text("\n".join([header, *old]) + "\n")
    done = essim("run", str(LAPTOP), "--set", "hardware=mine", cwd=tmp_path)
    assert ": measured with older kernels: " in done.stderr
    done = essim("measure", "--profile", "mine", "--quick", cwd=tmp_path)
    assert done.returncode == 2
    assert "measured with source 0123456789abcdef, now it is" in done.stderr


def test_no_compiler_is_said_with_the_way_out(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is an extra")
    empty = {"XDG_CACHE_HOME": str(tmp_path), "CXX": "no-such-compiler"}
    done = essim("measure", "--profile", "mine", "--quick", cwd=tmp_path, **empty)
    assert done.returncode == 4
    assert "no C++ compiler 'no-such-compiler'" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr
