"""What training minimises: at each unrolled step, the distance to the target's own next-token distribution.

Step s at position p predicts token p+2+s, so its teacher is the target's distribution after token p+1+s, cut to the
draft vocabulary: softmax(target logits[t2d]). The loss is the soft cross-entropy, averaged over the positions that
count, times decay ** s. A position counts when token p+2+s is there and said by the assistant (the mask is shifted
together with the targets), and when the target's most likely token is in the draft vocabulary. All of it is float32:
in bfloat16 the gradient of the softmax is off by a fifth and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .model import Drafter, shift
from .shards import Features


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the right: [B, T], features [B, T, 3H], last [B, T, H]. The mask is 0 in the padding."""

    ids: Tensor
    mask: Tensor
    argmax: Tensor
    features: Tensor
    last: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Features], max_length: int, device: torch.device) -> Batch:
        """Pad `sequences`, cut to `max_length` tokens, as float32 on `device`."""

        def padded(name: str) -> Tensor:
            parts = [getattr(s, name)[:max_length] for s in sequences]
            return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).to(device)

        return cls(padded("ids"), padded("mask"), padded("argmax"), padded("features").float(), padded("last").float())


@dataclass(frozen=True)
class Losses:
    """`total` to descend on, and of each step the loss and the share of positions where both name the same token."""

    total: Tensor
    steps: list[float]
    accuracy: list[float]
    positions: int  # that counted at step 0


def unrolled_loss(drafter: Drafter, head: Tensor, batch: Batch, steps: int, decay: float) -> Losses:
    """The loss of `batch` over `steps` unrolled steps. `head` [D, H] is the target's, cut to the draft vocabulary."""
    taught = shift(batch.mask, 1) & drafter.t2d[batch.argmax]  # [B, T]: the distribution after token t is a teacher
    row = torch.zeros_like(batch.ids)
    row[taught] = torch.arange(int(taught.sum()), device=row.device)
    teacher = (batch.last[taught] @ head.T).softmax(-1)  # [n, D], row[t] of it after token t
    total = torch.zeros((), device=batch.ids.device)
    losses, accuracy, counted = [], [], 0
    for step, hidden in enumerate(drafter.unroll(batch.ids, batch.features, steps)):
        counts = shift(taught, 1 + step)
        n = int(counts.sum())
        counted = n if step == 0 else counted
        if n == 0:  # every sequence is shorter than the chain
            losses.append(0.0)
            accuracy.append(0.0)
            continue
        truth = teacher[shift(row, 1 + step)[counts]]
        logits = drafter.logits(hidden[counts]).float()
        loss = F.cross_entropy(logits, truth)
        total = total + decay**step * loss
        losses.append(loss.item())
        accuracy.append((logits.argmax(-1) == truth.argmax(-1)).float().mean().item())
    return Losses(total, losses, accuracy, counted)
