"""Quality against throughput: this run's settings, each where it can be routed, as simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from essim.api.calls import run
from essim.errors import InputError
from essim.methods.routing import PLACEMENTS
from essim.methods.selectors import SELECTORS
from essim.results.column import Row, number
from measure.fidelity.queries import EARLY

Selector = Callable[[int, Mapping[str, Any]], dict[str, Any]]


def _rocketkv(budget: int, base: Mapping[str, Any]) -> dict[str, Any]:
    page = int(base["page_tokens"])
    settings = {"page_tokens": page, "top_pages": budget // page, "kv_block_tokens": page}
    return {"prompt_budget": base["prompt_budget"]} | settings


# How the simulator names a selector's budget.
_SETTINGS: dict[str, Selector] = {
    "rocketkv": _rocketkv,
    "quest": lambda budget, _: {"budget_tokens": budget},
    "loki": lambda budget, _: {"top_tokens": budget},
    "exact_topk": lambda budget, _: {"top_tokens": budget},
}


def frontier(
    rows: Sequence[Row],
    model: str,
    scenario: str,
    hardware: str | None,
    page_tokens: int,
    tell: Callable[[str, int, int], None],
) -> list[Row]:
    """Return a row a setting and place of routing: this model's quality, a scenario's throughput.

    Parameters
    ----------
    rows
        Of `quality_rows`, over all domains.
    model
        Name of the model that quality is of.
    scenario, hardware
        What is simulated, and another profile than the scenario's.

    Returns
    -------
    list of Row
        ``frontier`` is "yes" where no other point is better in both; ``reason`` says why a point
        has no throughput.
    """
    set_: dict[str, Any] = {} if hardware is None else {"hardware": hardware}
    base = run(scenario, set=set_)
    start = {"page_tokens": page_tokens, "prompt_budget": base["prompt_budget"] or 4096}
    points = [point for row in rows for point in _points(row, start)]
    found: list[Row] = []
    for done, (row, where, changes) in enumerate(points):
        tell("throughput", done, len(points))
        names = ("selector", "query", "projection_rank", "budget_tokens", "kl_nats", "kl_se_nats")
        of: Row = {name: row.get(name) for name in names} | {"where": where, "quality_of": model}
        found.append(of | _simulated(scenario, set_ | changes))
    _mark(found)
    return found


def _points(row: Row, start: Mapping[str, Any]) -> Iterator[tuple[Row, str | None, dict[str, Any]]]:
    """Yield a setting with each place that may route it, as changes of the scenario."""
    kind, anchor = str(row["selector"]), row.get("query")
    if kind == "dense":
        yield row, None, {"selector": {"kind": "dense"}}
    if kind not in _SETTINGS or kind not in SELECTORS or anchor not in ("target", *EARLY):
        return
    selector = {"kind": kind} | _SETTINGS[kind](int(str(row["budget_tokens"])), start)
    for where, placement in PLACEMENTS.items():
        if anchor in placement.refused:
            continue
        routing = {"where": where, "anchor": anchor, "projection_rank": row["projection_rank"]}
        if placement.device == "gpu" and kind == "rocketkv":
            routing["kernel"] = "fused"
        yield row, where, {"selector": selector, "routing": routing}


def _simulated(scenario: str, changes: Mapping[str, Any]) -> Row:
    """Return the throughput of a point, or why it has none."""
    try:
        result = run(scenario, set=changes)
    except InputError as error:
        return {"decode_tokens_per_s": None, "throughput_of": None, "reason": error.message}
    load = f"batch {result['batch']}, {result['input_tokens']} input tokens"
    return {
        "decode_tokens_per_s": number(result["decode_tokens_per_s"]),
        "throughput_of": f"{result['model']} on {result['hardware']}, {load}",
        "reason": result["reason"],
    }


def _mark(rows: list[Row]) -> None:
    """Mark the points that no other beats in both throughput and divergence."""
    for row in rows:
        speed, loss = number(row["decode_tokens_per_s"]), number(row["kl_nats"])
        row["frontier"] = None
        if speed is None or loss is None:
            continue
        better = (
            other
            for other in rows
            if (theirs := number(other["decode_tokens_per_s"])) is not None
            and (lost := number(other["kl_nats"])) is not None
            and theirs >= speed
            and lost <= loss
            and (theirs, lost) != (speed, loss)
        )
        row["frontier"] = None if any(True for _ in better) else "yes"
