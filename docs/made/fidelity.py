"""What early selection does to SmolLM2: the run of ``essim fidelity`` in reports/data."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from statistics import mean

from made.data import RUNS, csv_rows, table

_RUN = RUNS / "fidelity-smollm2"
Row = dict[str, str]
_QUERIES = {
    "target": "real",
    "mid": "ES-Mid",
    "in": "ES-In",
    "mix": "ES-Mix",
    "previous_token": "previous token's",
    "previous_layer": "previous layer's",
}
_SELECTORS = {
    "rocketkv": "RocketKV",
    "quest": "Quest",
    "loki": "Loki",
    "exact_topk": "exact top-k",
    "sink_recent": "sink and recent",
    "dense": "dense",
}


@cache
def _rows(name: str) -> list[Row]:
    return csv_rows(_RUN / f"{name}.csv")


@cache
def _facts() -> dict[str, object]:
    facts: dict[str, object] = json.loads((_RUN / "manifest.json").read_text())
    return facts


def _query(row: Row) -> str:
    rank = f", rank {row['projection_rank']}" if row["projection_rank"] else ""
    return _QUERIES.get(row["query"], "–") + rank


def _pair(row: Row, name: str, signed: bool = False) -> str:
    """Return a number with its standard error."""
    if not row[f"{name}_nats"]:
        return "–"
    value, error = float(row[f"{name}_nats"]), row[f"{name}_se_nats"]
    sign = "+" if signed else ""
    return f"{value:{sign}.3f}" + (f" ± {float(error):.3f}" if error else "")


def _share(text: str, digits: int = 1) -> str:
    return f"{100 * float(text):.{digits}f} %" if text else "–"


def fidelity_quality() -> list[str]:
    """Every decoded setting over all domains."""
    body = [
        [
            *(_SELECTORS[row["selector"]], _query(row), row["budget_tokens"] or "all"),
            *(f"{float(row['perplexity']):.2f}", _pair(row, "kl"), _pair(row, "loss", signed=True)),
            _share(row["top1_agreement_frac"]),
            _pair(row, "kl_beyond_target", signed=True),
        ]
        for row in _rows("quality")
        if row["domain"] == "all"
    ]
    head = ("selector", "query", "tokens", "perplexity", "KL to dense", "loss beyond dense")
    return table((*head, "same best token", "KL beyond the real query"), body)


def fidelity_others() -> list[str]:
    """The second run: other selectors, and the query of the token before."""
    body = [
        [
            *(_SELECTORS[row["selector"]], _query(row), _pair(row, "kl")),
            *(_pair(row, "loss", signed=True), _share(row["top1_agreement_frac"])),
            _pair(row, "kl_beyond_target", signed=True),
        ]
        for row in _rows("others/quality")
        if row["domain"] == "all" and row["selector"] != "dense"
    ]
    head = ("selector", "query", "KL to dense", "loss beyond dense", "same best token")
    return table((*head, "KL beyond the real query"), body)


def _find(domain: str, selector: str, query: str, budget: str, rank: str = "") -> Row:
    wanted = (domain, selector, query, budget, rank)
    keys = ("domain", "selector", "query", "budget_tokens", "projection_rank")
    return next(row for row in _rows("quality") if tuple(row[key] for key in keys) == wanted)


def _domains() -> list[str]:
    return list(dict.fromkeys(row["domain"] for row in _rows("quality") if row["domain"] != "all"))


def fidelity_domains() -> list[str]:
    """KL by domain, 128 tokens."""
    settings = {
        "RocketKV, real query": ("rocketkv", "target"),
        "ES-Mid": ("rocketkv", "mid"),
        "ES-In": ("rocketkv", "in"),
        "ES-Mix": ("rocketkv", "mix"),
        "exact top-k": ("exact_topk", "target"),
        "sink and recent": ("sink_recent", ""),
    }
    body = []
    for domain in _domains():
        dense = _find(domain, "dense", "", "")
        found = [_find(domain, *setting, "128") for setting in settings.values()]
        body.append(
            [domain, f"{float(dense['perplexity']):.2f}", *(_pair(row, "kl") for row in found)]
        )
    return table(("domain", "dense perplexity", *settings), body)


def _layers(of: Callable[[Row], bool], name: str) -> float:
    return mean(float(row[f"{name}_frac"]) for row in _rows("layers") if of(row))


def _chosen(selector: str, query: str, rank: str, budget: str) -> Callable[[Row], bool]:
    wanted = (selector, query, rank, budget)
    keys = ("selector", "query", "projection_rank", "budget_tokens")
    return lambda row: tuple(row[key] for key in keys) == wanted


def _choice(query: str, rank: str = "") -> list[str]:
    queries, pages = _chosen("", query, rank, ""), _chosen("rocketkv", query, rank, "128")
    numbers = [_layers(queries, name) for name in ("cosine", "recall")]
    numbers += [_layers(pages, name) for name in ("overlap", "mass", "oracle_recall")]
    return [f"{number:.3f}" for number in numbers]


_CHOICE_HEAD = ("cosine", "signed channels", "same pages", "mass", "of exact top-k's tokens")


def fidelity_choice() -> list[str]:
    """How well each query chooses, RocketKV with 128 tokens."""
    names = ("target", "mid", "in", "previous_token", "previous_layer")
    return table(("query", *_CHOICE_HEAD), [[_QUERIES[name], *_choice(name)] for name in names])


def fidelity_ranks() -> list[str]:
    """How well ES-Mid chooses with a truncated projection."""
    ranks = sorted(
        {int(row["projection_rank"]) for row in _rows("layers") if row["projection_rank"]}
    )
    body = [[str(rank), *_choice("mid", str(rank))] for rank in ranks]
    return table(("rank of 576", *_CHOICE_HEAD), [*body, ["full", *_choice("mid")]])


def fidelity_selectors() -> list[str]:
    """Retained mass of each selector by query, 128 tokens."""
    names = ("target", "mid", "in")
    body = [
        [_SELECTORS[s], *(f"{_layers(_chosen(s, q, '', '128'), 'mass'):.3f}" for q in names)]
        for s in ("exact_topk", "loki", "rocketkv", "quest")
    ]
    fixed = f"{_layers(_chosen('sink_recent', '', '', '128'), 'mass'):.3f}"
    body.append(["sink and recent", fixed, "–", "–"])
    return table(("selector", *(_QUERIES[name] for name in names)), body)


def fidelity_gaps() -> list[str]:
    """What Mid retains beyond In, by target layers and domain."""
    parts = {"1": range(1, 2), "2": range(2, 3), "3 to 9": range(3, 10)}
    parts |= {"10 to 19": range(10, 20), "20 to 29": range(20, 30)}
    body = []
    for domain in (*_domains(), "all"):
        own = {int(r["layer"]): float(r["gap_frac"]) for r in _rows("mix") if r["domain"] == domain}
        anchors = [row["anchor"] for row in _rows("mix") if row["domain"] == domain]
        means = [f"{mean(own[layer] for layer in part):+.4f}" for part in parts.values()]
        body.append([domain, *means, f"{anchors.count('in')} of {len(anchors)}"])
    return table(("domain", *(f"layer {name}" for name in parts), "layers that take In"), body)


def fidelity_stability() -> list[str]:
    """How alike profiles of two domains are."""
    body = [
        [
            *(row["domain"], row["other_domain"], f"{float(row['pearson']):.3f}"),
            *(_share(row["agreement_frac"]), f"{float(row['worst_gap_frac']):.3f}"),
        ]
        for row in _rows("stability")
    ]
    return table(
        ("profile of", "and of", "Pearson", "same anchor", "most that the first's In loses"), body
    )


def fidelity_carried(first: str, second: str) -> str:
    """Return the most mass that a layer of one domain loses by the profile of another."""
    pair = next(
        r for r in _rows("stability") if (r["domain"], r["other_domain"]) == (first, second)
    )
    return f"{float(pair['worst_gap_frac']):.3f}"


def fidelity_stable(column: str) -> str:
    """Return the least Pearson correlation or agreement of two domains."""
    least = min(float(row[column]) for row in _rows("stability"))
    return f"{100 * least:.0f} %" if column.endswith("_frac") else f"{least:.3f}"


def fidelity_positions() -> list[str]:
    """Trends over decode position, with intervals."""
    body = []
    for row in _rows("positions"):
        if row["measure"].endswith(" slope"):
            value, low, high = (1000 * float(row[key]) for key in ("mean", "low", "high"))
            flat = "includes 0" if low <= 0 <= high else "does not"
            name = row["measure"].removesuffix(" slope")
            shown = f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
            body.append([name, _QUERIES[row["query"]], shown, flat])
    return table(("measure", "query", "slope per 1,000 tokens, 95 %", "the interval"), body)


def fidelity_passkeys() -> list[str]:
    """Passkeys found by setting and context length."""
    rows = _rows("passkeys")
    lengths = sorted({int(row["context_tokens"]) for row in rows})
    settings = dict.fromkeys(row["setting"] for row in rows)
    body = []
    for setting in settings:
        counts = []
        for length in lengths:
            own = [r for r in rows if (r["setting"], int(r["context_tokens"])) == (setting, length)]
            counts.append(f"{sum(int(row['found']) for row in own)} of {len(own)}")
        body.append([setting, *counts])
    return table(("setting", *(f"{length:,} tokens" for length in lengths)), body)


def fidelity_frontier() -> list[str]:
    """Settings on the frontier of quality and throughput."""
    best = [row for row in _rows("frontier") if row["frontier"]]
    body = [
        [
            *(_SELECTORS[row["selector"]], _query(row), row["where"] or "–"),
            *(row["budget_tokens"] or "all", f"{float(row['decode_tokens_per_s']):.1f}"),
            f"{float(row['kl_nats']):.3f}",
        ]
        for row in sorted(best, key=lambda row: -float(row["decode_tokens_per_s"]))
    ]
    return table(("selector", "query", "routed on", "tokens", "tokens/s", "KL to dense"), body)


def fidelity_beaten() -> str:
    """Return how many simulated points are not on the frontier."""
    rows = _rows("frontier")
    return str(sum(bool(row["decode_tokens_per_s"]) and not row["frontier"] for row in rows))


def fidelity_throughput_of() -> str:
    """Return whose throughput it is."""
    return _rows("frontier")[0]["throughput_of"]


def fidelity_kl(selector: str, query: str, budget: int, rank: str = "", domain: str = "all") -> str:
    """Return the KL of a setting with its standard error."""
    return _pair(_find(domain, selector, query, str(budget), str(rank)), "kl")


def fidelity_beyond(query: str, budget: int, rank: str = "") -> str:
    """Return what a proxy of RocketKV adds to the real query's KL."""
    return _pair(_find("all", "rocketkv", query, str(budget), str(rank)), "kl_beyond_target", True)


def fidelity_mass(selector: str, query: str) -> str:
    """Return the retained mass of a setting of 128 tokens."""
    query = "" if query == "none" else query
    return f"{_layers(_chosen(selector, query, '', '128'), 'mass'):.3f}"


def fidelity_run() -> str:
    """Return on what, when and where it was run."""
    facts = _facts()
    machine, options = facts["machine"], facts["options"]
    assert isinstance(machine, dict)
    assert isinstance(options, dict)
    return (
        f"{facts['model']}, {len(options['domains'])} contexts of {options['context_tokens']:,} "
        f"tokens, the last {options['decoded_tokens']} decoded; {machine['date']}, "
        f"{machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}, torch "
        f"{machine['libraries']['torch']}"
    )
