"""EAGLE-3 training as it is written when speed is no concern: what the trainer is measured against, and its check.

The mathematics is the payload's own, written out: attention by its definition with all T x (T + s) scores,
probabilities over the draft vocabulary at every position and unrolled step, a teacher computed anew for each step,
autograd for all of it, a plain AdamW, and a loss that is brought to the processor each time. Precision is the usual
one: float32 weights, bfloat16 autocast, float32 loss.

    train(drafter, head, feed, picked, steps=5, decay=0.8, rates=[1e-3] * len(picked), clip=0.5)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from unittest import mock

import torch
from eagle3 import model
from eagle3.attention import attend_reference
from eagle3.feed import Online
from eagle3.model import Drafter, shift
from eagle3.objective import Batch
from eagle3.runtime import compute
from torch import Tensor
from torch.nn import functional as F

WARM = 10  # steps that do not count for the rate


def loss_of(drafter: Drafter, head: Tensor, batch: Batch, steps: int, decay: float) -> Tensor:
    """The mean loss of `batch`; `head` [D, H] is the target's, cut to the draft vocabulary."""
    taught = torch.zeros(batch.ids.numel(), dtype=torch.bool, device=batch.ids.device)
    taught[batch.taught] = True
    taught = taught.view_as(batch.ids)
    total = head.new_zeros(())
    with mock.patch.object(model, "attend", attend_reference):
        for step, hidden in enumerate(drafter.unroll(batch.ids, batch.features, steps)):
            logits = drafter.logits(hidden).float()
            said = _shifted(batch.last, 1 + step)
            teacher = torch.softmax((said @ head.to(said.dtype).T).float(), -1)
            losses = -(teacher * F.log_softmax(logits, -1)).sum(-1)
            total = total + decay**step * (losses * shift(taught.long(), 1 + step)).sum()
    return total / max(1, len(batch.taught))


def train(
    drafter: Drafter, head: Tensor, feed: Online, batches: Iterable[list[int]], *, steps: int, decay: float,
    rates: Sequence[float], clip: float,
) -> tuple[list[float], float]:  # fmt: skip
    """Train on `batches` with the learning rate of each; their losses, and tokens a second after the first ones."""
    weights = list(drafter.parameters())
    optimizer = torch.optim.AdamW(weights, lr=rates[0], betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    began, tokens = 0.0, 0
    for number, picked in enumerate(batches):
        if number == min(WARM, len(rates) - 1):
            began, tokens = time.monotonic(), 0
        batch = feed.batch(picked)
        with compute(head.device):
            loss = loss_of(drafter, head, batch, steps, decay)
        optimizer.param_groups[0]["lr"] = rates[number]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        losses.append(loss.item())
        tokens += sum(feed.lengths[n] for n in picked)
    return losses, tokens / (time.monotonic() - began)


def _shifted(x: Tensor, by: int) -> Tensor:
    """`x` [B, T, H] moved `by` places to the left."""
    return F.pad(x[:, by:], (0, 0, 0, min(by, x.shape[1])))
