"""How many drafts are accepted: exactly, for a greedy chain, from one pass over the target's own answer.

At root p the engine has verified token p+1 and drafts tokens p+2, p+3, ...; its accepted count is the leading run of
drafts that equal the answer. As long as the run lasts, the drafts ARE the answer's tokens, so one pass of training-time
test with the answer's tokens embedded gives the run at every root at once. The engine's walk is then p -> p + run + 1,
and the runs it meets are its histogram (SGLang's `spec_correct_drafts_histogram`), up to ties in bfloat16. Multiplying
marginal accuracies would not be exact. A shorter chain's runs are the longer one's, cut, so one pass serves them all.

Only roots whose whole chain lies inside the answer are counted: a cut chain would look like a rejection. The mean
acceptance length is 1 + mean run; a drafter that is always wrong has 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .held import Held
from .model import Drafter, shift


@dataclass(frozen=True)
class Acceptance:
    """What a walk met: `histogram[k]` roots had exactly k drafts accepted, k from 0 to the length of the chain."""

    histogram: tuple[int, ...]

    @property
    def rounds(self) -> int:
        return sum(self.histogram)

    @property
    def length(self) -> float:
        """Mean tokens of one round: the accepted drafts and the one the target adds. 1.0 when there was no round."""
        accepted = sum(k * n for k, n in enumerate(self.histogram))
        return 1.0 + accepted / self.rounds if self.rounds else 1.0

    @property
    def conditional(self) -> list[float | None]:
        """For k = 1, 2, ...: the share of rounds with k-1 accepted drafts that accepted a k-th; `None` without such."""
        reached = [sum(self.histogram[k:]) for k in range(len(self.histogram))]
        return [after / before if before else None for before, after in pairwise(reached)]

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(tuple(a + b for a, b in zip(self.histogram, other.histogram, strict=True)))

    def to_json(self) -> dict[str, Any]:
        return {
            "length": round(self.length, 4),
            "rounds": self.rounds,
            "histogram": list(self.histogram),
            "conditional": [None if c is None else round(c, 4) for c in self.conditional],
        }


def acceptances(drafter: Drafter, held: Held, chains: Sequence[int]) -> dict[int, Acceptance]:
    """For each length of chain, the walks over all answers of `held`."""
    totals = {k: Acceptance((0,) * (k + 1)) for k in chains}
    for ids, mask, features in held.batches():
        runs = leading_runs(drafter, ids, features, max(chains)).tolist()
        for row_runs, row_mask in zip(runs, mask, strict=True):
            for k in chains:
                totals[k] += walked(row_runs, row_mask, k)
    return totals


def walked(runs: list[int], mask: Tensor, drafts: int) -> Acceptance:
    """The walk of a chain of `drafts` over each answer in `mask` [T], given the runs of a chain at least as long."""
    histogram = [0] * (drafts + 1)
    cut = [min(run, drafts) for run in runs]
    for first, last in answer_spans(mask):
        for root in walk(cut, first - 1, last - drafts - 1):
            histogram[cut[root]] += 1
    return Acceptance(tuple(histogram))


@torch.no_grad()
def leading_runs(drafter: Drafter, ids: Tensor, features: Tensor, drafts: int) -> Tensor:
    """At each root p of `ids` [B, T], how many drafts equal tokens p+2, p+3, ... before the first that does not."""
    alive = torch.ones_like(ids)
    runs = torch.zeros_like(ids)
    for step, hidden in enumerate(drafter.unroll(ids, features, drafts)):
        alive = alive * (drafter.predict(hidden) == shift(ids, 2 + step))
        runs = runs + alive
    return runs.cpu()


def answer_spans(mask: Tensor) -> Iterator[tuple[int, int]]:
    """First and last token of each run of the assistant's tokens in `mask` [T]."""
    edges = torch.diff(mask.int(), prepend=torch.zeros(1, dtype=torch.int), append=torch.zeros(1, dtype=torch.int))
    starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten() - 1
    return zip(starts.tolist(), ends.tolist(), strict=True)


def walk(runs: list[int], root: int, last_root: int) -> Iterable[int]:
    """The roots an engine visits from `root` on, up to `last_root`: after each, its run and the target's own token."""
    while root <= last_root:
        yield root
        root += runs[root] + 1
