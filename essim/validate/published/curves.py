"""Figure 2's shares, Louver's latencies on a GPU and a CPU: curves of many points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from essim.methods.selectors import SELECTORS
from essim.model.shape import PRESETS
from essim.simulate.figure2 import figure2
from essim.validate.published.row import Published, read

# Llama-3.2-3B's attention, whose layer 14 Louver's benchmark takes.
_MODEL = PRESETS["llama-3.1-8b"].model_copy(update={"heads": 24, "hidden": 3072})


def figure2_comparisons() -> Iterator[Published]:
    """Yield routing's share of attention-side compute, by method and compression."""
    shares = {(row["method"], row["compression"]): row["route_share_frac"] for row in figure2()}
    for row in read("figure2.csv"):
        predicted = shares[row["method"], int(row["compression"])]
        assert isinstance(predicted, float)
        yield Published(
            system="EarlySelectKV Figure 2",
            setting=f"{row['method']}, c = {row['compression']}",
            metric="routing share",
            unit="%",
            published=float(row["share_percent"]),
            predicted=100 * predicted,
            kind="exact arithmetic",
        )


def louver_comparisons() -> Iterator[Published]:
    """Yield both curves on both devices: a latency and a rate each, from their two ends."""
    rows = list(read("louver.csv"))
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        for name in ("louver", "dense"):
            tokens = np.array([int(row["context_tokens"]) for row in own])
            chosen = SELECTORS[name].model_validate({"kind": name})
            read_bytes = chosen.read_tokens(_MODEL, tokens) * _MODEL.kv_bytes_per_token_layer()
            moved = read_bytes + chosen.route_work(_MODEL, tokens, None).read_bytes
            times_ms = np.array([float(row[f"{name}_ms"]) for row in own])
            slope = (times_ms[-1] - times_ms[0]) / (moved[-1] - moved[0])
            predicted = times_ms[0] + slope * (moved - moved[0])
            for i, row in enumerate(own):
                yield Published(
                    system="Louver",
                    setting=f"{row['context_tokens']} tokens, {device}",
                    metric=f"{name} attention",
                    unit="ms",
                    published=float(times_ms[i]),
                    predicted=float(predicted[i]),
                    kind="table",
                    fitted=2,
                    fitted_on=2,
                    held_out=0 < i < len(own) - 1,
                )
