"""Contexts by domain: a prompt, and a continuation that is decoded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from importlib import resources

import torch
from torch import Tensor

from essim.errors import InputError
from essim.text.yaml import nearest_hint
from measure.fidelity.weights.tokens import Tokens

# Texts are excerpts; code and reference are as long as Python's installation has them.
_CHARACTERS = 24_000
_FIRST = (
    *("Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Irene", "Jonas"),
    *("Karin", "Leo", "Mina", "Nils", "Olga", "Pavel", "Rosa", "Stefan", "Tessa", "Viktor"),
)
_LAST = (
    *("Abbott", "Becker", "Castro", "Dalton", "Ekström", "Fischer", "Garcia", "Holmes", "Ivanov"),
    *("Jensen", "Keller", "Lindgren", "Moreau", "Novak", "Ortega", "Petrov", "Quinn", "Rossi"),
)
_THINGS = (
    *("a brass lamp", "two maps", "an old violin", "a silver key", "three letters", "a red coat"),
    *(
        "a clay jar",
        "a wool blanket",
        "some coins",
        "a broken watch",
        "a green bottle",
        "a compass",
    ),
)


def _shipped(name: str) -> Callable[[], str]:
    return lambda: (resources.files("measure.fidelity.texts") / f"{name}.txt").read_text("utf-8")


def _code() -> str:
    import argparse
    import inspect

    return inspect.getsource(argparse).partition("# ====")[2][:_CHARACTERS]


def _reference() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics.values())[:_CHARACTERS]


_TEXTS: dict[str, Callable[[], str]] = {
    "book": _shipped("book"),
    "code": _code,
    "documentation": _shipped("documentation"),
    "play": _shipped("play"),
    "reference": _reference,
}
RETRIEVAL = "retrieval"
DOMAINS = (*_TEXTS, RETRIEVAL)
DEFAULT_DOMAINS = ("book", "code", RETRIEVAL)


def context(domain: str, tokens: Tokens, count: int, decoded: int) -> Tensor:
    """Return the ids of a domain's context, [count + 1], whose last `decoded` inputs are decoded.

    ``retrieval`` is a ledger of records, and its continuation asks for some of them again.

    Raises
    ------
    InputError
        If there is no such domain, or its text is too short.
    """
    start = list(tokens.start)
    if domain == RETRIEVAL:
        ids = _retrieval_ids(tokens, count - len(start), decoded)
    elif domain in _TEXTS:
        ids = tokens.encode(_TEXTS[domain]())
    else:
        raise InputError(f"no domain {domain!r}", nearest_hint(domain, list(DOMAINS)))
    ids = start + ids
    if len(ids) < count + 1:
        message = f"{domain} has {len(ids)} tokens, {count + 1} are needed"
        raise InputError(message, "Take a shorter --context")
    return torch.tensor(ids[: count + 1])


def calibration(tokens: Tokens, count: int) -> Tensor:
    """Return ids of a text that is in no domain, at most `count`."""
    return torch.tensor([*tokens.start, *tokens.encode(_shipped("calibration")())][:count])


def _retrieval_ids(tokens: Tokens, count: int, decoded: int) -> list[int]:
    """Return a ledger of `count - decoded` tokens, and questions with their answers after it."""
    source = random.Random(0)
    ledger = [f"Locker {n} belongs to {who} and holds {what}.\n" for n, who, what in _records()]
    head, prompt, kept = tokens.encode("The ledger of the lockers.\n"), list[int](), list[str]()
    room = count - decoded - len(head) - len(tokens.encode("\nAgain, from the ledger:\n"))
    for line in ledger:
        ids = tokens.encode(line)
        if len(prompt) + len(ids) > room:
            break
        prompt += ids
        kept.append(line)
    source.shuffle(kept)
    again = tokens.encode("\nAgain, from the ledger:\n" + "".join(kept))
    made = head + prompt + again
    # Repeated from the start where few records fit.
    while len(made) < count + 1:
        made += again
    return made


def _records() -> Sequence[tuple[int, str, str]]:
    """Return a thousand records, no two with one number."""
    source = random.Random(1)
    numbers = source.sample(range(1000, 10000), 1000)
    choice = source.choice
    return [(n, f"{choice(_FIRST)} {choice(_LAST)}", choice(_THINGS)) for n in numbers]
