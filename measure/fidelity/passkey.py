"""A passkey in a long text: whether it is found again when decode attends to a few tokens.

The question and the answer are decoded with sparse attention; the text before is a dense prefill.
The answer is exact if each of its tokens is the most likely one after those before it, which is
what greedy decoding gives.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from essim.errors import InputError
from essim.results.column import Row
from measure.fidelity.decode import Setting, decode
from measure.fidelity.queries import Maker
from measure.fidelity.trajectory import Trajectory, run_dense
from measure.fidelity.weights.tokens import Tokens

_HEAD = "There is important info hidden inside a lot of irrelevant text. Find it and memorize it.\n"
_FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
_ASK = "What is the pass key? The pass key is "


@dataclass(frozen=True)
class Passkey:
    """One question.

    Attributes
    ----------
    tokens
        Text, question and answer, [N + 1].
    decoded
        Of the question and the answer.
    answer
        Tokens of the answer.
    """

    length_tokens: int
    depth: float
    tokens: Tensor
    decoded: int
    answer: int


def passkeys(tokens: Tokens, lengths: Sequence[int], depths: Sequence[float]) -> Iterator[Passkey]:
    """Yield a question of each context length and depth of the needle, each with its own key."""
    for length in lengths:
        for depth in depths:
            key = str(random.Random(f"{length} {depth}").randrange(10_000, 100_000))
            needle = f"The pass key is {key}. Remember it. {key} is the pass key.\n"
            head, line, hidden, ask, answer = (
                tokens.encode(text) for text in (_HEAD, _FILLER, needle, _ASK, key)
            )
            head = [*tokens.start, *head]
            room = length + 1 - sum(map(len, (head, hidden, ask, answer)))
            if room < len(line):
                message = f"{length} tokens hold no passkey"
                raise InputError(message, "Give more", key="--passkeys")
            filler = (line * (room // len(line) + 1))[:room]
            at = int(depth * room) // len(line) * len(line)
            ids = head + filler[:at] + hidden + filler[at:] + ask + answer
            made = torch.tensor(ids)
            yield Passkey(length, depth, made, len(ask) + len(answer) - 1, len(answer))


def score(maker: Maker, question: Passkey, settings: Sequence[Setting]) -> list[Row]:
    """Return a row for dense and for each setting, ``found`` 1 or 0; where dense fails no other."""
    tokens = question.tokens.to(maker.model.device)
    dense = run_dense(maker.model, tokens, question.decoded)
    at: Row = {"context_tokens": question.length_tokens, "depth_frac": question.depth}
    solved = _found(dense.log_probabilities, dense, question)
    rows: list[Row] = [at | {"setting": "dense", "found": int(solved)}]
    for setting in settings if solved else ():
        own = decode(maker, dense, setting).log_probabilities
        rows.append(at | {"setting": setting.name, "found": int(_found(own, dense, question))})
    return rows


def _found(log_probabilities: Tensor, dense: Trajectory, question: Passkey) -> bool:
    best = log_probabilities.argmax(-1)[-question.answer :]
    return bool((best == dense.targets[-question.answer :]).all())


def shares(rows: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Return the share of keys found, by setting, among those that dense attention finds."""
    counted: dict[str, list[int]] = {}
    for row in rows:
        counted.setdefault(str(row["setting"]), []).append(int(str(row["found"])))
    return {name: sum(found) / len(found) for name, found in counted.items()}
