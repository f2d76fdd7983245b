"""Where the batches of training come from: stored hidden states, or the target itself, run beside the drafter.

Online, nothing is stored: each batch's tokens go through the frozen target, which gives the boundaries and the last
state and no logits. Whether a position is taught (see objective) depends on the token that the target says there. In a
greedy answer that is the next token of the text, so it is known before anything runs; for sampled answers the
target's head is asked.

Which sequences a batch holds is a function of their lengths, the seed and the batch's number alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from .data import Conversation
from .objective import Batch
from .shards import Shards
from .target import Target
from .teacher import Top

WINDOW = 16  # batches of which the sequences are sorted by length together


class Feed(Protocol):
    """Sequences by number, in batches of its form."""

    lengths: list[int]
    form: Form

    def batch(self, picked: Sequence[int]) -> Batch:
        """The batch of these sequences."""


class Stored:
    """Batches from shards (see extract)."""

    def __init__(
        self, shards: Shards, t2d: Tensor, longest: int, device: torch.device, dtype: torch.dtype,
        form: Form | None = None,
    ) -> None:  # fmt: skip
        self.shards, self.t2d, self.longest, self.device, self.dtype = shards, t2d.cpu(), longest, device, dtype
        self.form = form or Form()
        self.lengths = [min(longest, shards.length(n)) for n in range(len(shards))]

    def batch(self, picked: Sequence[int]) -> Batch:
        sequences = [self.shards[n] for n in picked]

        def padded(parts: Iterable[Tensor | None]) -> Tensor:
            return self.form.fill(pad_sequence([p[: self.longest] for p in parts if p is not None], batch_first=True))

        mask, says = padded(s.mask for s in sequences), padded(s.argmax for s in sequences)
        tops = [s.top for s in sequences if s.top]
        return Batch(
            ids=padded(s.ids for s in sequences).to(self.device),
            features=padded(s.features for s in sequences).to(self.device, self.dtype),
            last=None if tops else padded(s.last for s in sequences).to(self.device, self.dtype),
            taught=taught_places(mask, self.t2d[says]).to(self.device),
            top=Top(padded(t.logs for t in tops).to(self.device), padded(t.ids for t in tops).to(self.device))
            if tops
            else None,
        )


class Online:
    """Batches whose hidden states `target` computes when they are asked for."""

    def __init__(
        self, conversations: Sequence[Conversation], target: Target, t2d: Tensor, longest: int, form: Form | None = None
    ) -> None:
        self.ids = [torch.tensor(c.ids[:longest]) for c in conversations]
        self.mask = [torch.tensor(c.mask[:longest], dtype=torch.bool) for c in conversations]
        self.greedy = [c.greedy for c in conversations]
        self.target, self.t2d, self.form = target, t2d.cpu(), form or Form()
        self.lengths = [len(ids) for ids in self.ids]

    def batch(self, picked: Sequence[int]) -> Batch:
        ids = self.form.fill(pad_sequence([self.ids[n] for n in picked], batch_first=True))
        mask = self.form.fill(pad_sequence([self.mask[n] for n in picked], batch_first=True))
        device = self.target.device
        features, last = self.target.hidden_states(ids.to(device, non_blocking=True))
        if all(self.greedy[n] for n in picked):
            says = F.pad(ids[:, 1:], (0, 1))
        else:
            says = torch.zeros_like(ids)
            said = F.pad(mask[:, 1:], (0, 1))
            says[said] = self.target.argmax(last[said.to(device)]).cpu()
        taught = taught_places(mask, self.t2d[says])
        return Batch(ids.to(device), features, last, taught.to(device, non_blocking=True))


@dataclass(frozen=True)
class Form:
    """The shapes that batches may have: `lengths` of rows, each with as many rows as make `tokens`; any, without them.

    Whatever is compiled for that number of positions then serves every batch.
    """

    tokens: int = 0
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokens: int, longest: int) -> Form:
        """Row lengths that divide `tokens`, multiples of 8, up to the first that holds `longest`; none if none do."""
        lengths = [n for n in range(8, tokens + 1, 8) if tokens % n == 0]
        enough = next((n for n in lengths if n >= longest), None)
        return cls(tokens, tuple(n for n in lengths if n <= enough)) if enough else cls()

    def room(self, length: int) -> int:
        """What a sequence of `length` takes up."""
        return next((n for n in self.lengths if n >= length), length)

    def fill(self, x: Tensor) -> Tensor:
        """`x` [B, T, ...] with zeros on the right and below, so that it has one of the shapes."""
        if not self.lengths:
            return x
        length = self.room(x.shape[1])
        return F.pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1], 0, self.tokens // length - len(x)))


def taught_places(mask: Tensor, in_vocabulary: Tensor) -> Tensor:
    """Places t in the flattened [B * T] after which the assistant speaks and the target's token can be drafted."""
    said = F.pad(mask[:, 1:], (0, 1))
    return (said & in_vocabulary).flatten().nonzero().flatten()


def batches(lengths: Sequence[int], batch_tokens: int, seed: int) -> Iterator[list[int]]:
    """Batches for ever, epoch after epoch, each at most `batch_tokens` tokens with the padding, but one sequence."""
    for epoch in itertools.count():
        yield from epoch_batches(lengths, batch_tokens, seed, epoch)


def epoch_batches(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """One pass over all sequences: shuffled, sorted by length within windows of some batches, and those shuffled."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(len(lengths), generator=random).tolist()
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    window = max(1, WINDOW * batch_tokens // mean)
    found: list[list[int]] = []
    for start in range(0, len(order), window):
        batch: list[int] = []
        for n in sorted(order[start : start + window], key=lambda n: lengths[n]):
            if batch and lengths[n] * (len(batch) + 1) > batch_tokens:
                found.append(batch)
                batch = []
            batch.append(n)
        found.append(batch)
    return [found[n] for n in torch.randperm(len(found), generator=random).tolist()]
