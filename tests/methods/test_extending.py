"""A selector, a placement and an op kind that are defined here, simulated like those shipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from firstday import FIRST_DAY

from essim.cli import listing
from essim.engines import finish_des, finish_maxplus
from essim.errors import InputError
from essim.hardware.profile import load_profile
from essim.methods.routing import PLACEMENTS, Placement, Routing
from essim.methods.selectors import SELECTORS, Selector
from essim.methods.selectors.base import Tokens
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from essim.simulate import replay
from essim.simulate.derivation import derivation
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import schema
from essim.simulate.sweep import Simulator
from essim.simulate.timeline import Timeline
from essim.step.kinds import KINDS, Case, Kind, Point, Work, priced_names
from essim.step.ops import ROUTES, Op, decode_step

LLAMA = PRESETS["llama-3.1-8b"]
ROCKET = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4)


@pytest.fixture
def with_sinks() -> Iterator[None]:
    """Make a selector known that no file of the package has, and forget it afterwards."""
    known = dict(SELECTORS)

    class Sinks(RocketKV):
        """RocketKV that attends to the first tokens, too."""

        router_table: ClassVar[str] = "gpu_route_sinks"
        summary_table: ClassVar[str] = "summary_build_sinks"
        summary_of: ClassVar[str] = "mean"
        kind: Literal["sinks"] = "sinks"
        sink_tokens: int = 4

        def attended_tokens(self, context: Tokens) -> Tokens:
            """Return RocketKV's tokens and the sinks, all there are at most."""
            return np.minimum(context, super().attended_tokens(context) + self.sink_tokens)

    yield
    SELECTORS.clear()
    SELECTORS.update(known)


def sinks_profile(folder: Path) -> Path:
    """Return a profile whose table of the GPU router is one of the new selector's kernels."""
    file = folder / "mine.yaml"
    before, found, after = FIRST_DAY.read_text().partition("  gpu_route_stepwise:")
    assert found
    after = after.replace("selector: [rocketkv]", "selector: [sinks]", 1)
    file.write_text(f"{before}  gpu_route_sinks:{after}")
    shutil.copytree(FIRST_DAY.with_suffix(""), folder / "mine")
    (folder / "mine" / "gpu_route_stepwise.csv").rename(folder / "mine" / "gpu_route_sinks.csv")
    return file


def simulated(file: Path, *overrides: str) -> tuple[dict, Simulator]:
    base, _ = load_scenario(file, ("workload.output_tokens=5", *overrides))
    simulator = Simulator()
    return simulator.rows([base])[0], simulator


@pytest.mark.usefixtures("with_sinks")
def test_a_selector_of_a_selector_is_read_listed_and_priced_by_its_own_tables(
    scenario_file, tmp_path: Path
) -> None:
    own, inline = sinks_profile(tmp_path), "routing=gpu-target"
    settings = {
        "rocket": (inline, f"hardware={FIRST_DAY}"),
        "unmeasured": (inline, f"hardware={FIRST_DAY}", "selector.kind=sinks"),
        "measured": (inline, f"hardware={own}", "selector.kind=sinks"),
    }
    rows, sources = {}, {}
    for name, overrides in settings.items():
        rows[name], simulator = simulated(scenario_file(), *overrides)
        base, _ = load_scenario(scenario_file(), ("workload.output_tokens=5", *overrides))
        found = {row["part"]: row["source"] for row in simulator.breakdown(base)}
        sources[name] = found["gpu_route_stepwise"]
    assert sources == {
        "rocket": "interpolated",
        "unmeasured": "roofline",
        "measured": "interpolated",
    }
    assert rows["measured"]["selector"] == "sinks"
    assert rows["measured"]["attended_tokens"] == rows["rocket"]["attended_tokens"] + 4
    formulas = [line["formula"] for line in derivation(base, simulator.profile(str(own)))]
    assert "mean of 1024 key values a page x 32 layers" in formulas
    entries = {entry["name"]: entry["about"] for entry in listing.selectors()}
    assert entries["sinks"] == "RocketKV that attends to the first tokens, too."
    assert {"gpu_route_sinks", "summary_build_sinks"} <= set(priced_names()["tables"])
    assert "sinks" in schema()["properties"]["selector"]["discriminator"]["mapping"]


def test_a_table_of_a_selector_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.yaml:\d+: tables\.gpu_route_sinks: no op is pri"):
        load_profile(sinks_profile(tmp_path), priced_names())


