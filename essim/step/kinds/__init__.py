"""What every op kind has to do: the table that prices it, the point in that table, and its floor.

The floor of an op is its least bytes over bandwidth or its FLOPs over the peak, plus its launches:
the roofline that prices it where no table does.
"""

from essim.methods.selectors import SELECTORS
from essim.step.kinds.case import Case, Kind, Point, Pricer, Work
from essim.step.kinds.choice import CHOICE_KINDS
from essim.step.kinds.experts import EXPERT_KINDS
from essim.step.kinds.latent import LATENT_KINDS
from essim.step.kinds.layer import LAYER_KINDS
from essim.step.kinds.prefill import PREFILL_KINDS
from essim.step.kinds.routes import ROUTE_KINDS

__all__ = ["KINDS", "Case", "Kind", "Point", "Pricer", "Work", "priced_names"]

KINDS: dict[str, Kind] = LAYER_KINDS | LATENT_KINDS | EXPERT_KINDS
KINDS |= PREFILL_KINDS | CHOICE_KINDS | ROUTE_KINDS


def priced_names() -> dict[str, list[str]]:
    """Return by which names a profile may price an op, as ``constants`` and in ``tables``."""
    own = [(name,) if kind.tables is None else kind.tables for name, kind in KINDS.items()]
    own += [selector.tables() for selector in SELECTORS.values()]
    return {
        "constants": [name for name, kind in KINDS.items() if kind.constant],
        "tables": list(dict.fromkeys(table for tables in own for table in tables)),
    }
