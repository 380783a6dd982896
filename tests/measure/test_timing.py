"""Statistics on literal samples, rejection, warm-up."""

from __future__ import annotations

import math
from itertools import chain, repeat

import pytest

from essim.errors import InputError
from measure.harness.timing import Spec, from_samples, measure, warm_up

SPEC = Spec("gemm", {"m": 1, "n": 2}, "bf16", "cold", bytes_moved=1000, source_hash="abc")


def test_statistics_of_five_samples() -> None:
    m = from_samples(SPEC, [5.0, 1.0, 4.0, 2.0, 3.0])
    assert m.samples_s == (5.0, 1.0, 4.0, 2.0, 3.0)
    assert (m.n, m.mean_s, m.p50_s) == (5, 3.0, 3.0)
    assert m.low_s == pytest.approx(1.2, rel=1e-15)
    assert m.high_s == pytest.approx(4.8, rel=1e-15)
    assert m.iqr_frac == pytest.approx(2 / 3, rel=1e-15)
    assert m.unstable
    assert m.bytes_per_s == pytest.approx(1000 / 3, rel=1e-15)


def test_p99_needs_two_thousand_calls() -> None:
    samples = [float(i) for i in range(1, 2001)]
    assert from_samples(SPEC, samples[:1999]).p99_s is None
    assert from_samples(SPEC, samples).p99_s == pytest.approx(1 + 0.99 * 1999, rel=1e-15)


def test_iqr_of_a_tenth_is_not_flagged() -> None:
    assert not from_samples(SPEC, [95.0, 97.5, 100.0, 102.5, 105.0]).unstable
    assert from_samples(SPEC, [90.0, 94.0, 100.0, 106.0, 110.0]).unstable


def test_impossible_samples_are_rejected() -> None:
    samples = [0.0, -1.0, math.nan, math.inf, 0.9, 1.0, 1.1]
    assert from_samples(SPEC, samples).samples_s == (0.9, 1.0, 1.1)
    m = from_samples(SPEC, samples, peak_bytes_per_s=1000.0)  # 1,000 bytes take 1 s at least
    assert (m.samples_s, m.rejected) == ((1.0, 1.1), 5)
    with pytest.raises(InputError, match="none of 2 samples"):
        from_samples(SPEC, [0.1, 0.2], peak_bytes_per_s=1000.0)


def test_no_bytes_no_bandwidth() -> None:
    spec = Spec("launch", {}, "none", "hot")
    m = from_samples(spec, [1e-6], peak_bytes_per_s=1.0)
    assert m.bytes_per_s is None


def test_warm_up_ends_when_two_windows_agree() -> None:
    falling = chain([8.0] * 4, [4.0] * 4, [2.0] * 4, repeat(1.0))
    assert warm_up(lambda: next(falling), window_calls=4) == 20
    noisy = chain.from_iterable(repeat([1.0, 2.0]))
    assert warm_up(lambda: next(noisy), window_calls=1, most_windows=7) == 7


def test_measure_drops_the_warm_up() -> None:
    samples = chain([9.0] * 5, repeat(1.0))
    m = measure(SPEC, lambda: next(samples), calls=10, window_calls=5)
    assert m.samples_s == (1.0,) * 10
