"""Where every byte of a point comes from, line by line, and how much fits."""

from __future__ import annotations

from essim.hardware.profile import HardwareProfile
from essim.model.shape import ATTENDS, ModelShape, Recurrent, dtype_bytes
from essim.results.column import Row
from essim.simulate.memory import Memory, kv_slots, max_batch, memory
from essim.simulate.scenario import Scenario
from essim.text.units import format_bytes


def derivation(point: Scenario, profile: HardwareProfile) -> list[Row]:
    """Return the lines of ``essim memory``: place, what, formula, bytes.

    Lines whose `place` is ``per token`` or ``per sequence`` explain the ones below; those of GPU
    and CPU add up to their ``total``.
    """
    unknown, point = point.model.unknown(), _without_unknown(point)
    model, load = point.model.rank(), point.workload
    kept = point.resolved_selector().kept_prompt_tokens(load.input_tokens)
    per_sequence = memory(point, profile).kv_bytes // load.batch
    how = f"{kept} kept + {load.output_tokens - 1} new tokens, whole KV blocks" + _of_one(point)
    formula = _kv_formula(model) + _of_one(point)
    lines = [
        _line("per token", "KV", formula, model.kv_bytes_per_token()),
        _line("per sequence", "KV at the last token", how, per_sequence),
        *_summary_lines(point, profile),
    ]
    pools = _pools(point, profile)
    if unknown:
        return lines + [line for line in pools if line["what"] not in _OF_WEIGHTS]
    return lines + pools + _over_ranks(point, profile)


# What is left out where the weights of some layers are not known.
_OF_WEIGHTS = ("weights", "total", "free")


def _without_unknown(point: Scenario) -> Scenario:
    """Return a point of which what is not known counts nothing."""
    if not point.model.unknown():
        return point
    return point.model_copy(
        update={"model": point.model.model_copy(update={"recurrent": Recurrent()})}
    )


def _over_ranks(point: Scenario, profile: HardwareProfile) -> list[Row]:
    """Return the sums over the ranks of tensor parallelism: of what each of them has."""
    ranks, one, need = point.model.tp, point.model.rank(), memory(point, profile)
    if ranks == 1:
        return []
    kv, once = one.kv_bytes_per_token(), point.model.kv_bytes_per_token()
    pool = max(need.kv_bytes, need.kv_peak_bytes)
    place = f"{ranks} ranks"
    return [
        _line(place, "KV per token", f"{ranks} x {kv:,}; each head once: {once:,}", ranks * kv),
        _line(place, "weights", f"{ranks} x {need.weight_bytes:,}", ranks * need.weight_bytes),
        _line(place, "KV pool", f"{ranks} x {pool:,}", ranks * pool),
        _line(place, "GPU total", f"{ranks} x {need.gpu_bytes:,}", ranks * need.gpu_bytes),
    ]


def _summary_lines(point: Scenario, profile: HardwareProfile) -> list[Row]:
    """Return the lines that explain the page summaries, none where there are none."""
    model, load, selector = point.model.rank(), point.workload, point.resolved_selector()
    layer_bytes = selector.summary_bytes_per_token_layer(model)
    if not layer_bytes:
        return []
    need, full = memory(point, profile), model.full_layers()
    last = selector.kept_prompt_tokens(load.input_tokens) + load.output_tokens - 1
    served = point.model.tp if need.summary_cpu_bytes else 1
    routed, dense = sum(i >= selector.dense_layers() for i in full), selector.dense_layers()
    made_of = f"{selector.summary_of} of {model.kv_width} key values a page x {len(full)} layers"
    read = f"{routed} layers: the first {dense} attend densely"
    how = f"{last} tokens, whole KV blocks" + (f", of {served} ranks" if served > 1 else "")
    held = (need.summary_gpu_bytes + need.summary_cpu_bytes) // load.batch
    return [
        _line("per token", "summary", made_of, round(layer_bytes * len(full))),
        _line("per token", "summary that is read", read, round(layer_bytes * routed)),
        _line("per sequence", "summary at the last token", how, held),
    ]


