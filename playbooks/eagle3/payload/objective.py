"""What training minimises: at each unrolled step, the distance to the target's own next-token distribution.

Step s at position p predicts token p+2+s, so its teacher is the target's distribution after token p+1+s, cut to the
draft vocabulary: softmax(target logits[t2d]). A position t is taught when token t+1 is there and said by the assistant
(the mask is shifted together with the targets), and when the target's most likely token after t is in the draft
vocabulary. The loss is the sum over steps s and taught t of decay ** s times the soft cross-entropy between the teacher
at t and the drafter at its root t-1-s, divided by the number n of taught positions (a root before the text does not
count). Sums and counts are kept apart, so that passes and processes can be added up before they are divided.

All of it is float32: in bfloat16 the gradient of the softmax is off by a fifth and more. And none of it is ever there
for all positions at once: logits live for one chunk of taught positions, in which the teacher is computed once for all
steps and the gradient at once with the loss, since a cross-entropy's is softmax - teacher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .compiled import compiled, is_compiled
from .model import Drafter
from .teacher import Top, spread

CHUNK_BYTES = 512 << 20  # of float32 logits at a time, all unrolled steps together


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the right: `ids` [B, T], `features` [B, T, 3H], `last` [B, T, H] after the final norm.

    `taught` [n] are the positions with a teacher, as places in the flattened [B * T]. Without `last` the teacher is
    `top`, the likeliest draft tokens [B, T, K].
    """

    ids: Tensor
    features: Tensor
    last: Tensor | None
    taught: Tensor
    top: Top | None = None

    def teacher(self, places: Tensor, head: Tensor) -> Tensor:
        """The target's probabilities [n, D] at `places` of the flattened positions; `head` [D, H]."""
        if self.last is not None:
            return torch.softmax((self.last.flatten(0, 1)[places] @ head.T).float(), -1)
        assert self.top is not None
        logs, ids = (part.flatten(0, 1)[places] for part in (self.top.logs, self.top.ids))
        return spread(Top(logs, ids), len(head))


@dataclass(frozen=True)
class Losses:
    """Sums over the taught positions: `loss` to descend on, of each step its own loss and how often both agreed."""

    loss: Tensor  # []
    steps: Tensor  # [S], without the decay
    agreed: Tensor  # [S], the drafter's and the teacher's most likely token are the same
    positions: int

    @property
    def mean(self) -> Tensor:
        """The loss of this batch alone."""
        return self.loss / max(1, self.positions)


def unrolled_loss(drafter: Drafter, head: Tensor, batch: Batch, steps: int, decay: float) -> Losses:
    """The loss of `batch` over `steps` unrolled steps. `head` [D, H] is the target's, cut to the draft vocabulary."""
    states = drafter.unroll(batch.ids, batch.features, steps)
    hidden = torch.stack([drafter.normed(h.flatten(0, 1)) for h in states])
    hidden = hidden.to(batch.features.dtype)
    places = batch.taught % batch.ids.shape[1]
    loss, each, agreed = _Unrolled.apply(hidden, drafter.lm_head.weight, head, batch, places, decay)
    return Losses(loss, each, agreed, len(batch.taught))


class _Unrolled(torch.autograd.Function):
    """From normed states [S, B * T, H] and the drafter's head [D, H] to sums; gradients are computed on the way."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, head: Tensor, batch: Batch, places: Tensor, decay: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = len(hidden)
        ahead = torch.arange(1, steps + 1, device=hidden.device)[:, None]
        scale = decay ** (ahead - 1)
        hidden_grad, weight_grad = torch.zeros_like(hidden), torch.zeros_like(weight)
        each = torch.zeros(steps, device=hidden.device)
        agreed = torch.zeros(steps, device=hidden.device)
        low, head_low = weight.to(hidden.dtype), head.to(hidden.dtype)
        rows = max(1, CHUNK_BYTES // (4 * steps * len(weight)))
        taught_places = (batch.taught, places)
        if is_compiled():  # chunks of one size: what fills the last one is at place 0, which has no root and counts not
            taught_places = tuple(F.pad(x, (0, -len(x) % rows)) for x in taught_places)
        for taught, place in zip(*(x.split(rows) for x in taught_places), strict=True):
            teacher = batch.teacher(taught, head_low)
            counts = place >= ahead  # [S, C]: the root is not before the text
            roots = (taught - ahead).clamp(min=0)
            states = torch.stack([h[r] for h, r in zip(hidden, roots, strict=True)])
            losses, same, slope = soft_cross_entropy(states @ low.T, teacher, counts, scale)
            each += losses
            agreed += same
            for h, r, g in zip(hidden_grad, roots, slope @ low, strict=True):
                h.index_add_(0, r, g)
            weight_grad += slope.flatten(0, 1).T @ states.flatten(0, 1)
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.mark_non_differentiable(each, agreed)
        return (each * scale[:, 0]).sum(), each, agreed

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_grad, weight_grad = ctx.saved_tensors
        return grad.to(hidden_grad.dtype) * hidden_grad, grad * weight_grad, None, None, None, None


@compiled
def soft_cross_entropy(logits: Tensor, teacher: Tensor, counts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For `logits` [S, C, D] and `teacher` [C, D]: losses [S], agreements [S], and the gradient in the logits' dtype.

    Only places with `counts` [S, C] add anything. The gradient is that of the losses times `scale` [S, 1].
    """
    scores = logits.float()
    norm = scores.logsumexp(-1, keepdim=True)
    loss = norm[..., 0] - (teacher * scores).sum(-1)  # the teacher sums to 1
    same = scores.argmax(-1) == teacher.argmax(-1)
    slope = ((scores - norm).exp() - teacher) * (counts * scale)[..., None]
    return (loss * counts).sum(-1), (same & counts).sum(-1).float(), slope.to(logits.dtype)
