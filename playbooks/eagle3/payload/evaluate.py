"""Predict what the drafter is worth when it is served, from the target's own hidden states and without an engine.

The prediction is exact for a greedy chain. Take the target's greedy answer: at root p the engine has verified token
p+1 and drafts tokens p+2, p+3, ...; its accepted count is the leading run of drafts that equal the answer. As long as
the run lasts, the drafts ARE the answer's tokens, so one pass of training-time test with the answer's tokens embedded
gives the run at every root at once. The engine's walk is then p -> p + run + 1, and the runs it meets are its
histogram (SGLang's `spec_correct_drafts_histogram`), up to ties in bfloat16. Multiplying marginal accuracies would
not be exact.

Only roots whose whole chain lies inside the answer are counted: a cut chain would look like a rejection. The mean
acceptance length is 1 + mean run; a drafter that is always wrong has 1.0.

    python -m eagle3.evaluate --preset smoke
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .config import Config
from .errors import StepError
from .export import load_drafter
from .model import Drafter, shift
from .runtime import Progress, Result, Workdir, run_step, say, set_up_torch
from .shards import Features, Shards
from .target import read_embedding


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
            "acceptance_length": round(self.length, 4),
            "histogram": list(self.histogram),
            "conditional": [None if c is None else round(c, 4) for c in self.conditional],
            "rounds": self.rounds,
        }


def evaluate(config: Config, work: Workdir) -> Result:
    """Predict the trained drafter's acceptance on the held-out answers."""
    drafter = load_drafter(work.drafter / "model", read_embedding(work.target))
    return measure(config, work, drafter)


def measure(config: Config, work: Workdir, drafter: Drafter) -> Result:
    """The acceptance of `drafter` over the held-out answers, as a step's result."""
    device = set_up_torch(config)
    shards = Shards(work.shards, "eval")
    drafts = config.evaluate.draft_tokens
    if drafts < 1:
        raise StepError(f"`evaluate.draft_tokens` is {drafts}", hint="a chain has at least one draft")
    drafter = drafter.to(device).eval()
    progress = Progress(len(shards), "answers")
    total = Acceptance((0,) * (drafts + 1))
    for done, sequence in enumerate(shards, 1):
        total += predict(drafter, sequence, drafts)
        progress.update(done)
    agreement = shards.greedy_agreement()
    say(f"acceptance length {total.length:.3f} over {total.rounds} rounds of {drafts} drafts")
    if agreement < 0.99:
        say(f"only {agreement:.3f} of the answers is what the target says greedily: the prediction is for other text")
    return {**total.to_json(), "draft_tokens": drafts, "answers": len(shards), "greedy_agreement": round(agreement, 4)}


def predict(drafter: Drafter, sequence: Features, drafts: int) -> Acceptance:
    """The walk of a chain of `drafts` over each answer in `sequence`."""
    runs = leading_runs(drafter, sequence.ids, sequence.features, drafts).tolist()
    histogram = [0] * (drafts + 1)
    for first, last in answer_spans(sequence.mask):
        for root in walk(runs, first - 1, last - drafts - 1):
            histogram[runs[root]] += 1
    return Acceptance(tuple(histogram))


@torch.inference_mode()
def leading_runs(drafter: Drafter, ids: Tensor, features: Tensor, drafts: int) -> Tensor:
    """At each root p of `ids` [T], how many drafts equal tokens p+2, p+3, ... before the first that does not."""
    device = drafter.fc.weight.device
    row = ids[None].to(device)
    alive = torch.ones_like(row)
    runs = torch.zeros_like(row)
    for step, hidden in enumerate(drafter.unroll(row, features[None].to(device).float(), drafts)):
        alive = alive * (drafter.predict(hidden) == shift(row, 2 + step))
        runs = runs + alive
    return runs[0].cpu()


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


if __name__ == "__main__":
    raise SystemExit(run_step("evaluate", evaluate))
