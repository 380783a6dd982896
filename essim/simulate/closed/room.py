"""Bytes of many points at once: `essim.simulate.memory` on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essim.hardware.profile import HardwareProfile
from essim.methods.selectors import Selector
from essim.simulate.memory import memory, prefill_bytes
from essim.simulate.scenario import Scenario

Counts = NDArray[np.int64]

# No batch is as large.
_MOST_BATCH = 1 << 24


@dataclass(frozen=True)
class Room:
    """Bytes of points that differ in batch and workload.

    Parameters
    ----------
    point
        One of them.
    selector
        Resolved, the same of all.
    input_tokens, output_tokens
        Shape [runs].
    """

    point: Scenario
    selector: Selector
    profile: HardwareProfile
    input_tokens: Counts
    output_tokens: Counts

    @cached_property
    def _unit(self) -> dict[str, Any]:
        """Bytes for each sequence of the batch, and those that are there once."""
        model, selector = self.point.model.rank(), self.selector
        block = selector.table_conditions().get("kv_block_tokens", 1)
        kept = _each(self.input_tokens, selector.kept_prompt_tokens)
        new = self.output_tokens - 1
        final, seen, kept_slots, prompt = (
            -(-tokens // block) * block
            for tokens in (kept + new, self.input_tokens + new, kept, self.input_tokens)
        )
        window = model.window_tokens or 0
        # Bytes are so much for a slot of a full layer, and so much for one of a sliding one.
        full, sliding = model.kv_bytes(1, 0), model.kv_bytes(0, 1) if window else 0

        def kv(cached: Counts, sequence: Counts) -> Counts:
            return np.asarray(full * cached + sliding * np.minimum(sequence, window))

        each = selector.summary_bytes_per_token_layer(model)
        return {
            "kv": kv(final, seen),
            "kv_kept": kv(kept_slots, prompt),
            "kv_whole": kv(prompt, prompt),
            "summary": (final * len(model.full_layers()), each),
            "prefill": _each(self.input_tokens, lambda n: prefill_bytes(model, selector, n)),
            "logits": model.vocab * 4,
            "state": model.state_bytes(),
            "fixed": memory(self.point, self.profile, 1),
        }

    def bytes(self, batch: Counts) -> dict[str, Counts]:
        """Return what `Memory` has that depends on the workload; `batch` broadcasts with runs."""
        unit = self._unit
        slots, each = unit["summary"]
        summary = np.ceil(batch * slots * each).astype(np.int64)
        routes = self.selector.query_conditioned
        on_cpu = self.point.routing.placement.device == "cpu" and routes
        return {
            "kv_bytes": batch * unit["kv"],
            "kv_peak_bytes": (batch - 1) * unit["kv_kept"] + unit["kv_whole"],
            "summary_gpu_bytes": np.zeros_like(summary) if on_cpu else summary,
            "summary_cpu_bytes": self.point.model.tp * summary if on_cpu else 0 * summary,
            "activation_bytes": unit["prefill"] + batch * unit["logits"],
            "state_bytes": batch * unit["state"],
        }

    def needs(self, batch: Counts) -> tuple[Counts, Counts]:
        """Return what GPU and CPU must hold at once."""
        fixed, part = self._unit["fixed"], self.bytes(batch)
        kv = np.maximum(part["kv_bytes"], part["kv_peak_bytes"])
        held = fixed.weight_bytes + fixed.proxy_gpu_bytes + fixed.reserve_gpu_bytes
        gpu = held + kv + part["summary_gpu_bytes"] + part["activation_bytes"]
        cpu = fixed.proxy_cpu_bytes + fixed.reserve_cpu_bytes + part["summary_cpu_bytes"]
        return gpu + part["state_bytes"], cpu

    def shortages(self, batch: Counts) -> NDArray[np.object_]:
        """Return why each point does not fit, or an empty string; shape [batches, runs]."""
        found = np.full(np.broadcast_shapes(batch.shape, self.input_tokens.shape), "", object)
        spec = self.profile.spec
        sizes = (spec.gpu.memory_bytes.value, spec.cpu.memory_bytes.value)
        places = list(zip(("GPU", "CPU"), self.needs(batch), sizes, strict=True))
        for place, asked, has in reversed(places):
            for at in zip(*np.nonzero(asked > has), strict=True):
                needs = f"needs {asked[at] / 1e9:.1f} GB of {place} memory"
                found[at] = f"{needs}, which has {has / 1e9:.1f} GB"
        return found

    def max_batch(self) -> Counts:
        """Return the largest batch that fits, 0 if not even one sequence does; shape [runs]."""
        spec = self.profile.spec
        low = np.zeros_like(self.input_tokens)
        high = np.full_like(low, _MOST_BATCH)
        while (high - low > 1).any():
            middle = (low + high) // 2
            gpu, cpu = self.needs(middle)
            fits = (gpu <= spec.gpu.memory_bytes.value) & (cpu <= spec.cpu.memory_bytes.value)
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return low


def _each(tokens: Counts, call: object) -> Counts:
    """Return what a function of one number returns for each of many."""
    assert callable(call)
    values, at = np.unique(tokens, return_inverse=True)
    found: Sequence[int] = [call(int(value)) for value in values]
    return np.array(found, dtype=np.int64)[at]
