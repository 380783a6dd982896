"""The page of a fidelity run: what it found, figures, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plotly.graph_objects import Figure

from essim.results.column import Rows
from reports import fidelity_figures as draw
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.sweep_page import flat

_QUALITY = (
    *("selector", "query", "projection_rank", "budget_tokens", "attended_tokens", "perplexity"),
    *("loss_nats", "loss_se_nats", "kl_nats", "kl_se_nats", "top1_agreement_frac"),
    *("beyond_target_nats", "beyond_target_se_nats", "passkey_frac"),
)
_SPEED = (
    *("selector", "query", "projection_rank", "budget_tokens", "where", "kl_nats"),
    *("decode_tokens_per_s", "frontier", "quality_of", "throughput_of", "reason"),
)


@dataclass(frozen=True)
class FidelityTables:
    """Rows of a run, as in its CSV files."""

    layers: Rows
    positions: Rows
    mix: Rows
    stability: Rows
    quality: Rows
    passkeys: Rows
    frontier: Rows


def fidelity_blocks(
    tables: FidelityTables,
    sentences: Sequence[str],
    lost_mass: Mapping[str, float],
    manifest: Mapping[str, object],
) -> list[Block]:
    """Compose the page.

    Parameters
    ----------
    sentences
        What the run found.
    lost_mass
        Attention mass that a setting does not retain, by its name.
    manifest
        Versions, options and hashes; ``model``, ``budget_tokens`` and ``tau`` are shown.
    """
    whole = [row for row in tables.quality if row["domain"] == "all"]
    budget, model = manifest["budget_tokens"], manifest["model"]
    main = [row for row in tables.layers if row.get("budget_tokens") in (None, budget)]
    blocks: list[Block] = [Paragraph(text, "lead") for text in sentences]
    blocks += [Heading("Quality"), Table(whole, _QUALITY)]
    title = f"Mass and quality, {model}"
    blocks += [Chart(draw.mass_against_quality(whole, lost_mass, title))]
    blocks += [Heading("The choice"), *(Chart(f) for f in _choice_figures(tables, main, manifest))]
    blocks += [Table(tables.stability, list(tables.stability[0]))] if tables.stability else []
    if tables.passkeys:
        title = f"Passkeys found by context length and depth, {model}"
        blocks += [Heading("Passkeys"), Chart(draw.passkey_map(tables.passkeys, title))]
    if tables.frontier:
        title = "Quality against throughput"
        blocks += [Heading(title)]
        blocks += [Chart(draw.quality_against_throughput(tables.frontier, title))]
        blocks += [Details("Points", [Table(tables.frontier, _SPEED)])]
    by_domain = [row for row in tables.quality if row["domain"] != "all"]
    if by_domain:
        blocks.append(Details("Quality by domain", [Table(by_domain, ("domain", *_QUALITY[:-1]))]))
    blocks.append(Details("Versions and options", [Table(list(flat(manifest)), ["key", "value"])]))
    return blocks


def _choice_figures(
    tables: FidelityTables, main: Rows, manifest: Mapping[str, object]
) -> list[Figure]:
    model = manifest["model"]
    at = f"{model}, RocketKV, {manifest['budget_tokens']} tokens"
    fidelity = {
        "recall_frac": ("signed top-r channel recall", None),
        "mass_frac": ("retained mass", "rocketkv"),
    }
    further = {
        "cosine_frac": ("cosine to the real query", None),
        "oracle_recall_frac": ("share of exact top-k's tokens", "rocketkv"),
    }
    return [
        draw.by_layer(main, fidelity, f"Fidelity by layer, {at}"),
        draw.by_layer(main, further, f"Cosine and recall by layer, {at}"),
        draw.over_positions(tables.positions, f"Fidelity over decode position, {at}"),
        draw.over_rank(main, f"Low-rank projection, {at}"),
        draw.gaps(tables.mix, float(str(manifest["tau"])), f"ES-Mix profile by domain, {at}"),
    ]