def _kv_formula(model: ModelShape) -> str:
    """Return what one token's KV is made of, layer by layer."""
    element = f"{dtype_bytes(model.kv_dtype)} B {model.kv_dtype}"
    if model.kv_scale_group:
        element += f" with a 16-bit scale for {model.kv_scale_group}"
    full, sliding = model.count("full"), model.count("sliding")
    layers = f"{full + sliding} layers"
    if sliding:
        layers += f", {sliding} of which keep at most {model.window_tokens} tokens"
    if model.mla:
        return f"a latent of {model.mla.latent_width} x {element} x {layers}"
    heads = " + ".join(
        f"{sum(map(part.count, ATTENDS))} layers x {part.kv_heads} heads x {part.head_dim}"
        for part in model.parts()
    )
    if model.other_layers:
        return f"K and V x {element} x ({heads}), {layers}"
    return f"K and V x {model.kv_heads} heads x {model.head_dim} x {element} x {layers}"


def _of_one(point: Scenario) -> str:
    """Return whose bytes these are, where several ranks share a model."""
    return f", of one of {point.model.tp} ranks" if point.model.tp > 1 else ""


def _weight_formula(model: ModelShape) -> str:
    dtype, stored = model.weight_dtype, model.quantised
    if stored:
        group = stored.group or "a row"
        dtype += f" with a {stored.scale_bits}-bit scale"
        dtype += f" and a {stored.zero_bits}-bit zero point" if stored.zero_bits else ""
        dtype += f" for {group}"
    kept = ", ".join([*(model.wide or ()), "embedding", "LM head", "norms"])
    return f"{dtype}; {kept} 16-bit"


def _pools(point: Scenario, profile: HardwareProfile) -> list[Row]:
    """Return the lines of GPU and CPU, each with its total and what is free."""
    need, spec = memory(point, profile), profile.spec
    rows = []
    for place, has_bytes, total, lines in (
        ("GPU", int(spec.gpu.memory_bytes.value), need.gpu_bytes, _gpu_lines(point, need)),
        ("CPU", int(spec.cpu.memory_bytes.value), need.cpu_bytes, _cpu_lines(point, need)),
    ):
        rows += [_line(place, what, how, count) for what, how, count in lines if count]
        rows.append(_line(place, "total", "the sum of these", total))
        free = f"of {has_bytes / 1e9:.1f} GB"
        rows.append(_line(place, "free", free, has_bytes - total))
    return rows


def _gpu_lines(point: Scenario, need: Memory) -> list[tuple[str, str, int]]:
    """Return what is on the GPU: what, how it is made up, bytes."""
    sequences, prompt = f"{point.workload.batch} sequences", point.workload.input_tokens
    at_peak = need.kv_peak_bytes > need.kv_bytes
    when = "while the last prompt is prefilled, before eviction" if at_peak else "at the last token"
    scores = "stage-1 scores, " if point.resolved_selector().evicts(prompt) else ""
    weights = _weight_formula(point.model) + _of_one(point)
    reserve = f"{point.memory.reserve_frac:.0%}: context, workspaces, graphs, fragmentation"
    return [
        ("weights", weights, need.weight_bytes),
        ("KV pool", f"{sequences}, {when}", max(need.kv_bytes, need.kv_peak_bytes)),
        ("recurrent states", sequences, need.state_bytes),
        ("summary pool", sequences, need.summary_gpu_bytes),
        ("proxy factors", "low-rank W_q on the GPU", need.proxy_gpu_bytes),
        ("activations", f"prefill of one prompt, {scores}logits", need.activation_bytes),
        ("reserve", reserve, need.reserve_gpu_bytes),
    ]


def _cpu_lines(point: Scenario, need: Memory) -> list[tuple[str, str, int]]:
    """Return what is on the host: what, how it is made up, bytes."""
    reserve = f"{point.memory.reserve_frac:.0%} of the host"
    return [
        ("summary pool", f"{point.workload.batch} sequences", need.summary_cpu_bytes),
        ("proxy factors", "low-rank W_q on the CPU", need.proxy_cpu_bytes),
        ("reserve", reserve, need.reserve_cpu_bytes),
    ]


