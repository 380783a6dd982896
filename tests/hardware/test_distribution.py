"""A time as a distribution through known percentiles."""

from __future__ import annotations

import numpy as np
import pytest

from essim.hardware.distribution import Distribution, Z


def test_the_mean_of_a_log_normal_is_exact() -> None:
    spread = Distribution((Z["p50_s"], Z["p99_s"]), np.log([[10e-6], [40e-6]]))
    sigma = np.log(4) / Z["p99_s"]
    assert spread.mean_s() == pytest.approx([10e-6 * np.exp(sigma**2 / 2)], rel=1e-12)


def test_the_mean_of_pieces_is_the_integral_over_a_normal() -> None:
    """Between percentiles and beyond them, for several lanes."""
    seconds = np.array([[8e-6, 9e-6], [10e-6, 10e-6], [14e-6, 25e-6], [60e-6, 26e-6]])
    spread = Distribution(tuple(Z.values()), np.log(seconds))
    z = np.linspace(-12, 12, 240001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    times = Distribution(spread.z, spread.log_s[..., None]).times_s(z)
    integral = (times * density).sum(axis=-1) * (z[1] - z[0])
    assert spread.mean_s() == pytest.approx(integral, rel=1e-6)


def test_stretched_to_a_mean_it_has_that_mean() -> None:
    spread = Distribution(tuple(Z.values()), np.log([[8e-6], [10e-6], [14e-6], [60e-6]]))
    assert spread.scaled_to(np.array([3e-5])).mean_s() == pytest.approx([3e-5], rel=1e-12)
