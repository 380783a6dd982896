"""Work of selectors besides routing: what is kept, fetched, corrected, and chosen in prefill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from essim.methods.selectors import RouteWork
from essim.step.kinds.case import Case, Kind, Point, Work
from essim.step.kinds.layer import LAYER_KINDS
from essim.step.kinds.prefill import PREFILL_KINDS


def _attn_kept(case: Case, point: Point) -> Work:
    """Dense attention over what a method keeps."""
    kept = case.selector.attended_tokens(point.context_tokens)
    return LAYER_KINDS["attn_dense"].work(case, Point(point.batch, point.rows, kept))


def _phases(table: str, work: RouteWork, batch: int) -> Work:
    """Return the op of some phases that no table is of."""
    return Work(
        table,
        axes={"batch": batch},
        byte_count=batch * work.read_bytes + work.weight_bytes,
        flops=batch * work.flops,
        launches=work.launches,
        family="router",
        phases=work.phases,
    )


def _select_after(case: Case, point: Point) -> Work:
    """What follows attention: corrections, sums, evictions."""
    after = case.selector.after_work(case.model, point.context_tokens)
    return _phases("select_after", after, point.batch)


def _kv_fetch(case: Case, point: Point) -> Work:
    """KV of the chosen tokens that the host holds."""
    moved = point.batch * case.selector.fetched_bytes(case.model, point.context_tokens)
    return Work("kv_fetch", axes={"payload_bytes": moved}, byte_count=moved, device="h2d")


def _prefill_select(case: Case, point: Point) -> Work:
    """What choosing takes in a layer's prefill."""
    return _phases("prefill_select", case.selector.prefill_work(case.model, point.rows), 1)


def _attn_prefill_sparse(case: Case, point: Point) -> Work:
    """A share of a prompt's causal attention, at the rate of all of it."""
    whole = PREFILL_KINDS["attn_prefill"].work(case, point)
    density = case.selector.prefill_density(point.rows)
    flops = np.asarray(whole.flops) * density
    return replace(whole, table="attn_prefill_sparse", flops=flops, share=("attn_prefill", density))


CHOICE_KINDS = {
    "attn_kept": Kind(_attn_kept, "attention", tables=("attn_dense",)),
    "select_after": Kind(_select_after, "attention", tables=()),
    "kv_fetch": Kind(_kv_fetch, "attention", tables=()),
    "prefill_select": Kind(_prefill_select, tables=()),
    "attn_prefill_sparse": Kind(_attn_prefill_sparse, "attention", tables=()),
}