@pytest.mark.usefixtures("with_sinks")
def test_a_policy_keeps_the_settings_of_the_selector_that_takes_it() -> None:
    selector = SELECTORS["sinks"](budget_tokens=256, sink_tokens=9)
    resolved = selector.resolve(4096, 64, 128)
    assert resolved.kind == "sinks"
    assert resolved.model_dump()["sink_tokens"] == 9


def test_what_selectors_have_in_common_is_none_and_a_kind_is_of_one_alone() -> None:
    known = dict(SELECTORS)

    class Common(Selector):
        """No kind of its own."""

    assert known == SELECTORS
    with pytest.raises(TypeError, match="Twin has the kind of RocketKV, 'rocketkv'"):
        type("Twin", (RocketKV,), {"__module__": __name__})
    assert known == SELECTORS


def test_a_placement_is_a_row_of_one_table_and_the_ops_it_adds(
    scenario_file, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "its link is too slow"
    monkeypatch.setitem(PLACEMENTS, "dpu", Placement("dpu", "cpu", {"target": why}))
    monkeypatch.setitem(ROUTES, "dpu", ROUTES["cpu"])
    cpu, dpu = (Routing(where=where, anchor="mid") for where in ("cpu", "dpu"))
    ops = {r.where: decode_step(LLAMA, ROCKET, r) for r in (cpu, dpu)}
    assert [op.name for op in ops["dpu"]] == [op.name for op in ops["cpu"]]
    assert {op.stream for op in ops["dpu"]} == {"gpu", "dpu", None}
    durations = [np.array([3, 1, 4], dtype=np.int64) * (i % 5) for i in range(len(ops["dpu"]))]
    des, fast = (finish(ops["dpu"], durations) for finish in (finish_des, finish_maxplus))
    assert (des == fast).all()
    rows = [simulated(scenario_file(), f"routing.where={where}")[0] for where in ("cpu", "dpu")]
    assert rows[1]["routing"] == "dpu-mid"
    for column in ("step_s", "exposed_routing_s", "cpu_busy_frac", "summary_cpu_bytes"):
        assert rows[1][column] == rows[0][column]
    with pytest.raises(InputError, match=f"where dpu with anchor target is refused: {why}. Anch"):
        load_scenario(scenario_file(), ["routing={where: dpu, anchor: target}"])
    assert "dpu" in schema()["$defs"]["Routing"]["properties"]["where"]["enum"]


def residual(case: Case, point: Point) -> Work:
    moved = 3.0 * point.rows * case.model.hidden * case.model.activation_bytes
    return Work("residual", axes={"rows": point.rows}, byte_count=moved, launches=1)


@pytest.mark.parametrize(("part", "exposed"), [("flow", 0), ("routing", 32)])
def test_an_op_kind_is_its_work_and_its_place_in_the_step(
    scenario_file, monkeypatch: pytest.MonkeyPatch, part, exposed: int
) -> None:
    dense = ("selector={kind: dense}", "workload.batch=1")
    before, _ = simulated(scenario_file(), *dense)

    def with_residual(*settings) -> tuple[Op, ...]:
        made: list[Op] = []
        for op in decode_step(*settings):
            made.append(op)
            if op.stage == "o":
                made.append(Op("residual", "residual", "gpu", op.layer))
        return tuple(made)

    monkeypatch.setitem(KINDS, "residual", Kind(residual, part))
    monkeypatch.setattr(replay, "decode_step", with_residual)
    row, simulator = simulated(scenario_file(), *dense)
    base, _ = load_scenario(scenario_file(), ("workload.output_tokens=5", *dense))
    gpu = simulator.profile(base.hardware).spec.gpu
    # Without a table it takes its bytes, and as long as the smallest measured kernel: 2 us.
    each_s = 3 * 4096 * 2 / gpu.bandwidth_bytes_per_s.value + 2e-6
    assert row["step_s"] - before["step_s"] == pytest.approx(32 * each_s, rel=1e-6)
    assert row["exposed_routing_s"] == pytest.approx(exposed * each_s, rel=1e-6)
    assert "residual" in priced_names()["tables"]
    rows = Timeline.of(simulator.decode(base), 0).rows()
    assert [r["name"] for r in rows if r["kind"] == "residual"][-1] == "residual.31"
