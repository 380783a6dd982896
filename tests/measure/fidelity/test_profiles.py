"""ES-Mix assignments, intervals, contexts and plans: literals."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tiny import tiny_run  # noqa: E402

from essim.errors import InputError  # noqa: E402
from measure.fidelity import domains, mix, passkey  # noqa: E402
from measure.fidelity.plan import Options, make_plan, parse_query  # noqa: E402
from measure.fidelity.queries import Maker, Query  # noqa: E402
from measure.fidelity.statistics import block_error, interval, trend  # noqa: E402
from measure.fidelity.weights.tokens import Tokens  # noqa: E402

GAPS = {
    "a": np.array([0.2, 0.005, 0.01, 0.0]),
    "b": np.array([0.1, 0.03, 0.02, -0.01]),
    "c": np.array([0.3, 0.001, 0.0, 0.05]),
}


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str, add_special_tokens: bool = True):
        class Found:
            ids = tuple(text.encode())

        return Found


BYTES = Tokens(Bytes(), (1,))


def test_in_where_the_gap_is_at_most_tau() -> None:
    assert mix.assignment([GAPS["a"]], 0.01) == ["mid", "in", "in", "in"]
    assert mix.assignment(list(GAPS.values()), 0.012) == ["mid", "in", "in", "mid"]


def test_no_domain_is_judged_by_its_own_profile() -> None:
    assert mix.held_out(GAPS, 0.01) == {
        "a": ["mid", "mid", "in", "mid"],
        "b": ["mid", "in", "in", "mid"],
        "c": ["mid", "mid", "mid", "in"],
    }
    with pytest.raises(InputError, match="two domains"):
        mix.held_out({"a": GAPS["a"]}, 0.01)


def test_stability_is_of_each_pair() -> None:
    rows = mix.stability(GAPS, 0.01)
    assert [(r["domain"], r["other_domain"], r["agreement_frac"]) for r in rows] == [
        *(("a", "b", 0.5), ("a", "c", 0.75), ("b", "c", 0.25))
    ]
    assert rows[0]["pearson"] == pytest.approx(np.corrcoef(GAPS["a"], GAPS["b"])[0, 1])
    # Where a's profile takes In, b loses 0.03 at most.
    assert rows[0]["worst_gap_frac"] == 0.03


def test_blocks_are_what_errors_are_made_of() -> None:
    values = np.repeat([[0.0, 2.0], [4.0, 6.0]], 16, axis=1)
    # Four blocks: 0, 2, 4, 6, of standard deviation sqrt(20/3).
    assert block_error(values) == pytest.approx(np.sqrt(20 / 3) / 2)
    assert np.isnan(block_error(np.zeros((1, 31))))


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_line_without_noise_has_its_slope(slope: float, start: float) -> None:
    x = np.arange(40.0)
    found = trend(x, start + slope * x)
    assert found == pytest.approx((slope, slope, slope), abs=1e-9)
    assert interval(np.full(9, start)) == pytest.approx((start, start))


def test_an_interval_of_the_mean_is_about_two_errors_wide() -> None:
    values = np.random.default_rng(2).normal(size=400)
    low, high = interval(values)
    assert (high - low) / (2 * values.std() / 20) == pytest.approx(1.96, rel=0.08)


@pytest.mark.parametrize("domain", domains.DOMAINS)
def test_every_domain_has_two_thousand_tokens_and_begins_as_texts_do(domain: str) -> None:
    ids = domains.context(domain, BYTES, 2048, 256)
    assert (len(ids), int(ids[0])) == (2049, 1)


def test_retrieval_asks_for_what_its_prompt_says() -> None:
    text = bytes(domains.context("retrieval", BYTES, 4000, 512).tolist()[1:]).decode()
    ledger, again = text.split("\nAgain, from the ledger:\n")[:2]
    assert len(again.encode()) >= 480
    asked = again.splitlines()[:-1]
    assert len(asked) >= 7
    assert all(line in ledger.splitlines() for line in asked)
    assert asked != ledger.splitlines()[1 : len(asked) + 1]


@pytest.mark.parametrize(
    ("domain", "tokens", "message"),
    [("boook", 64, "no domain 'boook'.*book"), ("play", 10**6, "play has .* are needed")],
)
def test_what_is_wrong_with_a_context_is_said(domain: str, tokens: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        domains.context(domain, BYTES, tokens, 16)


def test_passkeys_lie_where_they_are_said_to_lie() -> None:
    found = list(passkey.passkeys(BYTES, [2000], [0.0, 0.5, 1.0]))
    for question, at in zip(found, (90, 950, 1810), strict=True):
        text = bytes(question.tokens.tolist()[1:]).decode()
        assert len(question.tokens) == 2001
        key = text[-5:]
        assert text.index(f"The pass key is {key}. Remember it.") == pytest.approx(at, abs=95)
        assert question.decoded == len("What is the pass key? The pass key is ") + 5 - 1
    assert len({bytes(question.tokens.tolist()[-5:]) for question in found}) == 3


def test_no_setting_is_asked_what_dense_attention_does_not_find() -> None:
    model, _ = tiny_run()
    question = passkey.Passkey(40, 0.5, torch.arange(41), 8, 3)
    plan = make_plan(Options(), 32, 8, lambda: None)  # type: ignore[arg-type, return-value]
    rows = passkey.score(Maker(model), question, plan.decodes[:1])
    assert [(row["setting"], row["found"]) for row in rows] == [("dense", 0)]


def test_the_default_grid_is_small() -> None:
    plan = make_plan(Options(), 576, 64, lambda: None)  # type: ignore[arg-type, return-value]
    assert [setting.name for setting in plan.decodes] == [
        *("rocketkv target 64", "rocketkv target 128", "rocketkv target 256"),
        *("rocketkv mid 64", "rocketkv mid 128", "rocketkv mid 256"),
        *("rocketkv in 128", "rocketkv mix 128", "rocketkv mid-r128 128"),
        *("exact_topk target 128", "quest target 128", "sink_recent 128"),
    ]
    assert (plan.budget, plan.channels) == (128, 16)


def test_one_domain_alone_has_no_mix() -> None:
    plan = make_plan(Options(domains=("book",)), 576, 64, lambda: None)  # type: ignore[arg-type, return-value]
    assert len(plan.decodes) == 11
    assert all(setting.query.kind != "mix" for setting in plan.decodes)


def test_options_that_are_given_are_combined() -> None:
    options = Options(selectors=("quest", "sink_recent"), queries=("in", "mid"), budgets=(64,))
    plan = make_plan(options, 576, 64, lambda: None)  # type: ignore[arg-type, return-value]
    names = [setting.name for setting in plan.decodes]
    assert names == ["quest in 64", "quest mid 64", "sink_recent 64"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parse_query("md"), "no query 'md'"),
        (lambda: parse_query("mid-rx"), "no query 'mid-rx'"),
        (lambda: parse_query("target-r8"), "no projection to cut"),
        (lambda: Options(decoded_tokens=2048), "less than --context"),
        (lambda: Options(domains=("book", "book")), "there twice"),
        (lambda: Options(device="tpu"), "no device 'tpu'"),
        (lambda: list(passkey.passkeys(BYTES, [80], [0.5])), "80 tokens hold no passkey"),
        (lambda: make_plan(Options(budgets=(8,)), 32, 8, pytest.fail), "8 tokens of 2048"),
        (lambda: make_plan(Options(selectors=("qest",)), 32, 8, pytest.fail), "'qest'.*quest"),
    ],
)
def test_what_is_wrong_with_options_is_said(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_names_of_queries() -> None:
    assert [Query("mid").name, parse_query("mid-r128").name] == ["mid", "mid-r128"]
