"""Threads a machine grants, its facts, and the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from essim.errors import AbsentError
from measure.harness.machine import cpu_quota, library_version, machine_facts, thread_count
from measure.kernels.build import compile_library, source_hash


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "450000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/elsewhere\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n2:memory:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "550000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
)
def test_threads(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    assert thread_count(write(tmp_path, files), affinity=16) == threads


def test_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"}
    assert thread_count(write(tmp_path, files), affinity=2) == 2
    assert cpu_quota(tmp_path) == 8.0


def test_facts_are_plain_values() -> None:
    facts = machine_facts(libraries=("numpy", "no-such-library"))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["libraries"] == {"numpy": library_version("numpy"), "no-such-library": None}
    assert machine_facts(compiler="no-such-compiler")["compiler"] is None


def test_no_compiler_is_said_clearly(tmp_path: Path) -> None:
    main = tmp_path / "a.cpp"
    main.write_text("int answer;\n")
    with pytest.raises(AbsentError, match=r"no C\+\+ compiler 'no-such-compiler'"):
        compile_library(main, [main], tmp_path / "cache", "no-such-compiler")


def test_a_source_is_compiled_once(tmp_path: Path) -> None:
    main = tmp_path / "a.cpp"
    main.write_text("int answer;\n")
    first = compile_library(main, [main], tmp_path / "cache")
    made = first.stat().st_mtime_ns
    assert compile_library(main, [main], tmp_path / "cache").stat().st_mtime_ns == made
    before = source_hash([main])
    main.write_text("int other;\n")
    assert source_hash([main]) != before
    assert compile_library(main, [main], tmp_path / "cache") != first


def test_a_source_that_does_not_compile_is_said_clearly(tmp_path: Path) -> None:
    main = tmp_path / "a.cpp"
    main.write_text("int answer = nothing;\n")
    with pytest.raises(AbsentError, match=r"cannot compile a\.cpp"):
        compile_library(main, [main], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
