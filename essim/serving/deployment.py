"""A deployment: what its replicas hold and how long their steps take, and a load served by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from essim.hardware.profile import HardwareProfile
from essim.serving import des, jump
from essim.serving.keys import Asked, Server
from essim.serving.load import (
    UNLIMITED,
    Fleet,
    Limits,
    Load,
    Outcome,
    Pool,
    Prices,
    Record,
    Request,
    Times,
)
from essim.serving.prices import StepPrices, StepSettings
from essim.serving.traffic import Offered
from essim.simulate.feasible import cannot_route
from essim.simulate.memory import memory
from essim.simulate.scenario import Scenario, Workload
from essim.step.kinds import Case
from essim.text.units import PS_PER_S

ENGINES: dict[str, Callable[..., Outcome]] = {"des": des.simulate, "jump": jump.simulate}
# Stage 1 scores a prompt with so many queries, in fp32.
_SCORED_QUERIES = 32


@dataclass(frozen=True)
class Memory:
    """Bytes of one replica: the pool is what is left."""

    weight_bytes: int
    activation_bytes: int
    reserve_bytes: int
    pool_bytes: int
    block_bytes: int
    host_pool_bytes: int
    host_block_bytes: int


@dataclass
class Deployment:
    """Replicas of one kind on one kind of machine.

    Attributes
    ----------
    reason
        Why it cannot serve anything; empty where it can.
    """

    point: Scenario
    server: Server
    profile: HardwareProfile
    memory: Memory
    pool: Pool
    reason: str = ""
    prices: dict[tuple[Any, ...], StepPrices] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.server.gpus

    def limits(self) -> Limits:
        """Return how a replica batches."""
        own = self.server
        first = own.policy == "prefill_first"
        return Limits(self.pool, own.max_batch, own.token_budget, own.max_prefills, first)

    def step_prices(self, longest_tokens: int, *, strict: bool = False) -> StepPrices:
        """Return what steps cost where no cache holds more; made once for all that are alike."""
        own = self.server
        settings = StepSettings(
            longest_tokens,
            tuple(own.graph_batches),
            longest_tokens if own.one_graph else 0,
            round(own.host_s * PS_PER_S),
            round(own.eager_op_s * PS_PER_S),
            own.replicas_per_host,
        )
        case = Case(self.point.model, self.point.resolved_selector(), self.point.routing)
        routing = self.point.routing if case.selector.query_conditioned else None
        key = (self.profile.spec.name, repr((case.model, case.selector, routing)), settings)
        if key not in self.prices:
            self.prices[key] = StepPrices(self.profile, case, settings, strict)
        return self.prices[key]


def deploy(
    asked: Asked,
    profile: HardwareProfile,
    longest_prompt: int,
    prices: dict[tuple[Any, ...], StepPrices] | None = None,
) -> Deployment:
    """Return the deployment of a question, for prompts of so many tokens at most.

    Parameters
    ----------
    prices
        Prices made before, shared between deployments.
    """
    point, server = asked.point, asked.server
    need = _memory(point, server, profile, longest_prompt)
    selector = point.resolved_selector()
    block = selector.table_conditions().get("kv_block_tokens", server.kv_block_tokens)
    host_blocks = UNLIMITED
    if need.host_block_bytes:
        host_blocks = max(0, need.host_pool_bytes // need.host_block_bytes)
    pool = Pool(
        block,
        max(0, need.pool_bytes // need.block_bytes),
        host_blocks,
        selector.kept_prompt_tokens,
        server.compaction == "in_place",
    )
    reason = _cannot(point, server, profile, pool)
    shared = {} if prices is None else prices
    return Deployment(point, server, profile, need, pool, reason, shared)


def _cannot(point: Scenario, server: Server, profile: HardwareProfile, pool: Pool) -> str:
    """Return why such replicas cannot run, or an empty string."""
    if point.selector.query_conditioned:
        reason = cannot_route(point, profile)
        threads = point.routing.cpu_threads * server.replicas_per_host
        if not reason and point.routing.placement.device == "cpu":
            cores = profile.spec.cpu.cores.value
            if threads > cores:
                reason = f"{threads} router threads of its replicas on a host of {cores} cores"
        if reason:
            return reason
    if pool.gpu_blocks < 1:
        return "the weights leave no GPU memory for a KV pool"
    return "" if pool.host_blocks else "the host has no room for page summaries"


def _memory(
    point: Scenario, server: Server, profile: HardwareProfile, longest_prompt: int
) -> Memory:
    """Return a replica's bytes: activations are of one iteration's tokens, not of a prompt."""
    model, selector = point.model.rank(), point.resolved_selector()
    load = Workload(batch=server.max_batch, input_tokens=server.token_budget, output_tokens=1)
    need = memory(point.model_copy(update={"workload": load}), profile)
    plain = memory(point.with_dense().model_copy(update={"workload": load}), profile)
    activations = plain.activation_bytes
    if selector.evicts(longest_prompt):
        activations += model.heads * _SCORED_QUERIES * longest_prompt * 4
    held = need.weight_bytes + activations + need.reserve_gpu_bytes + need.proxy_gpu_bytes
    block = selector.table_conditions().get("kv_block_tokens", server.kv_block_tokens)
    summary = selector.summary_bytes_per_token_layer(model) * len(model.full_layers())
    on_cpu = point.routing.placement.device == "cpu" and selector.query_conditioned
    kv = model.kv_bytes_per_token() + (0 if on_cpu else summary)
    host = profile.spec.cpu.memory_bytes.value - need.reserve_cpu_bytes
    return Memory(
        need.weight_bytes,
        activations,
        need.reserve_gpu_bytes,
        int(profile.spec.gpu.memory_bytes.value) - held,
        int(np.ceil(block * kv)),
        int(host / server.replicas_per_host) - need.proxy_cpu_bytes,
        int(np.ceil(block * summary)) if on_cpu else 0,
    )


@dataclass
class Served:
    """A load served.

    Attributes
    ----------
    outcomes
        Of every pool of replicas: one, or prefill and decode.
    prices
        Behind each of them.
    """

    records: list[Record]
    token_ps: Callable[[int], Times]
    outcomes: list[Outcome]
    prices: Prices
    bad: Counter[str]
    engine: str


def serve(
    deployment: Deployment,
    offer: Offered,
    *,
    engine: str = "jump",
    strict: bool = False,
    scaled: Callable[[StepPrices], Prices] = lambda prices: prices,
    sampled: bool = True,
) -> Served:
    """Serve what a deployment can hold of an offer; what it cannot is counted by reason."""
    most = deployment.point.model.max_context_tokens
    load, bad = offer.for_(most, deployment.pool.fits)
    kept = deployment.pool.kept
    longest = max((kept(r.input_tokens) + r.output_tokens for r in load.requests), default=1)
    prices = scaled(deployment.step_prices(longest, strict=strict))
    run = ENGINES[engine]
    options = {"sampled": sampled} if engine == "jump" else {}
    fleet = Fleet(deployment.limits(), deployment.server.replicas, deployment.server.balancer)
    if deployment.server.policy != "disaggregated":
        out = run(load, fleet, prices, **options)
        return Served(out.records, out.token_ps, [out], prices, bad, engine)
    apart = replace(fleet, replicas=deployment.server.prefill_replicas or 1)
    firsts = [Request(r.arrival_ps, r.input_tokens, 1) for r in load.requests]
    before = run(Load(firsts), apart, prices, **options)
    sent = _sent(deployment, load, before)
    after = run(Load([request for _, request in sent], prefilled=True), fleet, prices, **options)
    return _joined(load, before, after, [i for i, _ in sent], prices, bad, engine)


def _sent(deployment: Deployment, load: Load, before: Outcome) -> list[tuple[int, Request]]:
    """Return (position, request) as prompts reach the decoding pool, one after another."""
    server, kv = deployment.server, deployment.point.model.kv_bytes_per_token()
    free_ps, sent = 0, []
    latency_ps = round(server.link_latency_s * PS_PER_S)
    for i in sorted(range(len(load.requests)), key=lambda i: before.records[i].finish_ps):
        request = load.requests[i]
        if request.output_tokens == 1:
            continue
        tokens = request.input_tokens
        tokens = deployment.pool.kept(tokens) if server.sends == "kept" else tokens
        start_ps = max(free_ps, before.records[i].finish_ps)
        free_ps = start_ps + round(tokens * kv / server.link_bytes_per_s * PS_PER_S)
        sent.append((i, replace(request, arrival_ps=free_ps + latency_ps)))
    return sent


def _joined(
    load: Load,
    before: Outcome,
    after: Outcome,
    places: list[int],
    prices: Prices,
    bad: Counter[str],
    engine: str,
) -> Served:
    """Return both halves of every request as one."""
    decoded = {place: i for i, place in enumerate(places)}
    records = []
    for place, (request, record) in enumerate(zip(load.requests, before.records, strict=True)):
        made = replace(record, request=request)
        if place in decoded:
            later = after.records[decoded[place]]
            made.finish_ps = later.finish_ps
            made.preemptions += later.preemptions
        records.append(made)

    def token_ps(i: int) -> Times:
        first = np.array([records[i].first_ps], dtype=np.int64)
        return np.append(first, after.token_ps(decoded[i])[1:]) if i in decoded else first

    return Served(records, token_ps, [before, after], prices, bad, engine)
