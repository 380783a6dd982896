"""Work of a prefill: causal attention, stage-1 selection, summaries and their copy."""

from __future__ import annotations

from dataclasses import replace

from essim.step.kinds.case import Case, Kind, Point, Work


def _attn_prefill(case: Case, point: Point) -> Work:
    """Causal attention over the whole prompt: half the square."""
    model, tokens = case.model, float(point.rows)
    return Work(
        "attn_prefill",
        axes={"rows": point.rows},
        byte_count=tokens * (2 * model.q_width + 2 * model.kv_width) * model.activation_bytes,
        flops=2.0 * tokens * tokens * model.q_width,
    )


def _attn_prefill_window(case: Case, point: Point) -> Work:
    """Causal attention where a token sees its window: the whole triangle, less what lies before."""
    whole = _attn_prefill(case, point)
    beyond = max(0, point.rows - (case.model.window_tokens or 0))
    unseen = 2.0 * beyond * beyond * case.model.q_width
    table = "attn_prefill_window" if beyond else whole.table
    return replace(whole, table=table, flops=whole.flops - unseen)


def _stage1_select(case: Case, point: Point) -> Work:
    """Scores of the last 32 queries against the prompt, softmax, pool, top-k, then compaction.

    Scores in fp32 are written once and read four times (softmax in three passes, then the sum).
    """
    model, tokens = case.model, float(point.rows)
    kept = case.selector.kept_prompt_tokens(point.rows)
    scores = model.heads * 32 * tokens
    keys = tokens * model.kv_bytes_per_token_layer() / 2
    compacted = 2.0 * kept * model.kv_bytes_per_token_layer()
    return Work(
        "stage1_select",
        axes={"rows": point.rows},
        byte_count=keys + 5 * 4 * scores + compacted,
        flops=2.0 * scores * model.head_dim,
        launches=10,
    )


def _summary_build(case: Case, point: Point) -> Work:
    kept = case.selector.kept_prompt_tokens(point.rows)
    keys = kept * case.model.kv_bytes_per_token_layer() / 2
    summaries = kept * case.selector.summary_bytes_per_token_layer(case.model)
    table = case.selector.summary_table
    return Work(table, axes={"rows": kept}, byte_count=keys + summaries)


def _summary_d2h(case: Case, point: Point) -> Work:
    kept = case.selector.kept_prompt_tokens(point.rows)
    moved = kept * case.selector.summary_bytes_per_token_layer(case.model)
    return Work("summary_d2h", axes={"payload_bytes": moved}, byte_count=moved, device="d2h")


PREFILL_KINDS = {
    "attn_prefill": Kind(_attn_prefill, "attention"),
    "attn_prefill_window": Kind(_attn_prefill_window, "attention"),
    "stage1_select": Kind(_stage1_select),
    "summary_build": Kind(_summary_build, tables=()),
    "summary_d2h": Kind(_summary_d2h, "routing"),
}
