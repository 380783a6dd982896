"""Checks of the GPU's kernels against float64: a random seed that is said, how many there were."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterator, Mapping

import pytest

VARIABLE = "ESSIM_GPU_SEED"
SEED = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(2**31))
COUNT = {"checks": 0}

Check = Callable[[Mapping[str, float], float], None]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU and Triton")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNT["checks"]:
        terminalreporter.write_line(
            f"{COUNT['checks']} checks against float64; {VARIABLE}={SEED} repeats their inputs"
        )


@pytest.fixture(autouse=True)
def on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """New tensors lie on the GPU; each test has random numbers of its own."""
    import torch

    torch.set_default_device("cuda")
    torch.manual_seed(zlib.crc32(f"{SEED} {request.node.name}".encode()))
    yield
    torch.set_default_device(None)


@pytest.fixture
def check() -> Check:
    """Return a function that counts errors and holds them against a bound."""

    def checked(errors: Mapping[str, float], bound: float) -> None:
        COUNT["checks"] += len(errors)
        # NaN is above any bound, too.
        assert {name: error for name, error in errors.items() if not error <= bound} == {}

    return checked
