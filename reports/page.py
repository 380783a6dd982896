"""A self-contained HTML page of headings, paragraphs, tables and figures."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from essim.results.column import AnyRow, Column, Rows, number
from essim.results.tables import column

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Block(Protocol):
    """A part of a page."""

    def html(self) -> str:
        """Return the block as HTML, with every value escaped."""
        ...


@dataclass(frozen=True)
class Heading:
    """A section's heading."""

    text: str

    def html(self) -> str:
        """Return the block as HTML."""
        return f"<h2>{escape(self.text)}</h2>"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `style` is empty, "lead", "verdict" or "note"."""

    text: str
    style: str = ""

    def html(self) -> str:
        """Return the block as HTML."""
        style = f' class="{escape(self.style)}"' if self.style else ""
        return f"<p{style}>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Table:
    """Rows of a result table, with the chosen columns in that order."""

    rows: Rows
    columns: Sequence[str]

    def html(self) -> str:
        """Return the block as HTML."""
        shown = [column(key) for key in self.columns]
        right = [self._is_numeric(c.name) for c in shown]
        head = "".join(_cell("th", c.title, r) for c, r in zip(shown, right, strict=True))
        body = "\n".join(self._row(row, shown, right) for row in self.rows)
        lost = sum(_is_lost(row.get(c.name)) for row in self.rows for c in shown)
        return (
            f'<div class="table" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>{_lost_note(lost, 'shown as –')}"
        )

    def _is_numeric(self, key: str) -> bool:
        values = [row.get(key) for row in self.rows]
        return any(number(v) is not None for v in values) and not any(
            isinstance(v, str) and v for v in values
        )

    @staticmethod
    def _row(row: AnyRow, shown: Sequence[Column], right: Sequence[bool]) -> str:
        cells = (
            _cell("td", c.shown.text(row.get(c.name)), r) for c, r in zip(shown, right, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"


@dataclass(frozen=True)
class Chart:
    """A plotly figure; its title stands above it, `layout.meta["notes"]` under it.

    Both are text of the page: they wrap in a narrow window, and nothing lies on them.
    """

    figure: Figure

    def html(self) -> str:
        """Return the block as HTML: the figure as JSON, drawn by the page's script."""
        lost: list[float] = []
        plain = _plain(self.figure.to_plotly_json(), lost)
        layout = plain["layout"]
        layout.pop("template", None)
        title = layout.pop("title", {})
        head = _caption("h3", title) + _caption("p", title.get("subtitle", {}))
        meta = layout.get("meta")
        notes = meta.get("notes", []) if isinstance(meta, dict) else []
        height = int(layout.get("height", 450))
        data = {"data": plain["data"], "layout": layout, "texts": _shared_texts(plain["data"])}
        text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str)
        caption = "".join(f"<p>{escape(str(note))}</p>" for note in notes)
        return (
            f'<figure>{head}<div class="plot" style="height:{height}px"></div>'
            f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'
            f"<figcaption>{caption}{_lost_note(len(lost), 'drawn as gaps')}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Details:
    """Blocks folded away under a summary line."""

    summary: str
    blocks: Sequence[Block]

    def html(self) -> str:
        """Return the block as HTML."""
        inner = "\n".join(block.html() for block in self.blocks)
        return f"<details><summary>{escape(self.summary)}</summary>\n{inner}\n</details>"


def render(title: str, blocks: Sequence[Block]) -> str:
    """Return a page that needs no network; the same input gives the same text.

    Parameters
    ----------
    title : str
        Title and first heading.
    blocks : sequence of Block
        What the page shows, in order.
    """
    body = "\n".join(block.html() for block in blocks)
    template = resources.files("reports").joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=escape(title),
        body=body,
        plotly=plotly_script() if '<div class="plot"' in body else "",
    )


def plotly_script() -> str:
    """Return plotly.js with the charts of two axes alone: a third of what plotly's package has."""
    script = resources.files("reports").joinpath("script/plotly-cartesian.min.js")
    return script.read_text(encoding="utf-8")


def _cell(tag: str, text: str, right: bool) -> str:
    kind = "number" if right else "long" if len(text) > 60 else ""
    style = f' class="{kind}"' if kind else ""
    return f"<{tag}{style}>{escape(text)}</{tag}>"


def _caption(tag: str, part: Mapping[str, Any]) -> str:
    """Return a title of a figure, whose text is HTML already, as HTML."""
    text = escape(unescape(str(part.get("text") or "")))
    return f"<{tag}>{text}</{tag}>" if text else ""


def _is_lost(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _lost_note(count: int, how: str) -> str:
    if not count:
        return ""
    values = (
        "1 value is not a finite number"
        if count == 1
        else (f"{count} values are not finite numbers")
    )
    return f'<p class="note">{values}, {how}.</p>'


def _shared_texts(traces: Sequence[dict[str, Any]]) -> list[object]:
    """Put the number of a list in place of each trace's ``customdata``, and return the lists.

    A line has the same texts in each panel of its figure.
    """
    texts: dict[str, tuple[int, object]] = {}
    for trace in traces:
        own = trace.get("customdata")
        if isinstance(own, list):
            trace["customdata"] = texts.setdefault(repr(own), (len(texts), own))[0]
    return [own for _, own in texts.values()]


def _plain(value: object, lost: list[float]) -> Any:
    """Return `value` as JSON types; numbers that are not finite become None and go to `lost`."""
    if isinstance(value, dict):
        if "bdata" in value and "dtype" in value:
            return _plain(_unpacked(value), lost)
        return {str(key): _plain(item, lost) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, lost) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist(), lost)
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(value)
        return None
    return value


def _unpacked(packed: dict[str, str]) -> object:
    """Return the array that plotly packed as base64."""
    flat = np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])
    shape = packed.get("shape")
    array = flat.reshape([int(n) for n in str(shape).split(",")]) if shape else flat
    return array.tolist()
