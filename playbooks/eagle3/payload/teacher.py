"""What the target would say next, over the draft vocabulary: whole from its last state, or its likeliest tokens alone.

A last state is 2H bytes a token and gives the whole distribution; K tokens with their log-probabilities are 6K bytes
and give it cut off and scaled up again. For a large target the last state is a quarter of what is stored. Something is
lost, and `extract` measures it where it stores: the mean Kullback-Leibler divergence and the share of probability kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Top:
    """The K likeliest draft tokens at each position: `logs` [..., K] log-probabilities, `ids` [..., K] draft ids."""

    logs: Tensor
    ids: Tensor


def likeliest(last: Tensor, head: Tensor, count: int) -> Top:
    """The `count` likeliest draft tokens after each of `last` [T, H]; `head` [D, H] is cut to the draft vocabulary."""
    logs, ids = torch.log_softmax((last.to(head.dtype) @ head.T).float(), -1).topk(min(count, len(head)), dim=-1)
    return Top(logs, ids)


def spread(top: Top, size: int) -> Tensor:
    """Probabilities [..., D] that are zero but for the tokens of `top`, and sum to 1."""
    shares = torch.softmax(top.logs.float(), -1)
    return shares.new_zeros(*shares.shape[:-1], size).scatter_(-1, top.ids.long(), shares)


@dataclass
class Fidelity:
    """Sums over positions: the divergence of the cut distribution from the whole one, and what probability it keeps."""

    positions: int = 0
    divergence: float = 0.0
    kept: float = 0.0

    def add(self, last: Tensor, head: Tensor, top: Top) -> None:
        """Take in the positions of `last` [T, H] with what is stored of them."""
        whole = torch.log_softmax((last.to(head.dtype) @ head.T).float(), -1)
        kept = top.logs.float().exp().sum(-1).clamp(max=1.0)
        cut = torch.log_softmax(top.logs.float(), -1)
        # The cut distribution is zero elsewhere, so its divergence from the whole one runs over its own tokens.
        self.divergence += float((cut.exp() * (cut - whole.gather(-1, top.ids.long()))).sum())
        self.kept += float(kept.sum())
        self.positions += len(last)

    def to_json(self) -> dict[str, float | int]:
        count = max(1, self.positions)
        return {
            "positions": self.positions,
            "divergence": round(self.divergence / count, 5),
            "probability_kept": round(self.kept / count, 5),
        }
