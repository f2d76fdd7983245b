"""The stored hidden states: safetensors shards of whole sequences, and an index that says what they hold.

A shard's tensors, for N tokens of the sequences laid end to end (H the target's hidden size):

    ids       [N]     int32     the tokens
    mask      [N]     uint8     1 where the assistant says the token
    features  [N, 3H] stored    the three boundaries side by side, in the order of the index
    last      [N, H]  stored    after the target's final norm; with `extract.teacher_top` instead of it
    top_logs  [N, K]  float16   the log-probabilities of the K likeliest draft tokens, and
    top_ids   [N, K]  int32     these tokens, as draft ids
    argmax    [N]     int32     the token that the target says NEXT, from the unrounded state
    offsets   [n+1]   int64     where each sequence begins, and N

That is 8H bytes a token in bfloat16 (SmolLM2-135M 4.6 KB, an 8B 32 KB, Kimi-K2 57 KB). A shard is written under
another name and renamed, so one that is there is whole; `index.json` is written last, so a folder with an index is
complete. The index carries a fingerprint of all that decides its contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .checkpoint import save_tensors
from .errors import StepError
from .runtime import read_json
from .teacher import Top

INDEX = "index.json"


@dataclass(frozen=True)
class Features:
    """One stored sequence of T tokens; `features` and `last` in the stored dtype."""

    ids: Tensor  # [T] int64
    mask: Tensor  # [T] bool
    features: Tensor  # [T, 3H]
    last: Tensor | None  # [T, H]
    argmax: Tensor  # [T] int64
    top: Top | None = None


def write_shard(path: Path, sequences: Sequence[Features]) -> None:
    """Write `sequences` as one shard, whole or not at all. Raises StepError when the disk does not take it."""
    lengths = torch.tensor([0, *(len(s.ids) for s in sequences)])
    tensors = {
        "ids": torch.cat([s.ids for s in sequences]).to(torch.int32),
        "mask": torch.cat([s.mask for s in sequences]).to(torch.uint8),
        "features": torch.cat([s.features for s in sequences]),
        "argmax": torch.cat([s.argmax for s in sequences]).to(torch.int32),
        "offsets": lengths.cumsum(0),
    }
    tops = [s.top for s in sequences if s.top]
    if tops:
        tensors["top_logs"] = torch.cat([t.logs for t in tops]).to(torch.float16)
        tensors["top_ids"] = torch.cat([t.ids for t in tops]).to(torch.int32)
    else:
        tensors["last"] = torch.cat([s.last for s in sequences if s.last is not None])
    save_tensors(tensors, path)


def is_whole(path: Path, tokens: int) -> bool:
    """Whether `path` is a shard of so many tokens that opens; a cut one does not."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(file.get_tensor("offsets")[-1]) == tokens
    except (SafetensorError, OSError):
        return False


class Shards:
    """The sequences of one split. Each is sliced out of its memory-mapped shard when it is asked for."""

    def __init__(self, folder: Path, split: str) -> None:
        """Raises StepError when `folder` has no index or a shard does not open."""
        self.index: dict[str, Any] = read_json(folder / INDEX)
        self._files = []
        self._places: list[tuple[int, int, int]] = []
        for number, name in enumerate(self.index["splits"][split]):
            try:
                file = safe_open(folder / name, framework="pt")
            except (SafetensorError, OSError) as error:
                raise StepError(
                    f"shard `{folder / name}` does not open: {error}",
                    hint="run `python -m eagle3.extract` again: it makes what is missing or damaged anew",
                ) from error
            self._files.append(file)
            offsets = file.get_tensor("offsets").tolist()
            self._places += [(number, a, b) for a, b in pairwise(offsets)]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Features]:
        return (self[n] for n in range(len(self)))

    def greedy_agreement(self) -> float:
        """The share of the assistant's tokens that the target, asked greedily, says again: 1 for greedy answers."""
        agreed = asked = 0
        for file in self._files:
            learnt = file.get_tensor("mask")[1:].bool()
            same = file.get_tensor("argmax")[:-1] == file.get_tensor("ids")[1:]
            agreed += int(same[learnt].sum())
            asked += int(learnt.sum())
        return agreed / asked if asked else 1.0

    def tokens(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The ids and the mask of each shard, without its hidden states."""
        return ((file.get_tensor("ids"), file.get_tensor("mask")) for file in self._files)

    def length(self, n: int) -> int:
        """Tokens of sequence `n`, without reading it."""
        _, start, end = self._places[n]
        return end - start

    def __getitem__(self, n: int) -> Features:
        if not 0 <= n < len(self):
            raise IndexError(n)
        number, start, end = self._places[n]
        file = self._files[number]

        def part(name: str) -> Tensor:
            cut: Tensor = file.get_slice(name)[start:end]
            return cut

        top = self.index.get("teacher_top")
        return Features(
            ids=part("ids").long(),
            mask=part("mask").bool(),
            features=part("features"),
            last=None if top else part("last"),
            argmax=part("argmax").long(),
            top=Top(part("top_logs"), part("top_ids")) if top else None,
        )
