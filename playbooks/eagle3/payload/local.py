"""Let the target answer in this process, with transformers: for a host without a server, and for small jobs.

The same interface as `endpoint`, so that whoever asks does not care which of them answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .endpoint import Answer, Request

WINDOW = 8  # batches of which the requests are sorted by length together: when time runs out, each kind had its share


class Local:
    """The target `model` of transformers; `batch_size` requests are answered together."""

    def __init__(self, model: Any, batch_size: int) -> None:
        self.batch_size = batch_size
        self._model = model

    def answer(
        self, requests: Sequence[Request], *, until: float = float("inf"), clock: Callable[[], float] = time.monotonic
    ) -> Iterator[tuple[int, Answer]]:
        """Yield the number and the answer of each request, batch by batch; none is begun after `until`."""
        for batch in _batches(requests, self.batch_size):
            if clock() >= until:
                return
            yield from zip(batch, self._generate([requests[n] for n in batch]), strict=True)

    @torch.inference_mode()
    def _generate(self, batch: list[Request]) -> Iterator[Answer]:
        first = batch[0]
        width, pad = max(len(r.ids) for r in batch), first.stops[0]
        ids = [[pad] * (width - len(r.ids)) + r.ids for r in batch]
        seen = [[0] * (width - len(r.ids)) + [1] * len(r.ids) for r in batch]
        sampling: dict[str, Any] = {"do_sample": False}
        if first.temperature:
            sampling = {"do_sample": True, "temperature": first.temperature, "top_p": first.top_p, "top_k": 0}
        out = self._model.generate(
            input_ids=torch.tensor(ids, device=self._model.device),
            attention_mask=torch.tensor(seen, device=self._model.device),
            max_new_tokens=first.max_new_tokens,
            eos_token_id=first.stops,
            pad_token_id=pad,
            **sampling,
        )
        for row in out[:, width:].tolist():
            end = next((n for n, token in enumerate(row, 1) if token in first.stops), len(row))
            yield Answer(row[:end], row[end - 1] in first.stops)


def _batches(requests: Sequence[Request], batch_size: int) -> list[list[int]]:
    """Numbers of requests of one way of sampling and similar length, not far from the order in which they stand."""

    def key(n: int) -> tuple[float, float, int, int]:
        request = requests[n]
        return (request.temperature, request.top_p, request.max_new_tokens, len(request.ids))

    batches: list[list[int]] = []
    for start in range(0, len(requests), WINDOW * batch_size):
        batches.append([])
        for n in sorted(range(start, min(len(requests), start + WINDOW * batch_size)), key=key):
            last = batches[-1]
            if last and (len(last) == batch_size or key(last[0])[:3] != key(n)[:3]):
                batches.append([])
            batches[-1].append(n)
    return [batch for batch in batches if batch]
