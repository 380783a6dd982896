"""The JSON schema for editors says what a file may write, neither more nor less."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from firstday import FIRST_DAY
from jsonschema import Draft202012Validator

from essim.errors import InputError
from essim.hardware.profile import shipped
from essim.methods.routing import PRESETS
from essim.methods.selectors import SELECTORS
from essim.model.shape import PRESETS as MODELS
from essim.serving.keys import schema
from essim.simulate.plan import points_of
from essim.text.yaml import Document, read_yaml

VALIDATOR = Draft202012Validator(schema())
SCENARIOS = sorted(shipped("scenarios").glob("*.yaml"))
BASE: dict[str, Any] = {
    "name": "n",
    "model": "llama-3.1-8b",
    "hardware": str(FIRST_DAY),
    "selector": {"kind": "quest", "budget_tokens": 2048},
    "routing": "gpu-target",
    "workload": {"batch": 1, "input_tokens": 32768, "output_tokens": 16},
}
DENSE = {"kind": "dense"}
SMALL = {
    **{"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16},
    **{"ffn": 128, "vocab": 100},
}


def reads(data: dict[str, Any]) -> bool:
    """Return whether essim reads a scenario."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            points_of(Document(FIRST_DAY, copy.deepcopy(data), {}))
    except InputError:
        return False
    return True


def test_the_schema_is_one_itself() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("file", SCENARIOS, ids=[file.stem for file in SCENARIOS])
def test_every_shipped_scenario_is_valid(file) -> None:
    VALIDATOR.validate(read_yaml(file).data)


# Every form that docs/scenario.md describes.
GOOD: dict[str, dict[str, Any]] = {
    "model by name": {},
    "model from a preset": {"model": {"preset": "llama-3.1-8b", "kv_dtype": "fp8"}},
    "model as a mapping": {"model": SMALL | {"name": "mine"}},
    "routing as a mapping": {"routing": {"where": "cpu", "anchor": "mid", "projection_rank": None}},
    "dense without routing": {"selector": DENSE, "routing": None},
    "swept without routing": {"sweep": {"routing": ["cpu-mid"]}, "routing": None},
    "dense with routing": {"selector": DENSE},
    "sweep": {"sweep": {"routing": ["cpu-mid", "gpu-target"], "workload.batch": [1, 2]}},
    "sweep of models": {"sweep": {"model": ["llama-3.1-8b", {"preset": "llama-3.1-70b"}]}},
    "compare and memory": {"compare": {"baseline": "cpu-in"}, "memory": {"reserve_frac": 0.1}},
    "rocketkv by budget": {"selector": {"kind": "rocketkv", "budget_tokens": 512}},
    "exact_topk": {"selector": {"kind": "exact_topk", "top_tokens": 128}},
    **{f"routing {name}": {"routing": name} for name in PRESETS},
    **{f"model {name}": {"model": name, "selector": DENSE} for name in MODELS},
}
BAD: dict[str, dict[str, Any]] = {
    "unknown key": {"modle": 1},
    "unknown key of a model": {"model": {"preset": "llama-3.1-8b", "headz": 1}},
    "half a model": {"model": {"layers": 2}},
    "unknown routing": {"routing": "cpu-mdi"},
    "no routing": {"routing": None},
    "no routing in a sweep": {"sweep": {"workload.batch": [1]}, "routing": None},
    "no selector": {"selector": None},
    "no kind": {"selector": {"top_tokens": 128}},
    "unknown kind": {"selector": {"kind": "dnese"}},
    "text for a number": {"workload": {"batch": "1", "input_tokens": 8, "output_tokens": 8}},
    "no value to sweep": {"sweep": {"workload.batch": []}},
}


def scenario(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (BASE | changes).items() if value is not None}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_read_is_valid(case: str) -> None:
    assert reads(scenario(GOOD[case]))
    VALIDATOR.validate(scenario(GOOD[case]))


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_is_not_valid(case: str) -> None:
    assert not reads(scenario(BAD[case]))
    assert not VALIDATOR.is_valid(scenario(BAD[case]))


def test_the_schema_knows_every_selector() -> None:
    assert set(schema()["properties"]["selector"]["discriminator"]["mapping"]) == set(SELECTORS)
