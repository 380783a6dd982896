"""Where the prices of a point come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PriceSources(str):
    """Op kinds by the worst source of their price; as text ``measured: gemm_o; roofline: rope``.

    Attributes
    ----------
    kinds
        Source -> the op kinds it is the worst source of, by name; the best source comes first.
    """

    kinds: Mapping[str, tuple[str, ...]]

    def __new__(cls, kinds: Mapping[str, tuple[str, ...]]) -> PriceSources:
        """Make the text of `kinds`, and keep them."""
        made = super().__new__(cls, "; ".join(f"{s}: {' '.join(k)}" for s, k in kinds.items()))
        made.kinds = dict(kinds)
        return made

    @staticmethod
    def read(text: str) -> PriceSources:
        """Return the sources that a text of them says."""
        parts = [part.partition(": ") for part in text.split("; ") if part]
        return PriceSources({source: tuple(kinds.split()) for source, _, kinds in parts})

    @staticmethod
    def of(worst: Mapping[str, str], order: Iterable[str]) -> PriceSources:
        """Return the sources of op kinds, given the worst of each, in the order given."""
        kinds = {s: tuple(sorted(k for k, own in worst.items() if own == s)) for s in order}
        return PriceSources({source: names for source, names in kinds.items() if names})
