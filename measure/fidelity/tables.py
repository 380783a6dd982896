"""The study's rows: choices by layer and head, along decode positions, and quality by setting."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from essim.results.column import Row
from measure.fidelity import mix, passkey
from measure.fidelity.choice import Choices, Measures
from measure.fidelity.decode import Setting
from measure.fidelity.quality import against_target, quality_row
from measure.fidelity.queries import Query
from measure.fidelity.statistics import interval, trend
from measure.fidelity.study import Study

# Intervals of decode positions that Figure 7 has.
_BINS = 5
_ALL = "all"


def layer_rows(study: Study) -> list[Row]:
    """Return how well each query and setting chooses in each routed layer, domain by domain."""
    rows: list[Row] = []
    for domain, found in study.choices.items():
        for query in study.plan.queries:
            measures = found.queries[query.name]
            rows += _by_layer(domain, _of_query(query), measures, ("cosine", "recall"))
        for setting in study.plan.choices:
            measures = found.settings[setting.name]
            names = ("mass", "oracle_mass", "overlap", "oracle_recall")
            rows += _by_layer(domain, _of_setting(setting), measures, names)
    return rows


def _by_layer(domain: str, of: Row, measures: Measures, names: tuple[str, ...]) -> Iterator[Row]:
    """Yield a row a layer, means over heads and positions."""
    means = {f"{name}_frac": measures[name].mean(axis=(1, 2)) for name in names}
    for index in range(len(next(iter(means.values())))):
        values = {name: round(float(mean[index]), 6) for name, mean in means.items()}
        yield {"domain": domain, "layer": index + 1, **of, **values}


def head_rows(study: Study) -> list[Row]:
    """Return cosine, recall and mass of each layer and query head at the main budget."""
    rows: list[Row] = []
    for query in study.plan.queries:
        name = f"rocketkv {query.name} {study.plan.budget}"
        cosine, recall, mass, overlap = (
            np.mean([_of(found, query, name)[i].mean(2) for found in study.choices.values()], 0)
            for i in range(4)
        )
        for layer, head in np.ndindex(*cosine.shape):
            at = (layer, head)
            rows.append(
                {"layer": layer + 1, "head": head, **_of_query(query)}
                | {"cosine_frac": round(float(cosine[at]), 6)}
                | {"recall_frac": round(float(recall[at]), 6)}
                | {"mass_frac": round(float(mass[at]), 6)}
                | {"overlap_frac": round(float(overlap[at]), 6)}
            )
    return rows


def _of(found: Choices, query: Query, name: str) -> tuple[NDArray[np.float32], ...]:
    of_query, of_setting = found.queries[query.name], found.settings[name]
    return of_query["cosine"], of_query["recall"], of_setting["mass"], of_setting["overlap"]


def position_rows(study: Study) -> list[Row]:
    """Return gaps to the real query in five intervals of decode position, and their trends.

    A value is a mean over layers, heads and the interval's positions of all contexts; intervals
    and slopes are 95 % of bootstrap draws of those positions.
    """
    rows: list[Row] = []
    for query in (Query("in"), Query("mid")):
        for name, values in _along_positions(study, query).items():
            count = values.shape[1]
            at = np.arange(count) * study.options.stride
            for part in np.array_split(np.arange(count), _BINS):
                flat = values[:, part].ravel()
                low, high = interval(flat)
                middle = float(at[part].mean())
                measured: Row = {"mean": float(flat.mean()), "low": low, "high": high}
                of: Row = {"measure": name, "query": query.kind, "position": middle}
                rows.append(of | measured)
            slope = trend(np.tile(at, len(values)).astype(float), values.ravel())
            ends: Row = dict(zip(("mean", "low", "high"), slope, strict=True))
            rows.append(ends | {"measure": f"{name} slope", "query": query.kind})
    return rows


def _along_positions(study: Study, query: Query) -> dict[str, NDArray[np.floating]]:
    """Return [contexts, T] of each measure, means over layers and heads."""
    budget, found = study.plan.budget, list(study.choices.values())

    def of(name: str, kind: str) -> NDArray[np.floating]:
        key = f"rocketkv {kind} {budget}"
        return np.stack([choices.settings[key][name].mean((0, 1)) for choices in found])

    recall = np.stack([choices.queries[query.name]["recall"].mean((0, 1)) for choices in found])
    mass = of("mass", query.name) - of("mass", "target")
    return {"mass gap": mass, "page overlap": of("overlap", query.name), "signed recall": recall}


def mix_rows(study: Study) -> list[Row]:
    """Return mass(Mid) - mass(In) and the anchor it gives, by domain and target layer."""
    tau = study.options.tau
    rows: list[Row] = []
    mean = np.mean(list(study.gaps.values()), axis=0)
    for domain, gap in (study.gaps | {_ALL: mean}).items():
        anchors = mix.assignment([gap], tau)
        rows += [
            {"domain": domain, "layer": index + 1, "gap_frac": float(gap[index]), "anchor": anchor}
            for index, anchor in enumerate(anchors)
        ]
    return rows


def quality_rows(study: Study) -> list[Row]:
    """Return each setting's quality, over all domains and, if there are several, by domain."""
    domains, keys = list(study.dense_loss), passkey.shares(study.passkeys)
    rows: list[Row] = []
    parts = {_ALL: domains} | ({d: [d] for d in domains} if len(domains) > 1 else {})
    for label, within in parts.items():
        dense = float(np.exp(np.mean([study.dense_loss[domain] for domain in within])))
        whole: Row = {"domain": label, "selector": "dense", "perplexity": dense}
        rows.append(whole | {"loss_nats": 0.0, "kl_nats": 0.0, "top1_agreement_frac": 1.0})
        rows += [_setting_row(study, setting, within, label) for setting in study.plan.decodes]
    for row, name in zip(rows, ["dense", *(s.name for s in study.plan.decodes)], strict=False):
        row["passkey_frac"] = keys.get(name)
    return rows


def _setting_row(study: Study, setting: Setting, within: list[str], label: str) -> Row:
    own = [study.outputs[setting.name][domain] for domain in within]
    dense = [study.dense_loss[domain] for domain in within]
    row = quality_row(setting, own, dense, label)
    real = Setting(setting.selector, Query("target"), setting.budget).name
    if real != setting.name and real in study.outputs:
        row |= against_target(own, [study.outputs[real][domain] for domain in within])
    return row


def _of_query(query: Query) -> Row:
    return {"query": query.kind, "projection_rank": query.rank}


def _of_setting(setting: Setting) -> Row:
    routed = setting.query if setting.selector.routes else None
    of: Row = {"query": None, "projection_rank": None} if routed is None else _of_query(routed)
    named: Row = {"selector": setting.selector.name, "budget_tokens": setting.budget}
    return named | of
