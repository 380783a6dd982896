"""The whole study of one model: dense runs, choices, profiles, decodes, passkeys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from essim.errors import InputError
from essim.results.column import Row
from measure.fidelity import domains, mix, passkey
from measure.fidelity.choice import Choices, measure_choices
from measure.fidelity.decode import decode
from measure.fidelity.model import Model, on_device
from measure.fidelity.plan import Options, Plan, make_plan
from measure.fidelity.quality import Output, judge, negative_log_likelihood
from measure.fidelity.queries import Maker
from measure.fidelity.selectors import Loki, principal_directions
from measure.fidelity.trajectory import Trajectory, run_dense
from measure.fidelity.weights.checkpoint import Checkpoint
from measure.fidelity.weights.find import read_model
from measure.fidelity.weights.tokens import Tokens

# Tokens that Loki's directions are fitted on.
_CALIBRATION_TOKENS = 1024
Tell = Callable[[str, int, int], None]


@dataclass
class Study:
    """What was found.

    Attributes
    ----------
    choices
        By domain.
    dense_loss
        -log p of each decoded token under dense attention, by domain.
    outputs
        By setting's name, then by domain.
    gaps
        mass(Mid) - mass(In) of each routed layer, by domain.
    mix
        The anchor of target layers 1, 2, ... that all domains together give.
    """

    options: Options
    checkpoint: Checkpoint
    plan: Plan
    choices: dict[str, Choices] = field(default_factory=dict)
    dense_loss: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Output]] = field(default_factory=dict)
    gaps: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    mix: list[str] = field(default_factory=list)
    passkeys: list[Row] = field(default_factory=list)


def run_study(options: Options, tell: Tell) -> Study:
    """Measure what options ask for.

    Parameters
    ----------
    tell
        Called with what is done, how much of it, and of how much.

    Raises
    ------
    InputError, AbsentError
        As of `read_model`, `domains.context` and `make_plan`.
    """
    checkpoint, tokens = read_model(options.model)
    model, count = on_device(checkpoint, options.device), len(options.domains)
    shape = model.sizes
    longest = max(options.context_tokens, *options.passkey_tokens, 0)
    if longest > shape.max_context_tokens:
        message = f"{longest} tokens, but {checkpoint.name} has a context of "
        raise InputError(message + f"{shape.max_context_tokens}", key="--context, --passkeys")
    loki = partial(fit_loki, model, tokens, options)
    plan = make_plan(options, shape.hidden, shape.head_dim, loki)
    study = Study(options, checkpoint, plan)
    runs: dict[str, Trajectory] = {}
    for done, domain in enumerate(options.domains):
        tell("choices", done, count)
        sizes = (options.context_tokens, options.decoded_tokens)
        ids = domains.context(domain, tokens, *sizes).to(model.device)
        runs[domain] = run_dense(model, ids, options.decoded_tokens)
        study.choices[domain] = measure_choices(
            Maker(model), runs[domain], plan.queries, plan.choices, plan.channels, options.stride
        )
        study.gaps[domain] = _gap(study.choices[domain], plan)
    study.mix = mix.assignment(list(study.gaps.values()), options.tau)
    _decode_all(study, model, runs, tell)
    _find_passkeys(study, model, tokens, tell)
    return study


def fit_loki(model: Model, tokens: Tokens, options: Options) -> Loki:
    """Return Loki with directions fitted on the calibration text."""
    ids = domains.calibration(tokens, _CALIBRATION_TOKENS + 1).to(model.device)
    keys = run_dense(model, ids, 1).keys
    return Loki([principal_directions(own, options.loki_rank) for own in keys])


def _gap(choices: Choices, plan: Plan) -> NDArray[np.floating]:
    """Return mass(Mid) - mass(In) of each routed layer under RocketKV at the main budget."""
    mid, early = (choices.settings[f"rocketkv {q} {plan.budget}"]["mass"] for q in ("mid", "in"))
    gap: NDArray[np.floating] = (mid - early).mean(axis=(1, 2))
    return gap


def _decode_all(study: Study, model: Model, runs: dict[str, Trajectory], tell: Tell) -> None:
    """Decode every setting on every domain; ES-Mix as the other domains would have it."""
    needs_mix = any(setting.query.kind == "mix" for setting in study.plan.decodes)
    mixes = mix.held_out(study.gaps, study.options.tau) if needs_mix else {}
    decodes, done = study.plan.decodes, 0
    for domain, dense in runs.items():
        study.dense_loss[domain] = negative_log_likelihood(dense.log_probabilities, dense)
        maker = Maker(model, mixes.get(domain, ()))
        for setting in decodes:
            tell("decodes", done, len(decodes) * len(runs))
            output = judge(decode(maker, dense, setting), dense)
            study.outputs.setdefault(setting.name, {})[domain] = output
            done += 1


def _find_passkeys(study: Study, model: Model, tokens: Tokens, tell: Tell) -> None:
    options, settings = study.options, study.plan.decodes
    asked = list(passkey.passkeys(tokens, options.passkey_tokens, options.depths))
    for done, question in enumerate(asked):
        tell("passkeys", done, len(asked))
        study.passkeys += passkey.score(Maker(model, study.mix), question, settings)
