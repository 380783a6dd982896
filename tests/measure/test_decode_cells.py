"""The campaign: its cells, its table, what it resumes; modes and shapes that are refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from decodes import PAGE, TINY, tiny  # noqa: E402

from essim.errors import AbsentError, InputError  # noqa: E402
from essim.model.shape import PRESETS  # noqa: E402
from measure.decode import main  # noqa: E402
from measure.decode.cpu import plan as cpu_plan  # noqa: E402
from measure.decode.shared import cells  # noqa: E402
from measure.decode.shared.cells import Cell, Plan, grid  # noqa: E402
from measure.decode.shared.modes import CPU_MODES, check_mode, routing_of  # noqa: E402
from measure.decode.shared.weights import Weights  # noqa: E402


class Counted:
    """Counts the runs that were made; step n of a run takes n milliseconds."""

    def __init__(self) -> None:
        self.made: list[tuple[Cell, int]] = []

    def plan(self, source_hash: str = "a") -> Plan:
        wanted = grid(("dense", "cpu-mid"), (1,), (32, 64), (8, 16))
        return Plan(wanted, self.make, 5, "fp32", source_hash, {}, lambda cell: {})

    def make(self, cell: Cell):
        counted = self

        class Run:
            def __enter__(self):
                return self

            def __exit__(self, *error) -> None: ...

            def set_position(self, tokens: int) -> None:
                self.done = 0
                counted.made.append((cell, tokens))

            def steps(self, count: int) -> list[float]:
                self.done += count
                return [step * 1e-3 for step in range(self.done - count + 1, self.done + 1)]

        return Run()


def test_looks_at_the_host_are_kept_as_they_come_and_the_last_one_too(tmp_path: Path) -> None:
    looks: list[dict[str, float]] = []
    counted = Counted()

    def make(cell: Cell):
        looks.append({"batch": cell.batch, "route_s": len(looks) + 0.5})
        return counted.make(cell)

    plan = replace(
        counted.plan(),
        make_run=make,
        host=lambda: looks,
        release=lambda: looks.append({"batch": 9, "route_s": 99.0}),
    )
    kept: list[int] = []
    file = tmp_path / "host.csv"
    cells.run(plan, tmp_path / "decode.csv", lambda progress: kept.append(len(rows_of(file))))
    assert kept == [*range(1, len(looks))]
    assert rows_of(file)[0] == {"batch": "1", "route_s": "0.5"}
    assert rows_of(file)[-1] == {"batch": "9", "route_s": "99.0"}
    # A run that goes on adds to what is there; nothing is measured again.
    cells.run(plan, tmp_path / "decode.csv", lambda progress: None)
    assert [row["batch"] for row in rows_of(file)].count("9") >= 2


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as text:
        return list(csv.DictReader(text))


def test_cells_vary_the_mode_fastest_and_dense_has_no_budget() -> None:
    assert grid(("dense", "cpu-mid"), (1,), (32, 64), (8, 16)) == (
        Cell("dense", 1, 32, 32),
        Cell("cpu-mid", 1, 32, 8),
        Cell("cpu-mid", 1, 32, 16),
        Cell("dense", 1, 64, 64),
        Cell("cpu-mid", 1, 64, 8),
        Cell("cpu-mid", 1, 64, 16),
    )


def test_repetitions_are_spread_and_rows_hold_the_steps_after_the_warm_up(tmp_path: Path) -> None:
    counted = Counted()
    cells.run(counted.plan(), tmp_path / "d.csv", lambda progress: None)
    wanted = counted.plan().cells
    assert [cell for cell, _ in counted.made] == [*wanted, *wanted, *wanted]
    assert counted.made[0][1] == 28  # four steps before position 32
    rows = rows_of(tmp_path / "d.csv")
    assert [row["repetition"] for row in rows] == ["1"] * 6 + ["2"] * 6 + ["3"] * 6
    first = rows[1]
    assert (first["mode"], first["batch"], first["context_tokens"]) == ("cpu-mid", "1", "32")
    assert (first["attended_tokens"], first["calls"], first["source_hash"]) == ("8", "5", "a")
    # Steps 5 to 9 of the run.
    assert float(first["mean_s"]) == pytest.approx(7e-3)
    assert float(first["p50_s"]) == pytest.approx(7e-3)
    assert float(first["iqr_frac"]) == pytest.approx(2 / 7)


def test_groups_are_repeated_one_after_the_other(tmp_path: Path) -> None:
    counted = Counted()
    plan = replace(counted.plan(), group=lambda cell: cell.position_tokens)
    cells.run(plan, tmp_path / "d.csv", lambda progress: None)
    assert [cell.position_tokens for cell, _ in counted.made] == [32] * 9 + [64] * 9
    assert [row["repetition"] for row in rows_of(tmp_path / "d.csv")][:9] == list("111222333")


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    counted, file = Counted(), tmp_path / "d.csv"

    def stop(progress) -> None:
        if progress.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cells.run(counted.plan(), file, stop)
    file.write_text(file.read_text() + "decode_step,torn")
    cells.run(counted.plan(), file, lambda progress: None)
    assert len(counted.made) == 18
    assert len(rows_of(file)) == 18
    with pytest.raises(InputError, match="measured with source a"):
        cells.run(counted.plan("b"), file, lambda progress: None)


def test_the_default_campaign_is_small_enough(monkeypatch) -> None:
    monkeypatch.setattr(cpu_plan, "thread_count", lambda: 2)
    plan = cpu_plan.make_plan(None, quick=False, steps=None)
    assert {cell.mode for cell in plan.cells} == set(CPU_MODES)
    assert len(plan.cells) == 198
    assert len(cpu_plan.make_plan(None, quick=True, steps=None).cells) == 24
    assert cpu_plan.make_plan(["cpu-mid"], quick=True, steps=3).steps == 3
    monkeypatch.setattr(cpu_plan, "thread_count", lambda: 1)
    with pytest.raises(AbsentError, match="one core cannot"):
        cpu_plan.make_plan(None, quick=True, steps=None)


@pytest.fixture
def small_campaign(monkeypatch) -> None:
    """Make the command's campaign one of tiny runs, without a GPU."""

    def small(cell: Cell, *, steps: int, threads: int, trace: bool = False):
        pages = cell.attended_tokens // PAGE
        return tiny(cell.mode, top_pages=pages, batch=cell.batch, capacity=100 + steps, trace=trace)

    monkeypatch.setattr(cpu_plan, "make_run", small)
    monkeypatch.setattr(cpu_plan, "thread_count", lambda: 2)
    monkeypatch.setattr(cpu_plan, "grid", lambda modes, *points: grid(modes, (1,), (100,), (16,)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("small_campaign")
def test_the_command_measures_resumes_and_says_where(tmp_path: Path, capsys) -> None:
    arguments = ["--out", str(tmp_path), "--modes", "dense,cpu-mid", "--steps", "3", "--trace"]
    main.main(arguments)
    said = capsys.readouterr().out
    assert [line.split()[:5] for line in said.splitlines() if " 100 " in line] == [
        ["dense", "1", "100", "100", "3"],
        ["cpu-mid", "1", "100", "16", "3"],
    ]
    assert said.splitlines()[-2:] == [
        "essim sweep validate-laptop --set hardware=mine --set workload.output_tokens=4 "
        "--set 'sweep.workload.batch=[1]' --set 'sweep.workload.input_tokens=[100]' "
        f"--out {tmp_path}/predicted.csv",
        f"essim compare {tmp_path}/predicted.csv {tmp_path}/decode.csv",
    ]
    rows = rows_of(tmp_path / "decode.csv")
    assert [(row["mode"], row["repetition"]) for row in rows] == [
        (mode, repetition) for repetition in "123" for mode in ("dense", "cpu-mid")
    ]
    assert all(0 < float(row["low_s"]) <= float(row["high_s"]) for row in rows)
    about = json.loads((tmp_path / "provenance.json").read_text())
    command = "python -m measure.decode --out DIR --modes dense,cpu-mid --steps 3 --trace"
    assert about["commands"] == [f"{about['date']} {command}"]
    assert (about["steps"], about["repetitions"]) == (3, 3)
    assert about["libraries"]["torch"] == torch.__version__
    trace = json.loads((tmp_path / "trace-cpu-mid.json").read_text())
    assert "await.3" in {event["name"] for event in trace["traceEvents"]}
    before = (tmp_path / "decode.csv").read_text()
    main.main(arguments)
    assert (tmp_path / "decode.csv").read_text() == before
    about = json.loads((tmp_path / "provenance.json").read_text())
    assert len(about["commands"]) == 2
    # A command of fewer modes takes nothing back of what is said of the others.
    main.main(["--out", str(tmp_path), "--modes", "dense", "--steps", "3"])
    after = json.loads((tmp_path / "provenance.json").read_text())
    assert after.pop("commands")[:2] == about.pop("commands")
    assert after == about
    about = json.loads((tmp_path / "provenance.json").read_text())
    with pytest.raises(SystemExit) as stop:
        main.main([*arguments[:4], "--steps", "5"])
    assert stop.value.code == 2
    assert json.loads((tmp_path / "provenance.json").read_text()) == about
    with pytest.raises(SystemExit):
        main.main([*arguments[:4], "--steps", "0"])


@pytest.mark.usefixtures("small_campaign")
def test_a_folder_that_holds_no_run_is_said(tmp_path: Path, capsys) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(SystemExit) as stop:
            main.main(["--out", str(folder), "--modes", "dense", "--steps", "3"])
        assert stop.value.code == 2
        return capsys.readouterr().err

    file = tmp_path / "provenance.json"
    file.write_text("{")
    assert f"{file}:1: is not JSON" in refused(tmp_path)
    file.write_text("[]")
    assert f"{file}: is not a JSON object" in refused(tmp_path)
    file.write_text("{}")
    assert f"{file}: measured with an unknown number of steps a cell, now 3." in refused(tmp_path)
    assert f"{file / 'provenance.json'}: cannot be written" in refused(file)
    assert [place.name for place in tmp_path.iterdir()] == ["provenance.json"]


def test_a_mode_that_this_machine_lacks_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    with pytest.raises(AbsentError, match=r"gpu_side-mid needs a GPU\. Without one: dense, gpu-t"):
        tiny("gpu_side-mid")
    with pytest.raises(AbsentError, match="no decode run of mode gpu_side-in"):
        check_mode("gpu_side-in", gpu=True)
    with pytest.raises(InputError, match="no mode 'cpu-mit'"):
        check_mode("cpu-mit", gpu=True)
    check_mode("gpu-target-fused", gpu=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        main.main(["--out", str(tmp_path), "--modes", "gpu-target-fused"])
    assert stop.value.code == 4
    assert "gpu-target-fused needs a GPU" in capsys.readouterr().err


def test_only_mix_takes_a_list_and_it_must_fit() -> None:
    settings = {"rank": 16, "channels": 8, "threads": 1}
    assert routing_of("cpu-mix", 3, mix=["in", "mid"], **settings).anchors(3) == ["in", "mid"]
    assert routing_of("cpu-mid", 3, **settings).name == "cpu-mid"
    assert routing_of("gpu-target-fused", 3, **settings).kernel == "fused"
    for mode, mix in (("cpu-mix", None), ("cpu-mix", ["in"]), ("cpu-mid", ["in", "in"])):
        with pytest.raises(InputError, match=f"mode {mode}: mix is"):
            routing_of(mode, 3, mix=mix, **settings)


def test_shapes_without_operations_are_refused() -> None:
    sliding = TINY.model_copy(update={"mixers": ["full", "sliding"] * 2, "window_tokens": 8})
    for model in (sliding, TINY.model_copy(update={"tp": 2})):
        with pytest.raises(InputError, match="knows no model like tiny"):
            Weights.random(model, 0)
    assert PRESETS["llama-3.1-8b"].count("full") == 32
