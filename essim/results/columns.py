"""What each column of a result is: its type, unit, heading, meaning, and how it is shown."""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypedDict

from essim.results.column import (
    GAIN,
    GIBIBYTES,
    MILLISECONDS,
    PLAIN,
    RATE,
    ROUND_MICROSECONDS,
    ROUND_SHARE,
    SECONDS,
    TOKENS,
    Column,
    Rows,
    columns_in,
)
from essim.results.prices import PriceSources

_Text: TypeAlias = str | None
_Count: TypeAlias = int | None
_Number: TypeAlias = float | None


class ResultRow(TypedDict, total=False):
    """A point's result; a swept key without a field here has a column of its own besides."""

    name: Annotated[str, Column("", "name", "of the scenario")]
    model: Annotated[str, Column("", "model", "name of the model")]
    hardware: Annotated[str, Column("", "hardware", "the profile")]
    selector: Annotated[str, Column("", "selector", "`selector.kind`")]
    routing: Annotated[str, Column("", "routing", "name of the routing; `none` for `dense`")]
    where: Annotated[_Text, Column("", "where", "`routing.where`")]
    anchor: Annotated[_Text, Column("", "anchor", "`routing.anchor`")]
    mix: Annotated[_Text, Column("", "mix", "anchors of `mix`, by layer")]
    kernel: Annotated[_Text, Column("", "kernel", "`routing.kernel`; empty on the CPU")]
    projection_rank: Annotated[
        _Count, Column("", "projection rank", "`routing.projection_rank` of an early anchor")
    ]
    channels: Annotated[_Count, Column("", "channels", "key channels that scoring reads")]
    cpu_threads: Annotated[_Count, Column("", "cpu threads", "`routing.cpu_threads`, on the CPU")]
    prompt_budget: Annotated[_Count, Column("tokens", "prompt budget", "`selector.prompt_budget`")]
    budget_tokens: Annotated[
        _Count, Column("tokens", "budget", "`selector.budget_tokens`", TOKENS, "budget")
    ]
    top_tokens: Annotated[_Count, Column("tokens", "top", "`selector.top_tokens`", TOKENS)]
    page_tokens: Annotated[
        _Count, Column("tokens", "page", "`selector.page_tokens`", TOKENS, "page")
    ]
    top_pages: Annotated[_Count, Column("", "top pages", "`selector.top_pages`")]
    kv_block_tokens: Annotated[
        _Count, Column("tokens", "kv block", "`selector.kv_block_tokens`", TOKENS)
    ]
    per: Annotated[_Text, Column("", "per", "`selector.per`")]
    dense_layer_count: Annotated[
        _Count, Column("", "dense layer count", "`selector.dense_layer_count`")
    ]
    weight_dtype: Annotated[str, Column("", "weight dtype", "`model.weight_dtype`")]
    kv_dtype: Annotated[str, Column("", "kv dtype", "`model.kv_dtype`")]
    summary_dtype: Annotated[_Text, Column("", "summary dtype", "`selector.summary_dtype`")]
    tp: Annotated[int, Column("", "ranks", "`model.tp`: the GPUs that share the model")]
    baseline: Annotated[str, Column("", "baseline", "`compare.baseline`: what gains are against")]
    batch: Annotated[int, Column("", "batch", "`workload.batch`")]
    input_tokens: Annotated[
        int, Column("tokens", "input length", "`workload.input_tokens`", TOKENS, "input")
    ]
    output_tokens: Annotated[
        int, Column("tokens", "output length", "`workload.output_tokens`, N", TOKENS, "output")
    ]
    attended_tokens: Annotated[
        int,
        Column(
            "tokens",
            "attended",
            "a routed layer's attended tokens at the last step",
            TOKENS,
            "attended",
        ),
    ]
    mean_read_tokens: Annotated[
        float,
        Column(
            "tokens",
            "mean read",
            "KV tokens a KV head reads at the last step, mean over layers with full attention: "
            "dense ones read all; a scan of all keys counts half",
            TOKENS,
        ),
    ]
    read_ratio: Annotated[
        _Number,
        Column("1", "read ratio", "cached tokens over `mean_read_tokens`, at the last step"),
    ]
    status: Annotated[str, Column("", "status", "`ok` or `infeasible`")]
    reason: Annotated[_Text, Column("", "reason", "why it is infeasible, or has no gain")]
    assumes: Annotated[_Text, Column("", "assumes", "a rate that depends on the data, and whose")]
    decode_tokens_per_s: Annotated[
        _Number,
        Column("tokens/s", "decode throughput", "batch (N-1) / `decode_s`", RATE, "tokens/s"),
    ]
    decode_tokens_per_s_low: Annotated[
        _Number,
        Column(
            "tokens/s",
            "decode throughput, slow end",
            "at the slow end of the profile's ranges; capacities stay at their value; empty where "
            "it has no ranges",
            RATE,
        ),
    ]
    decode_tokens_per_s_high: Annotated[
        _Number,
        Column("tokens/s", "decode throughput, fast end", "the same at the fast end", RATE),
    ]
    decode_tokens_per_s_p5: Annotated[
        _Number,
        Column(
            "tokens/s",
            "decode throughput, 5th percentile",
            "5% of draws of the tables' errors give less "
            "([how](model.md#how-sure-a-rate-is)); empty where no table has held-out points",
            RATE,
        ),
    ]
    decode_tokens_per_s_p50: Annotated[
        _Number,
        Column("tokens/s", "decode throughput, median", "half of the draws give less", RATE),
    ]
    decode_tokens_per_s_p95: Annotated[
        _Number,
        Column(
            "tokens/s", "decode throughput, 95th percentile", "95% of the draws give less", RATE
        ),
    ]
    output_tokens_per_s: Annotated[
        _Number,
        Column("tokens/s", "end-to-end throughput", "batch N / (`prefill_s` + `decode_s`)", RATE),
    ]
    output_tokens_per_s_low: Annotated[
        _Number,
        Column(
            "tokens/s", "end-to-end throughput, slow end", "at the slow end of the ranges", RATE
        ),
    ]
    output_tokens_per_s_high: Annotated[
        _Number,
        Column(
            "tokens/s", "end-to-end throughput, fast end", "at the fast end of the ranges", RATE
        ),
    ]
    prefill_s: Annotated[_Number, Column("s", "prefill", "of the whole batch", SECONDS)]
    decode_s: Annotated[_Number, Column("s", "decode", "of the whole batch", SECONDS)]
    step_s: Annotated[_Number, Column("s", "mean step", "mean decode step", MILLISECONDS, "step")]
    tpot_s: Annotated[
        _Number, Column("s", "time per output token", "equal to `step_s`", MILLISECONDS)
    ]
    exposed_routing_s: Annotated[
        _Number,
        Column(
            "s",
            "exposed routing per step",
            "mean step minus the mean step with routing and hand-over at zero",
            ROUND_MICROSECONDS,
            "exposed",
        ),
    ]
    gpu_busy_frac: Annotated[
        _Number,
        Column("1", "GPU busy", "busy main stream; spinning in `await` is not", ROUND_SHARE),
    ]
    cpu_busy_frac: Annotated[
        _Number, Column("1", "CPU busy", "busy share of the CPU router", ROUND_SHARE, "CPU busy")
    ]
    kv_bytes: Annotated[int, Column("bytes", "KV cache", "KV at the last token", GIBIBYTES)]
    kv_peak_bytes: Annotated[
        int, Column("bytes", "kv peak", "KV at prefill of the last sequence", GIBIBYTES)
    ]
    summary_gpu_bytes: Annotated[
        int, Column("bytes", "K-summary on the GPU", "page summaries on the GPU", GIBIBYTES)
    ]
    summary_cpu_bytes: Annotated[
        int, Column("bytes", "K-summary on the CPU", "page summaries on the CPU", GIBIBYTES)
    ]
    max_batch: Annotated[
        int,
        Column(
            "", "largest batch that fits", "sequences that fit, all else equal", PLAIN, "max batch"
        ),
    ]
    decode_gain_frac: Annotated[
        _Number,
        Column(
            "1",
            "decode gain",
            "decode rate over that with the baseline routing, less one",
            GAIN,
            "gain",
        ),
    ]
    decode_gain_frac_p5: Annotated[
        _Number,
        Column(
            "1",
            "decode gain, 5th percentile",
            "5% of draws give less: both runs have the same errors of the tables that they share",
            GAIN,
        ),
    ]
    decode_gain_frac_p95: Annotated[
        _Number, Column("1", "decode gain, 95th percentile", "95% of the draws give less", GAIN)
    ]
    output_gain_frac: Annotated[
        _Number,
        Column("1", "end-to-end gain", "the same of `output_tokens_per_s`", GAIN, "end to end"),
    ]
    gain_ceiling_frac: Annotated[
        _Number,
        Column(
            "1",
            "largest possible decode gain",
            "decode gain over the baseline if its routing cost nothing",
            GAIN,
            "ceiling",
        ),
    ]
    output_ceiling_frac: Annotated[
        _Number, Column("1", "largest possible end-to-end gain", "the same end to end", GAIN)
    ]
    gain_over_dense_frac: Annotated[
        _Number,
        Column(
            "1",
            "decode gain over dense",
            "decode rate over that of dense attention at the same point, less one",
            GAIN,
            "vs dense",
        ),
    ]
    dense_ceiling_frac: Annotated[
        _Number,
        Column(
            "1",
            "largest possible gain over dense",
            "decode gain over dense if attention cost nothing",
            GAIN,
        ),
    ]
    measured_frac: Annotated[
        _Number,
        Column(
            "1",
            "priced from measurements",
            "share of the decode ops' time that is measured or interpolated",
            ROUND_SHARE,
        ),
    ]
    price_sources: Annotated[
        PriceSources | None,
        Column("", "price sources", "every op kind under the worst source of its price"),
    ]
    prefill_sources: Annotated[
        PriceSources | None, Column("", "prefill sources", "the same of prefill")
    ]
    step_off_s: Annotated[
        _Number,
        Column("s", "step off by", "how far `step_s` may be from one by one", ROUND_MICROSECONDS),
    ]
    engine: Annotated[str, Column("", "engine", "what computed it")]
    seed: Annotated[int, Column("", "seed", "of the CPU router's jitter and of the draws")]
    settings: Annotated[_Text, Column("", "settings", "JSON of swept keys that have no column")]


COLUMNS = columns_in(ResultRow)
# The columns that say which point it is: the scenario's fields.
FIELDS = tuple(COLUMNS)[: list(COLUMNS).index("attended_tokens")]


def differing(rows: Rows) -> list[str]:
    """Return the columns that tell points apart: the scenario's fields with several values."""
    follow = ("where", "anchor", "kernel")  # the routing's name says these
    extra = [key for key in (rows[0] if rows else {}) if key not in COLUMNS]
    return [
        key
        for key in (*FIELDS, *extra)
        if key not in follow and len({row.get(key) for row in rows} - {None}) > 1
    ]


def unique(rows: Rows, key: str) -> list[object]:
    """Return the distinct values of a column in order of first appearance, without None."""
    return list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None))


def columns_of(rows: Rows) -> dict[str, Column]:
    """Return all columns of a result's rows: those of swept keys first, then `COLUMNS`."""
    swept = {key: Column("", key, name=key) for key in (rows[0] if rows else {})}
    return {key: column for key, column in swept.items() if key not in COLUMNS} | COLUMNS
