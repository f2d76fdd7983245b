"""Held-out answers with their hidden states, batch by batch: stored ones, or computed as they are asked for."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .data import Conversation
from .shards import Shards
from .target import Target

Batch = tuple[Tensor, Tensor, Tensor]
BATCH_TOKENS = 8192  # with padding, at once on the device


class Held(abc.ABC):
    """Some answers. `agreement` is the share of their tokens that the target, asked greedily, says again."""

    lengths: list[int]

    def batches(self) -> Iterator[Batch]:
        """Ids [B, T] on the device, mask [B, T] on the CPU, features [B, T, 3H] on the device; padded on the right."""
        for picked in groups(self.lengths, BATCH_TOKENS):
            yield self.batch(picked)

    @abc.abstractmethod
    def batch(self, picked: Sequence[int]) -> Batch:
        """The batch of these answers."""

    @abc.abstractmethod
    def agreement(self) -> float:
        """The share of the assistant's tokens that the target says again."""


class HeldStored(Held):
    """The held-out sequences of the shards."""

    def __init__(self, shards: Shards, device: torch.device, limit: int = 0) -> None:
        self.shards, self.device = shards, device
        self.lengths = [shards.length(n) for n in range(len(shards))][: limit or None]

    def batch(self, picked: Sequence[int]) -> Batch:
        sequences = [self.shards[n] for n in picked]
        columns = ([getattr(s, name) for s in sequences] for name in ("ids", "mask", "features"))
        ids, mask, features = (pad_sequence(column, batch_first=True) for column in columns)
        return ids.to(self.device), mask, features.to(self.device).float()

    def agreement(self) -> float:
        return self.shards.greedy_agreement()


class HeldOnline(Held):
    """Conversations that go through the target each time."""

    def __init__(self, conversations: Sequence[Conversation], target: Target, limit: int = 0) -> None:
        self.conversations, self.target = conversations[: limit or None], target
        self.lengths = [len(c.ids) for c in self.conversations]

    def batch(self, picked: Sequence[int]) -> Batch:
        ids, mask = self._padded(picked)
        features, _ = self.target.hidden_states(ids)
        return ids, mask, features

    def agreement(self) -> float:
        agreed = asked = 0
        for picked in groups(self.lengths, BATCH_TOKENS):
            ids, mask = self._padded(picked)
            said = torch.nn.functional.pad(mask[:, 1:], (0, 1)).to(ids.device)
            _, last = self.target.hidden_states(ids)
            agreed += int((self.target.argmax(last[said]) == torch.roll(ids, -1, 1)[said]).sum())
            asked += int(said.sum())
        return agreed / asked if asked else 1.0

    def _padded(self, picked: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = [self.conversations[n] for n in picked]
        ids = pad_sequence([torch.tensor(c.ids) for c in chosen], batch_first=True)
        mask = pad_sequence([torch.tensor(c.mask, dtype=torch.bool) for c in chosen], batch_first=True)
        return ids.to(self.target.device), mask


def groups(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of sequences of similar length, at most `batch_tokens` with the padding (but at least one)."""
    batch: list[int] = []
    for n in sorted(range(len(lengths)), key=lambda n: lengths[n]):
        if batch and lengths[n] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch
