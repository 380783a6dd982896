"""Traffic: what is drawn, what traces say, what is left out and counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from essim.errors import InputError
from essim.serving.keys import Traffic, load_asked
from essim.serving.load import Pool
from essim.serving.trace import read_trace
from essim.serving.traffic import offered

OWN = "arrival_s,input_tokens,output_tokens\n"


def drawn(tmp_path: Path = Path(), seed: int = 0, **keys: object):
    lengths = {} if {"trace", "lengths"} & set(keys) else {"input_tokens": 100, "output_tokens": 10}
    return offered(Traffic.model_validate({**lengths, **keys}), tmp_path, seed)


def gaps_s(found) -> np.ndarray:
    return np.diff([request.arrival_ps for request in found.requests]) / 1e12


def test_uniform_arrivals_are_even() -> None:
    found = drawn(arrivals="uniform", rate=4, requests=3)
    assert [request.arrival_ps for request in found.requests] == [
        25 * 10**10,
        5 * 10**11,
        75 * 10**10,
    ]
    assert {(r.input_tokens, r.output_tokens) for r in found.requests} == {(100, 10)}


@pytest.mark.parametrize(
    ("keys", "cv"), [({"arrivals": "poisson"}, 1.0), ({"arrivals": "gamma", "cv": 2.5}, 2.5)]
)
def test_gaps_have_their_mean_and_variation(keys: dict[str, object], cv: float) -> None:
    gaps = gaps_s(drawn(rate=5, requests=40_000, **keys))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_rates_share_their_requests() -> None:
    """Common random numbers: another rate is the same requests, closer together."""
    lengths = {"input_tokens": {"mean": 500, "cv": 1}, "output_tokens": {"mean": 50, "cv": 1}}
    slow, fast = (drawn(arrivals="poisson", rate=r, requests=50, **lengths) for r in (1, 2))
    assert gaps_s(slow) == pytest.approx(2 * gaps_s(fast))
    assert [r.input_tokens for r in slow.requests] == [r.input_tokens for r in fast.requests]
    other = drawn(seed=1, arrivals="poisson", rate=1, requests=50, **lengths)
    assert [r.input_tokens for r in slow.requests] != [r.input_tokens for r in other.requests]


def test_lengths_follow_their_distribution() -> None:
    histogram = {"edges": [1, 11, 101], "weights": [1, 3]}
    normal = {"mean": 800, "cv": 0.5, "most": 4000}
    keys = {"input_tokens": normal, "output_tokens": histogram}
    found = drawn(arrivals="poisson", rate=1, requests=20_000, **keys)
    inputs = np.array([request.input_tokens for request in found.requests])
    outputs = np.array([request.output_tokens for request in found.requests])
    assert inputs.mean() == pytest.approx(800, rel=0.02)
    assert inputs.std() / inputs.mean() == pytest.approx(0.5, rel=0.05)
    cut = drawn(
        arrivals="poisson", rate=1, requests=999, **keys | {"input_tokens": normal | {"most": 900}}
    )
    assert max(request.input_tokens for request in cut.requests) == 900
    assert (outputs.min(), outputs.max()) == (1, 100)
    assert np.mean(outputs <= 10) == pytest.approx(0.25, abs=0.02)


def test_a_trace_of_its_own_columns(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(OWN + "5,100,10\n5,200,20\n7.5,300,30\n")
    found = drawn(tmp_path, trace="t.csv", rate_scale=2)
    assert [(r.arrival_ps, r.input_tokens, r.output_tokens) for r in found.requests] == [
        (0, 100, 10),
        (0, 200, 20),
        (125 * 10**10, 300, 30),
    ]
    window = drawn(tmp_path, trace="t.csv", from_s=1, to_s=3)
    assert [(r.arrival_ps, r.input_tokens) for r in window.requests] == [(15 * 10**11, 300)]
    with pytest.raises(InputError, match="no request from 3"):
        drawn(tmp_path, trace="t.csv", from_s=3, to_s=4)


def test_azure_and_mooncake_columns_are_known(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "m.jsonl"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 1500, "output_length": 7, "hash_ids": [0, 1, 9]},
        {"timestamp": 1600, "input_length": 600, "output_length": 7, "hash_ids": [7, 1]},
    ]
    mooncake.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = read_trace(azure)
    assert [row[1:] for row in found.rows] == [(374, 44), (396, 109)]
    assert found.rows[1][0] == pytest.approx(4.314579, abs=1e-6)
    found = read_trace(mooncake)
    assert found.rows == [(0.0, 1000, 5), (1.5, 1500, 7), (1.6, 600, 7)]
    # The second begins with both blocks of the first; the third with a block of its own.
    assert found.prefix_tokens == 1000


def test_bad_rows_are_counted_by_reason_and_not_reordered(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        OWN + "3,10,1\n1,10,1\n,10,1\nnan,10,1\n4,0,1\n4,-5,1\n4,10,0\n4,ten,1\n5,20,2\n6,7\n"
    )
    found = read_trace(file)
    assert found.rows == [(0.0, 10, 1), (2.0, 20, 2)]
    assert found.bad == {
        "earlier than the row before": 1,
        "no readable time": 2,
        "input of no tokens": 2,
        "output of no tokens": 1,
        "no readable length": 2,
    }


def test_what_cannot_be_served_is_counted_too(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(OWN + "0,10,1\n1,900,200\n2,300,1\n3,oops,1\n")
    load, bad = drawn(tmp_path, trace="t.csv").for_(1000, Pool(16, 10).fits)
    assert [request.input_tokens for request in load.requests] == [10]
    assert bad == {
        "longer than the model's context": 1,
        "never fits the KV pool": 1,
        "no readable length": 1,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "t.csv:1: its columns are not known. Known: arrival_s"),
        (OWN + "x,1,1\n", "no row can be served. 1 x no readable time"),
    ],
)
def test_a_trace_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        read_trace(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("traffic.rate=-1", "--set: traffic.rate: must be above 0 (got -1)"),
        ("traffic.rat=1", "--set: traffic.rat: unknown key. Did you mean 'traffic.rate'?"),
        ("traffic.arrivals=gamma", "cv belongs to arrivals: gamma, which needs it"),
        ("traffic.trace=t.csv", "give either arrivals or trace"),
        ("server.token_budget=8", "token_budget (8) is not above max_batch (128)"),
        ("server.prefill_replicas=1", "prefill_replicas belongs to policy: disaggregated"),
        ("plan.vary={slo.share: [1]}", "slo.share is not for a plan to vary"),
        (
            "plan.vary={selector.top_pages: [1]}",
            "List selectors under plan.quality, with a source",
        ),
        (
            "selector={kind: rocketkv, budget_tokens: 256}",
            "the settings of rocketkv follow from the workload",
        ),
    ],
)
def test_bad_keys_are_named(override: str, said: str) -> None:
    from essim.simulate.scenario import find_scenario

    with pytest.raises(InputError) as error:
        load_asked(find_scenario("chat-service"), [override])
    assert said in str(error.value)
