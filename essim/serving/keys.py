"""What a scenario says of traffic, promise, server and plan, and how it is read."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from essim.errors import BadValueError, InputError
from essim.model.shape import Count
from essim.simulate.plan import points_of
from essim.simulate.scenario import SERVING_KEYS, Scenario
from essim.simulate.scenario import schema as scenario_schema
from essim.text.yaml import Document, Strict, parse_override, read_yaml, validate

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class Histogram(Strict):
    """Token counts by bins: `edges` (one more than there are weights), even inside each."""

    edges: Annotated[list[Count], Field(min_length=2)]
    weights: Annotated[list[NotNegative], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Histogram:
        if len(self.edges) != len(self.weights) + 1:
            message = f"{len(self.edges)} edges for {len(self.weights)} weights"
            raise BadValueError(message, "Give one edge more than weights")
        if self.edges != sorted(set(self.edges)):
            raise BadValueError("edges do not rise", "Write them in order, each once")
        if not sum(self.weights):
            raise BadValueError("all weights are 0")
        return self


class Lognormal(Strict):
    """Token counts of a log-normal distribution: its mean and its coefficient of variation."""

    mean: Positive
    cv: Positive
    most: Count | None = None


Lengths = Count | Lognormal | Histogram


class Traffic(Strict):
    """Requests: arrivals by a process or from a trace.

    Attributes
    ----------
    arrivals
        ``poisson``, ``gamma`` (gaps with coefficient of variation `cv`), ``uniform`` (one after
        another), or ``closed``: `users`, each of which waits `think_s` between requests.
    rate
        Requests a second.
    requests
        How many.
    input_tokens, output_tokens
        One number, a log-normal, or a histogram.
    lengths
        A trace whose pairs of lengths are drawn, instead of these two.
    trace
        A CSV or JSONL file of requests that is replayed as it is, from `from_s` to `to_s` of its
        own time, `rate_scale` times as fast.
    """

    arrivals: Literal["poisson", "gamma", "uniform", "closed"] | None = None
    rate: Positive | None = None
    cv: Positive | None = None
    users: Count | None = None
    think_s: NotNegative = 0.0
    requests: Count = 2000
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    lengths: str | None = None
    trace: str | None = None
    rate_scale: Positive = 1.0
    from_s: NotNegative = 0.0
    to_s: Positive | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Traffic:
        if (self.trace is None) == (self.arrivals is None):
            raise BadValueError("give either arrivals or trace")
        needs = {"gamma": "cv", "closed": "users"}
        for kind, key in needs.items():
            if (self.arrivals == kind) != (getattr(self, key) is not None):
                raise BadValueError(f"{key} belongs to arrivals: {kind}, which needs it")
        if self.arrivals not in (None, "closed") and self.rate is None:
            raise BadValueError(f"arrivals: {self.arrivals} needs a rate", "Requests a second")
        if self.arrivals in (None, "closed") and self.rate is not None:
            raise BadValueError("rate belongs to poisson, gamma and uniform arrivals")
        given = (self.input_tokens, self.output_tokens)
        from_file = self.lengths is not None or self.trace is not None
        if given.count(None) != (2 if from_file else 0):
            raise BadValueError(
                "lengths come from input_tokens and output_tokens, from lengths, or from the trace",
                "Give one of these ways",
            )
        return self


class Itl(Strict):
    """A limit of time between tokens that a share of a request's tokens keeps."""

    limit_s: Positive
    quantile: Share = 1.0


