"""What sparse decode does to the output: loss, divergence from dense, agreement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from essim.results.column import Row
from measure.fidelity.decode import Decoded, Setting
from measure.fidelity.statistics import block_error
from measure.fidelity.trajectory import Trajectory


@dataclass(frozen=True)
class Output:
    """A decode of one context, token by token, [T] each, and the tokens attended to on average."""

    loss: NDArray[np.float32]
    divergence: NDArray[np.float32]
    agreement: NDArray[np.float32]
    attended_tokens: float


def negative_log_likelihood(log_probabilities: Tensor, dense: Trajectory) -> NDArray[np.float32]:
    """Return -log p of each target, [T]."""
    picked = log_probabilities.gather(1, dense.targets[:, None])[:, 0]
    found: NDArray[np.float32] = (-picked).cpu().numpy()
    return found


def judge(decoded: Decoded, dense: Trajectory) -> Output:
    """Return a decode beside the dense one: KL(dense || sparse), and whether the best token is."""
    own, true = decoded.log_probabilities, dense.log_probabilities
    divergence = (true.exp() * (true - own)).sum(-1)
    agreement = (own.argmax(-1) == true.argmax(-1)).float()
    return Output(
        negative_log_likelihood(own, dense),
        divergence.cpu().numpy(),
        agreement.cpu().numpy(),
        decoded.attended_tokens,
    )


def quality_row(
    setting: Setting, outputs: list[Output], dense: list[NDArray[np.float32]], domain: str
) -> Row:
    """Return a setting's row over contexts; `dense` has each context's loss of dense attention."""
    lost = np.stack([output.loss for output in outputs])
    added = lost - np.stack(dense)
    divergence = np.stack([output.divergence for output in outputs])
    query = setting.query if setting.selector.routes else None
    return {
        "domain": domain,
        "selector": setting.selector.name,
        "query": query.kind if query else None,
        "projection_rank": query.rank if query else None,
        "budget_tokens": setting.budget,
        "attended_tokens": float(np.mean([output.attended_tokens for output in outputs])),
        "perplexity": float(np.exp(lost.mean())),
        "loss_nats": float(added.mean()),
        "loss_se_nats": block_error(added),
        "kl_nats": float(divergence.mean()),
        "kl_se_nats": block_error(divergence),
        "top1_agreement_frac": float(np.mean([output.agreement.mean() for output in outputs])),
    }


def against_target(outputs: list[Output], real: list[Output]) -> Row:
    """Return what a proxy loses beyond the real query of the same selector and budget, paired."""
    both = zip(outputs, real, strict=True)
    loss, divergence = [], []
    for own, other in both:
        loss.append(own.loss - other.loss)
        divergence.append(own.divergence - other.divergence)
    return {
        "beyond_target_nats": float(np.mean(loss)),
        "beyond_target_se_nats": block_error(np.stack(loss)),
        "kl_beyond_target_nats": float(np.mean(divergence)),
        "kl_beyond_target_se_nats": block_error(np.stack(divergence)),
    }