def facts(point: Scenario, profile: HardwareProfile, pool: int | None) -> list[str]:
    """Return what follows from the bytes, in sentences.

    Parameters
    ----------
    pool
        Token slots of a pre-allocated pool to derive too, as serving engines make one.
    """
    unknown, point = point.model.unknown(), _without_unknown(point)
    if unknown:
        hint = "Give weights and state_bytes of one layer under model.recurrent"
        texts = [f"Weights, totals and the largest batch are left out: {unknown}. {hint}."]
    else:
        texts = _what_fits(point, profile)
    tokens = point.resolved_selector().kept_prompt_tokens(point.workload.input_tokens)
    tokens += point.workload.output_tokens - 1
    slots = kv_slots(point.resolved_selector(), tokens)
    texts.append(
        f"At the last token a sequence fills {tokens:,} of its {slots:,} token slots "
        f"({tokens / slots:.1%}): KV blocks are allocated whole."
    )
    if pool is not None:
        kv, summary = pool_bytes(point, pool)
        beside = f", summary {format_bytes(summary)}" if summary else ""
        texts.append(f"A pool of {_in_blocks(point, pool)}: KV {format_bytes(kv)}{beside}.")
    return texts


def _what_fits(point: Scenario, profile: HardwareProfile) -> list[str]:
    kv, summary = pool_bytes(point, 1)
    texts = []
    if point.model.tp > 1:
        texts = [
            f"Bytes of the GPU are those of one of {point.model.tp} ranks; the host serves all."
        ]
    texts += [
        f"Largest batch with the {'summary' if summary else 'KV'} on the {place}: {batch}."
        for place, batch in largest_batches(point, profile).items()
    ]
    if summary:
        texts.append(
            f"The summary is {summary / (kv + summary):.1%} of the KV + summary pool; "
            "moving it to the CPU frees that."
        )
    need, gpu_bytes = memory(point, profile), int(profile.spec.gpu.memory_bytes.value)
    held = need.gpu_bytes - max(need.kv_bytes, need.kv_peak_bytes) - need.summary_gpu_bytes
    on_gpu = summary and point.routing.placement.device == "gpu"
    # A layer with a window keeps fewer tokens than the others: no one count fits all.
    if not point.model.count("sliding"):
        texts.append(
            f"A KV {'+ summary ' if on_gpu else ''}pool of all that is left on the GPU holds "
            f"{_in_blocks(point, pool_tokens(point, gpu_bytes - held))}."
        )
    return texts


def _in_blocks(point: Scenario, tokens: int) -> str:
    """Return tokens and the KV blocks that hold them, as a sentence says it."""
    selector = point.resolved_selector()
    block, slots = kv_slots(selector, 1), kv_slots(selector, tokens)
    if block == 1:
        return f"{tokens:,} tokens"
    rest = f", {slots:,} token slots" if slots > tokens else ""
    return f"{tokens:,} tokens ({slots // block:,} KV blocks of {block}{rest})"


def largest_batches(point: Scenario, profile: HardwareProfile) -> dict[str, int]:
    """Return the largest batch that fits with the summary on the GPU and on the CPU.

    Without a summary there is only one, and none where the weights are not known.
    """
    if point.model.unknown():
        return {}
    places = {"GPU": "gpu-target", "CPU": "cpu-mid"}
    if not pool_bytes(point, 1)[1]:
        return {"GPU": max_batch(point, profile)}
    return {
        place: max_batch(point.with_routing(routing), profile) for place, routing in places.items()
    }


def pool_bytes(point: Scenario, tokens: int) -> tuple[int, int]:
    """Return (KV, summary) bytes of a pool for `tokens` over all attending layers, in whole blocks.

    A window caps what a sequence holds, not a pool of many: its layers have all the slots.
    """
    model, selector = point.model.rank(), point.resolved_selector()
    slots = kv_slots(selector, tokens)
    summary = selector.summary_bytes_per_token_layer(model) * len(model.full_layers())
    return slots * model.kv_bytes_per_token(), round(slots * summary)


def pool_tokens(point: Scenario, budget_bytes: int) -> int:
    """Return the largest pool of whole KV blocks, in tokens, that fits in bytes of the GPU.

    Its KV, and its summaries unless routing reads them on the CPU. The inverse of the bytes: it
    fits, and one token more does not.
    """
    block = kv_slots(point.resolved_selector(), 1)

    def on_gpu(blocks: int) -> int:
        kv, summary = pool_bytes(point, blocks * block)
        return kv + summary if point.routing.placement.device == "gpu" else kv

    low, high = 0, 1
    while on_gpu(high) <= budget_bytes:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if on_gpu(middle) <= budget_bytes else (low, middle)
    return low * block


def _line(place: str, what: str, how: str, count: int) -> Row:
    return {"place": place, "what": what, "formula": how, "bytes": count}
