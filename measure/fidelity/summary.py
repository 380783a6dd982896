"""What a run found, in sentences that name the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import hypot

import numpy as np

from essim.methods.routing import mix_text
from essim.results.column import Row, number
from essim.results.fidelity import setting_name
from measure.fidelity.mix import stability
from measure.fidelity.study import Study


def lost_masses(study: Study) -> dict[str, float]:
    """Return the attention mass that a setting does not retain, mean over everything."""
    return {
        setting.name: 1.0
        - float(np.mean([found.settings[setting.name]["mass"] for found in study.choices.values()]))
        for setting in study.plan.choices
    }


def sentences(study: Study, quality: Sequence[Row], frontier: Sequence[Row]) -> list[str]:
    """Return the summary."""
    whole = [row for row in quality if row["domain"] == "all"]
    main = [row for row in whole if row.get("budget_tokens") == study.plan.budget]
    return [
        _what_was_run(study, whole[0]),
        *_proxies([row for row in main if row["selector"] == "rocketkv"], study.plan.budget),
        _mass_and_quality(lost_masses(study), main),
        *_mix(study),
        *_passkeys(study),
        *_frontier(frontier),
    ]


def _of(row: Row, key: str) -> float:
    return number(row.get(key)) or 0.0


def _what_was_run(study: Study, dense: Row) -> str:
    options = study.options
    return (
        f"{study.checkpoint.name}: {len(options.domains)} contexts of {options.context_tokens:,} "
        f"tokens ({', '.join(options.domains)}), the last {options.decoded_tokens} decoded; dense "
        f"perplexity {_of(dense, 'perplexity'):.2f}."
    )


def _proxies(rows: Sequence[Row], budget: int) -> Iterator[str]:
    """Yield what each proxy of RocketKV loses beyond the real query, at the main budget."""
    for row in rows:
        same = 100 * _of(row, "top1_agreement_frac")
        if row["query"] == "target":
            yield (
                f"RocketKV with {budget} tokens and the real query: KL to dense "
                f"{_of(row, 'kl_nats'):.3f} ± {_of(row, 'kl_se_nats'):.3f} nats a token; the most "
                f"likely token is dense attention's in {same:.1f} %."
            )
        if number(row.get("kl_beyond_target_nats")) is None:
            continue
        more, error = _of(row, "kl_beyond_target_nats"), _of(row, "kl_beyond_target_se_nats")
        clear = "more" if more > 2 * error else "less" if more < -2 * error else "not told apart"
        rank = f", rank {row['projection_rank']}" if row["projection_rank"] else ""
        loss, spread = _of(row, "beyond_target_nats"), _of(row, "beyond_target_se_nats")
        yield (
            f"Query {row['query']}{rank} instead: KL {more:+.3f} ± {error:.3f} ({clear}), loss "
            f"{loss:+.3f} ± {spread:.3f}, the same token in {same:.1f} %."
        )


def _mass_and_quality(lost: Mapping[str, float], rows: Sequence[Row]) -> str:
    """Return two settings of one budget that mass and KL order differently, if there are any."""
    known = {name: row for row in rows if (name := setting_name(row)) in lost}
    swapped = [
        (lost[b] - lost[a], a, b)
        for a, one in known.items()
        for b, other in known.items()
        if lost[a] < lost[b] and _clearly_worse(one, other)
    ]
    if not swapped:
        return "Mass and KL rank the decoded settings of one budget alike, within errors."
    _, a, b = max(swapped)
    return (
        f"Mass and quality do not rank alike: {a} misses {lost[a]:.3f} of the attention mass and "
        f"{b} {lost[b]:.3f}, but KL is {_of(known[a], 'kl_nats'):.3f} and "
        f"{_of(known[b], 'kl_nats'):.3f}."
    )


def _clearly_worse(row: Row, other: Row) -> bool:
    apart = _of(row, "kl_nats") - _of(other, "kl_nats")
    return apart > 2 * hypot(_of(row, "kl_se_nats"), _of(other, "kl_se_nats"))


def _mix(study: Study) -> Iterator[str]:
    tau, counts = study.options.tau, Counter(study.mix)
    yield (
        f"ES-Mix at tau {tau:g}: {counts['in']} of {len(study.mix)} routed layers may take the "
        f"earlier anchor ({mix_text(study.mix)})."
    )
    pairs = stability(study.gaps, tau)
    if not pairs:
        return
    worst = min(pairs, key=lambda row: _of(row, "agreement_frac"))
    least = min(pairs, key=lambda row: _of(row, "pearson"))
    yield (
        f"Profiles of two domains agree on {100 * _of(worst, 'agreement_frac'):.0f} % of the "
        f"layers at least ({worst['domain']}, {worst['other_domain']}), and their gaps correlate "
        f"by {_of(least, 'pearson'):.3f} at least ({least['domain']}, {least['other_domain']})."
    )


def _passkeys(study: Study) -> Iterator[str]:
    found: dict[str, int] = {}
    for row in study.passkeys:
        name = str(row["setting"])
        found[name] = found.get(name, 0) + int(_of(row, "found"))
    if found:
        asked = sum(row["setting"] == "dense" for row in study.passkeys)
        dense = found.pop("dense")
        fewer = ", ".join(f"{name} ({n})" for name, n in found.items() if n < dense)
        others = f"all settings find them but {fewer}" if fewer else "all settings find them"
        yield f"Passkeys: dense attention finds {dense} of {asked}; {others}."


def _frontier(rows: Sequence[Row]) -> Iterator[str]:
    best = sorted((row for row in rows if row["frontier"]), key=lambda row: -_of(row, "kl_nats"))
    if not best:
        return
    points = "; ".join(
        f"{setting_name(row)}{_place(row)} "
        f"{_of(row, 'decode_tokens_per_s'):.1f} tokens/s at {_of(row, 'kl_nats'):.3f} nats"
        for row in best
    )
    yield (
        f"On the frontier of quality ({best[0]['quality_of']}) and throughput "
        f"({best[0]['throughput_of']}): {points}."
    )


def _place(row: Row) -> str:
    return f" on {row['where']}" if row["where"] else ""
