"""The stepwise router's kernels against the float64 reference, interpreted on the CPU."""

import pytest
from interpreter import require_interpreter

require_interpreter()
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from float64.page_routers import check_stepwise  # noqa: E402

from measure.kernels.gpu_router.stepwise.router import random_router  # noqa: E402


@pytest.mark.parametrize("context_tokens", [3, 90, 401, 804])
@pytest.mark.parametrize("channels", [32, 128])
def test_selection_and_update(context_tokens: int, channels: int) -> None:
    router = random_router(2, context_tokens, kv_heads=2, channels=channels)
    router.context[1] = max(1, context_tokens - 2)
    errors = check_stepwise(router)
    assert errors["summaries"] == 0
    assert errors["offsets"] == 0
    assert errors["selection"] < 1e-4
