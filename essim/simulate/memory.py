"""Memory of a point: every byte by what it holds and where, and the largest batch that fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from essim.hardware.profile import HardwareProfile
from essim.methods.selectors import Selector
from essim.model.shape import ModelShape
from essim.simulate.scenario import Scenario


@dataclass(frozen=True)
class Memory:
    """Bytes a point needs.

    Attributes
    ----------
    kv_bytes
        KV cache of the batch when its last token is made.
    kv_peak_bytes
        KV cache while the last sequence is prefilled: its whole prompt, before eviction, beside
        the compacted caches of the others. The larger of the two must fit.
    summary_gpu_bytes, summary_cpu_bytes
        Page summaries, by where routing reads them; the pool covers all layers. The host's include
        the KV that a method keeps there.
    proxy_gpu_bytes, proxy_cpu_bytes
        Factors of the low-rank proxy projection.
    activation_bytes
        Prefill of one whole prompt: residual, normed input, and the widest of QKV and the gated
        MLP (3 ffn, of all experts a token takes), in 16 bits; stage-1 scores of 32 queries in
        fp32; logits of the batch in fp32.
    state_bytes
        Recurrent states of the batch, of layers without attention.
    reserve_gpu_bytes, reserve_cpu_bytes
        `reserve_frac` of the memory: CUDA context, workspaces, graphs, fragmentation.
    """

    weight_bytes: int
    kv_bytes: int
    kv_peak_bytes: int
    summary_gpu_bytes: int
    summary_cpu_bytes: int
    proxy_gpu_bytes: int
    proxy_cpu_bytes: int
    activation_bytes: int
    reserve_gpu_bytes: int
    reserve_cpu_bytes: int
    state_bytes: int = 0

    @property
    def gpu_bytes(self) -> int:
        """Everything the GPU must hold at once."""
        kv = max(self.kv_bytes, self.kv_peak_bytes)
        held = self.weight_bytes + kv + self.state_bytes + self.summary_gpu_bytes
        return held + self.proxy_gpu_bytes + self.activation_bytes + self.reserve_gpu_bytes

    @property
    def cpu_bytes(self) -> int:
        """Everything the host must hold at once."""
        return self.summary_cpu_bytes + self.proxy_cpu_bytes + self.reserve_cpu_bytes


def memory(scenario: Scenario, profile: HardwareProfile, batch: int | None = None) -> Memory:
    """Return the bytes of a point, for `batch` sequences (default: the scenario's).

    With several ranks these are of one GPU, and of the host that serves all of them.

    Raises
    ------
    InputError
        If layers without attention are of unknown size.
    """
    model, load = scenario.model.rank(), scenario.workload
    selector = scenario.resolved_selector()
    batch = batch or load.batch
    kept = selector.kept_prompt_tokens(load.input_tokens)
    new_tokens = load.output_tokens - 1
    final_slots = kv_slots(selector, selector.cached_tokens(kept + new_tokens))
    seen_slots = kv_slots(selector, load.input_tokens + new_tokens)
    kept_slots = kv_slots(selector, selector.cached_tokens(kept))
    prompt_slots = kv_slots(selector, load.input_tokens)
    offloaded = selector.offloaded_bytes_per_token_layer(model)
    all_slots = kv_slots(selector, kept + new_tokens)
    layer_slots = batch * len(model.full_layers()) * (all_slots if offloaded else final_slots)
    summary = math.ceil(layer_slots * selector.summary_bytes_per_token_layer(model))
    host_kv = math.ceil(layer_slots * offloaded)
    on_cpu = scenario.routing.placement.device == "cpu" and selector.query_conditioned
    proxy_gpu, proxy_cpu = _proxy_bytes(scenario, model) if selector.query_conditioned else (0, 0)
    reserve = scenario.memory.reserve_frac
    return Memory(
        weight_bytes=model.weight_bytes(),
        kv_bytes=batch * model.kv_bytes(final_slots, seen_slots),
        kv_peak_bytes=(batch - 1) * model.kv_bytes(kept_slots, prompt_slots)
        + model.kv_bytes(prompt_slots, prompt_slots),
        summary_gpu_bytes=0 if on_cpu else summary,
        summary_cpu_bytes=scenario.model.tp * (summary * on_cpu + host_kv),
        proxy_gpu_bytes=proxy_gpu,
        proxy_cpu_bytes=scenario.model.tp * proxy_cpu,
        activation_bytes=prefill_bytes(model, selector, load.input_tokens)
        + batch * model.vocab * 4,
        reserve_gpu_bytes=math.ceil(reserve * profile.spec.gpu.memory_bytes.value),
        reserve_cpu_bytes=math.ceil(reserve * profile.spec.cpu.memory_bytes.value),
        state_bytes=batch * model.state_bytes(),
    )


def kv_slots(selector: Selector, tokens: int) -> int:
    """Return token slots: whole KV blocks are allocated."""
    block = selector.table_conditions().get("kv_block_tokens", 1)
    return math.ceil(tokens / block) * block


def prefill_bytes(model: ModelShape, selector: Selector, tokens: int) -> int:
    """Return bytes of activations of a prompt's prefill, and of its stage-1 scores."""
    activations = tokens * (2 * model.hidden + max(map(_widest, model.parts())))
    activations *= model.activation_bytes
    return activations + (model.heads * 32 * tokens * 4 if selector.evicts(tokens) else 0)


def _widest(model: ModelShape) -> int:
    """Return the widest row of activations: QKV, or what the MLPs of one token hold."""
    attention = model.q_width + 2 * model.kv_width
    if model.mla:
        attention = model.q_width + model.gemm_shape("kv_b")[0]
    mlps = [model.ffn] if model.count("dense") else []
    if model.moe:
        mlps.append(model.moe.experts_per_token * model.moe.ffn + model.moe.shared_ffn)
    return max(attention, (2 + model.gated_mlp) * max(mlps, default=0))


def _proxy_bytes(scenario: Scenario, model: ModelShape) -> tuple[int, int]:
    """Return (GPU, CPU) bytes of the proxy projection's factors over the routed layers.

    The full projection is the model's own W_q: on the GPU it is there already.
    """
    routing, dense = scenario.routing, scenario.selector.dense_layers()
    layers = sum(layer >= dense for layer in model.full_layers())
    element, on_cpu = model.activation_bytes, routing.placement.device == "cpu"
    if not routing.early:
        return 0, 0
    if routing.projection_rank is None:
        full = layers * model.hidden * model.q_width * element
        return (0, full) if on_cpu else (0, 0)
    down = layers * routing.projection_rank * model.hidden * element
    up = layers * routing.projection_rank * model.q_width * element
    if not on_cpu:
        return down + up, 0
    return (down, up) if routing.down_projection == "gpu" else (0, down + up)


def shortage(scenario: Scenario, profile: HardwareProfile, batch: int | None = None) -> str:
    """Return why a point does not fit, or an empty string."""
    need = memory(scenario, profile, batch)
    for place, asked, has in (
        ("GPU", need.gpu_bytes, profile.spec.gpu.memory_bytes.value),
        ("CPU", need.cpu_bytes, profile.spec.cpu.memory_bytes.value),
    ):
        if asked > has:
            return f"needs {asked / 1e9:.1f} GB of {place} memory, which has {has / 1e9:.1f} GB"
    return ""


def max_batch(scenario: Scenario, profile: HardwareProfile) -> int:
    """Return the largest batch that fits, 0 if not even one sequence does.

    The inverse of `memory`: it fits, and one sequence more does not.
    """
    low, high = 0, 1
    while not shortage(scenario, profile, high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shortage(scenario, profile, middle) else (middle, high)
    return low
