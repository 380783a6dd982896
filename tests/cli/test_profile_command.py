"""``essim profile``: what it writes can be run, and what it refuses it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXCERPT = ROOT / "tests" / "data" / "aiconfigurator-excerpt"


def essim(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXCERPT}"}
    command = [sys.executable, "-m", "essim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=120)


def test_a_new_profile_runs_by_its_name(tmp_path) -> None:
    numbers = ("--bandwidth", "1 TB/s", "--bf16", "200 TFLOP/s", "--memory", "48 GiB")
    done = essim(tmp_path, "profile", "new", "mine", "--from", "h100-sxm", *numbers)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "wrote hardware_profiles/mine.yaml\n"
    settings = ("--set", "hardware=mine", "--set", "workload.output_tokens=32")
    done = essim(tmp_path, "run", "earlyselect-40k", *settings)
    assert done.returncode == 0, done.stderr
    assert "decode_tokens_per_s" in done.stdout


def test_a_profile_is_never_written_over(tmp_path) -> None:
    command = ("profile", "new", "mine", "--from", "h100-sxm")
    assert essim(tmp_path, *command).returncode == 0
    before = (tmp_path / "hardware_profiles" / "mine.yaml").read_bytes()
    done = essim(tmp_path, *command, "--memory", "1 GB")
    assert done.returncode == 2
    assert done.stderr == (
        "hardware_profiles/mine.yaml: a profile of this name is there. Give another name\n"
    )
    assert (tmp_path / "hardware_profiles" / "mine.yaml").read_bytes() == before


def test_a_number_without_unit_names_its_option(tmp_path) -> None:
    done = essim(tmp_path, "profile", "new", "a", "--from", "b200", "--memory", "80")
    assert done.returncode == 2
    assert done.stderr == (
        "--memory: '80' is not a quantity in bytes. Write it with a unit, such as '80 GiB'\n"
    )


def test_an_imported_profile_is_listed_and_runs(tmp_path) -> None:
    done = essim(tmp_path, "profile", "import", "aiconfigurator", "h100_sxm", "--out", "h")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gemm: 42 points; left out: dtype fp8_block (21)\nattn_dense: ")
    assert done.stderr == "wrote h/h100-sxm-vllm.yaml\n"
    (tmp_path / "h").rename(tmp_path / "hardware_profiles")
    done = essim(tmp_path, "list", "hardware", "h100-sxm-vllm")
    assert "42 points; nothing held out; fp8 rows include casting" in done.stdout
    settings = ("--set", "hardware=h100-sxm-vllm", "--set", "workload.output_tokens=32")
    done = essim(tmp_path, "run", "earlyselect-40k", *settings)
    assert done.returncode == 0, done.stderr
    assert "published: gemm_o gemm_qkv" in done.stdout


@pytest.mark.parametrize("command", ["new", "import"])
def test_help_is_one_screen(tmp_path, command: str) -> None:
    done = essim(tmp_path, "profile", command, "--help")
    assert done.returncode == 0
    assert "--out" in done.stdout
    assert len(done.stdout.splitlines()) < 40
