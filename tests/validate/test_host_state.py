"""Errors at the state of the host: routes are scaled, and what is shipped follows from its run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from essim.errors import InputError
from essim.hardware.profile import find_profile, load_profile
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import Scenario, find_scenario
from essim.validate.host_state import errors, state, with_route_times

RUN = Path(__file__).parents[2] / "reports" / "data" / "h200-pool"
H200 = load_profile(find_profile("h200-sxm", Path()))

# 48 pages are padded by kernels, which is said when the scenario is read.
pytestmark = pytest.mark.filterwarnings("ignore:.*no power of two")


def points() -> list[Scenario]:
    return load_scenario(find_scenario("validate-h200-pool"))[1]


def test_only_routes_take_longer() -> None:
    (before,), (after,) = (
        profile.tables["cpu_route"].grids.values() for profile in (H200, with_route_times(H200, 2))
    )
    at = [[8], [4], [8192]]
    assert after.at(at).mean_s == pytest.approx(2 * before.at(at).mean_s)
    assert after.at(at).distribution.mean_s() == pytest.approx(  # type: ignore[union-attr]
        2 * before.at(at).distribution.mean_s()  # type: ignore[union-attr]
    )
    assert with_route_times(H200, 2).tables["cpu_update"] is H200.tables["cpu_update"]


def test_the_state_is_looks_over_the_table() -> None:
    (grid,) = H200.tables["cpu_route"].grids.values()
    priced_s = float(grid.at([[8], [4], [8192]]).mean_s[0])
    looks = pd.DataFrame(
        {
            "batch": [4, 4],
            "context_tokens": [8192, 8192],
            "threads": [8, 8],
            "route_s": [priced_s, 2 * priced_s],
        }
    )
    assert state(H200, looks) == {(4, 8192): pytest.approx(1.5)}


def test_a_run_that_did_not_look_is_refused(tmp_path: Path) -> None:
    shutil.copy(RUN / "decode.csv", tmp_path)
    with pytest.raises(InputError, match="did not look at its host"):
        errors(points(), tmp_path)


@pytest.mark.slow
def test_the_shipped_errors_are_those_of_the_shipped_run() -> None:
    found, shipped = pd.DataFrame(errors(points(), RUN)), pd.read_csv(RUN / "state.csv")
    pd.testing.assert_frame_equal(found, shipped, rtol=0, atol=1e-5)
