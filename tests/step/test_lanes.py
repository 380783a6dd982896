"""A step's price does not depend on the other steps that are priced with it."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from essim.hardware.profile import load_profile, shipped
from essim.methods.routing import Routing
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from essim.step.kinds import Case, Point
from essim.step.ops import decode_step
from essim.step.price import CostModel

SELECTOR = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4)
CASE = Case(PRESETS["llama-3.1-8b"], SELECTOR, Routing(where="cpu", anchor="mid"))
COSTS = CostModel(load_profile(shipped("hardware_profiles") / "h200-sxm.yaml"), CASE)
KINDS = sorted({op.kind for op in decode_step(CASE.model, SELECTOR, CASE.routing)})


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 32),
    # Below the pages chosen, within the tables, and far past them.
    st.lists(st.one_of(st.integers(1, 200), st.integers(1, 131072)), min_size=2, max_size=5),
)
@example(
    "attn_sparse", 8, [5, 5000]
)  # the first is not in the table, and dense attention prices it
def test_lanes_are_priced_each_on_its_own(kind: str, batch: int, contexts: list[int]) -> None:
    together = COSTS.price(kind, Point(batch, batch, np.array(contexts)))
    for lane, context in enumerate(contexts):
        alone = COSTS.price(kind, Point(batch, batch, np.array([context])))
        assert (together.mean_s[lane], together.rank[lane]) == (alone.mean_s[0], alone.rank[0])
