"""The bench script runs by one command and writes its table."""

from __future__ import annotations

import csv
import ctypes
import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from measure.harness.router_timing import LATENT, sample, sample_updates
from measure.kernels.cpu_router.abi import RouterShape
from measure.kernels.cpu_router.router import Router
from measure.kernels.numbers import rope_table

SCRIPT = Path(__file__).parents[2] / "measure" / "studies" / "cpu_router.py"


def test_one_command(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--out",
        str(tmp_path),
        "--threads",
        "1",
        "--batch",
        "2",
        "--tokens",
        "300,900",
        "--calls",
        "5",
        "--layers",
        "3",
        "--heads",
        "4",
        "--kv-heads",
        "2",
        "--head-dim",
        "64",
        "--rank",
        "16",
        "--gap-us",
        "1",
        "--update",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "cpu_router.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["context_tokens"] for row in rows] == ["300", "900"]
    assert all(float(row["route_p50_us"]) > 0 for row in rows)


class Watched:
    """A library whose updates are counted by their token's place in the page of 4."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib, self.places = lib, Counter[int]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._lib, name)

    def essim_update(self, pool, layer, keys, tokens, timeout) -> int:
        self.places[ctypes.c_int32.from_address(tokens.value).value % 4] += 1
        return self._lib.essim_update(pool, layer, keys, tokens, timeout)


def test_updates_are_timed_at_every_place_of_a_page_alike() -> None:
    shape = RouterShape(3, 2, 4, 2, 64, 4, 64, 4, 16, rank=16)
    with Router(shape, 1, pin=False) as router:
        router.set_rope(rope_table(64, 64))
        router.randomize(1)
        router.lib = watched = Watched(router.lib)
        seconds = sample_updates(router, 64, 0.0, 9)
    assert len(seconds) == 9
    assert (seconds > 0).all()
    # Three calls to warm up and nine that count: few enough for a quick campaign.
    assert watched.places == {0: 3, 1: 3, 2: 3, 3: 3}


def test_routes_between_updates_choose_other_channels() -> None:
    shape = RouterShape(3, 1, 4, 1, 64, 4, 64, 4, 16, rank=64)
    chosen: list[set[int]] = []
    with Router(shape, 1, pin=False) as router:
        router.set_rope(rope_table(64, 64))
        router.randomize(1)
        router.lib.essim_keep(router.pool, 1)
        route = router.route

        def kept(layer: int, *request: object) -> object:
            answer = route(layer, *request)
            channels = np.empty(16, np.int32)
            group = ctypes.c_void_p(np.empty(16, np.float32).ctypes.data)
            at = ctypes.c_void_p(channels.ctypes.data)
            router.lib.essim_choice(router.pool, 0, 0, at, group, 0)
            if layer == 1:
                chosen.append(set((channels & ~(1 << 30)).tolist()))
            return answer

        router.route = kept
        sample_updates(router, 64, 0.0, 40)
    # Of 16 channels of 64 that two routes choose by chance, a quarter are the same.
    shared = [len(a & b) / 16 for a, b in itertools.pairwise(chosen)]
    assert 0.1 < sum(shared) / len(shared) < 0.5


def test_each_timed_route_is_a_new_request() -> None:
    shape = RouterShape(3, 2, 4, 2, 64, 4, 64, 4, 16, rank=16)
    queries = []
    with Router(shape, 1, pin=False) as router:
        router.set_rope(rope_table(64, 64))
        router.randomize(1)
        for calls in (1, 3):  # after twelve to warm up, the last is of layer 1
            sample(router, LATENT, 64, 0.0, calls)
            query = np.empty((2, 4, 64), np.uint16)
            router.lib.essim_query(router.pool, ctypes.c_void_p(query.ctypes.data))
            queries.append(query)
    assert (queries[0] != queries[1]).mean() > 0.9