class Slo(Strict):
    """The promise: a request keeps it if it keeps every limit; `share` of requests must."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    itl_s: Itl | None = None
    e2e_s: Positive | None = None
    share: Share = 0.95


class Server(Strict):
    """How a deployment serves.

    Attributes
    ----------
    policy
        ``mixed``: chunks of prompts share steps with decoding; ``prefill_first``: decoding waits;
        ``disaggregated``: `prefill_replicas` prefill and send the KV over a link to the others.
    token_budget
        Tokens of an iteration, those of decoding sequences included.
    kv_block_tokens
        Where the selector says nothing of it.
    graph_batches
        Batches of the decode graphs; empty: every batch has its own.
    one_graph
        Routers on the GPU are launched for the longest context of the traffic.
    host_s, eager_op_s
        Of the host: between two steps, and to launch an op of a step with a chunk.
    replicas_per_host
        Replicas that share a host's memory, cores and link.
    sends
        Of a prefilled prompt, over the link: what the selector kept, or all of it.
    """

    policy: Literal["mixed", "prefill_first", "disaggregated"] = "mixed"
    replicas: Count = 1
    balancer: Literal["round_robin", "least_tokens"] = "round_robin"
    max_batch: Count = 256
    token_budget: Count = 2048
    max_prefills: Count = 4
    kv_block_tokens: Count = 16
    compaction: Literal["copy", "in_place"] = "copy"
    graph_batches: list[Count] = Field(default_factory=list)
    one_graph: bool = False
    host_s: NotNegative = 0.0
    eager_op_s: NotNegative = 0.0
    replicas_per_host: Count = 1
    prefill_replicas: Count | None = None
    link_bytes_per_s: Positive = 5e10
    link_latency_s: NotNegative = 0.0
    sends: Literal["kept", "prompt"] = "kept"

    @model_validator(mode="after")
    def _sensible(self) -> Server:
        if self.token_budget <= self.max_batch:
            message = f"token_budget ({self.token_budget}) is not above max_batch"
            raise BadValueError(
                f"{message} ({self.max_batch})", "Decoding alone would use it up: no prompt starts"
            )
        if (self.policy == "disaggregated") != (self.prefill_replicas is not None):
            raise BadValueError("prefill_replicas belongs to policy: disaggregated")
        if self.graph_batches != sorted(set(self.graph_batches)):
            raise BadValueError("graph_batches do not rise", "Write them in order, each once")
        return self

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas + (self.prefill_replicas or 0)


class Quality(Strict):
    """A selector that may be planned with, and the source that says its answers are good enough."""

    selector: dict[str, Any]
    source: Annotated[str, Field(min_length=1)]


class Plan(Strict):
    """What a plan varies: dotted keys and their values; and which selectors it may.

    Attributes
    ----------
    vary
        Such as ``routing: [...]`` or ``server.max_batch: [...]``.
    quality
        The selectors to choose from, each with the source of its quality. Without it the selector
        stays: the smallest budget would always win.
    most_gpus
        More are not looked at.
    price_per_hour
        Of one GPU, by hardware profile.
    """

    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    quality: list[Quality] = Field(default_factory=list)
    most_gpus: Count = 64
    price_per_hour: dict[str, Positive] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _admitted(self) -> Plan:
        for key in self.vary:
            if key.split(".")[0] in ("selector", "traffic", "slo", "plan"):
                hint = (
                    "List selectors under plan.quality, with a source"
                    if (key.startswith("selector"))
                    else ""
                )
                raise BadValueError(f"{key} is not for a plan to vary", hint)
        return self


class _Keys(Strict):
    """The keys of a scenario that are of serving alone."""

    traffic: Traffic
    slo: Slo = Slo()
    server: Server = Server()
    plan: Plan = Plan()


def schema() -> dict[str, Any]:
    """Return a scenario's JSON schema, the keys of serving included, for editors."""
    rest, own = scenario_schema(), _Keys.model_json_schema()
    return rest | {key: rest[key] | own[key] for key in ("properties", "$defs")}


@dataclass(frozen=True)
class Asked:
    """One question about serving: a scenario's point, and its own keys."""

    point: Scenario
    traffic: Traffic
    slo: Slo
    server: Server
    plan: Plan
    document: Document
    overrides: tuple[tuple[str, Any], ...] = ()

    def with_(self, changes: Sequence[tuple[str, Any]]) -> Asked:
        """Return this question with dotted keys changed; errors as of reading it."""
        return asked_of(self.document, (*self.overrides, *changes))


def load_asked(file: Path, overrides: Sequence[str] = ()) -> Asked:
    """Read a scenario with traffic.

    Raises
    ------
    InputError
        With file, line and key of what is wrong.
    """
    return asked_of(read_yaml(file), [parse_override(text) for text in overrides])


def asked_of(document: Document, overrides: Sequence[tuple[str, Any]] = ()) -> Asked:
    """Return the question of data and of dotted keys with the values to set."""
    own = [pair for pair in overrides if pair[0].split(".")[0] in SERVING_KEYS]
    rest = [pair for pair in overrides if pair not in own]
    data = {k: copy.deepcopy(document.data[k]) for k in SERVING_KEYS if k in document.data}
    for key, value in own:
        _put(data, key, value)
    places = replace(document, overrides={tuple(key.split(".")): None for key, _ in own})
    keys = validate(_Keys, data, places)
    point, _ = points_of(document, rest)
    resolved = {point.selector.resolve(n, 1, point.model.head_dim) for n in (8192, 65536)}
    if len(resolved) > 1:
        message = f"the settings of {point.selector.kind} follow from the workload"
        raise document.error(message, "Give the pages themselves", at=("selector",))
    parts = keys.traffic, keys.slo, keys.server, keys.plan
    return Asked(point, *parts, document, tuple(overrides))


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node: Any = data
    for part in parents:
        if not isinstance(node.get(part), dict):
            if node.get(part) is not None:
                raise InputError(f"{part!r} has no keys below it", file="--set", key=key)
            node[part] = {}
        node = node[part]
    node[last] = value
