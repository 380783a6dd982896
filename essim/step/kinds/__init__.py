"""What every op kind has to do: the table that prices it, the point in that table, and its floor.

The floor of an op is its least bytes over bandwidth or its FLOPs over the peak, plus its launches:
the roofline that prices it where no table does.
"""

from essim.step.kinds.case import Case, Point, Pricer, Work
from essim.step.kinds.experts import EXPERT_KINDS
from essim.step.kinds.latent import LATENT_KINDS
from essim.step.kinds.layer import LAYER_KINDS
from essim.step.kinds.prefill import PREFILL_KINDS
from essim.step.kinds.routes import ROUTE_KINDS

__all__ = ["KINDS", "ROUTE_KINDS", "Case", "Point", "Pricer", "Work"]

KINDS: dict[str, Pricer] = LAYER_KINDS | LATENT_KINDS | EXPERT_KINDS | PREFILL_KINDS | ROUTE_KINDS
