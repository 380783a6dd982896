"""How many requests a second each engine of `essim serve` simulates, on one core.

Requests have the lengths of Azure's conversation trace (`scenarios/conversation-hour.yaml`), chunks
of 512, KV accounting on; twenty-five a second keep one H200 busy. Both engines run in this process
with the same prices; what counts is their ratio. Times are of the process, so that other work on
the machine does not count. Run: ``python benchmarks/serving.py``
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from essim.hardware.profile import shipped
from essim.serving.deployment import deploy, serve
from essim.serving.keys import load_asked
from essim.serving.traffic import offered
from essim.simulate.sweep import Simulator

# The reference is slow: it serves the first of the requests.
FEW, REPEATS = 400, 3


def main() -> None:
    file = shipped("scenarios") / "conversation-hour.yaml"
    asked = load_asked(file, ["traffic.rate=25"])
    server = asked.server.model_copy(update={"max_batch": 255, "token_budget": 512})
    asked = replace(asked, server=server)
    offer = offered(asked.traffic, Path(), seed=0)
    profile = Simulator().profile(asked.point.hardware)
    longest = max(request.input_tokens for request in offer.requests)
    deployment = deploy(asked, profile, longest)
    few = replace(offer, requests=offer.requests[:FEW])
    print(f"{'engine':8}{'requests':>10}{'steps':>10}{'requests/s':>12}{'Mtokens/s':>11}")
    rates = {}
    for engine, load in (("jump", offer), ("des", few), ("jump", few)):
        serve(deployment, load, engine=engine, sampled=False)  # prices are made on the way
        best_s = float("inf")
        for _ in range(REPEATS if engine == "jump" else 1):
            start_s = time.process_time()
            served = serve(deployment, load, engine=engine, sampled=False)
            best_s = min(best_s, time.process_time() - start_s)
        count = len(served.records)
        tokens = sum(r.request.input_tokens + r.request.output_tokens for r in served.records)
        rates[engine, count] = count / best_s
        steps = sum(map(sum, (outcome.steps for outcome in served.outcomes)))
        speed = f"{count / best_s:>12,.0f}{tokens / best_s / 1e6:>11.2f}"
        print(f"{engine:8}{count:>10,}{steps:>10,}{speed}")
    print(f"ratio on the same requests: {rates['jump', FEW] / rates['des', FEW]:.1f}")


if __name__ == "__main__":
    main()
