"""Keeps a fixed number of requests in flight over a set of prompts, after a warm-up and with an empty prefix cache."""

from __future__ import annotations

import hashlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import figures
from .adapters import Answer, Sampling, new_salt
from .counters import Counts, since
from .errors import BenchError
from .prompts import Prompt

WARM_UP_TOKENS = 32


class Asked(NamedTuple):
    """A set of prompts as token ids. `template`: the share of given ids that the server's template gives too."""

    name: str
    ids: list[list[int]]
    references: list[list[int] | None]
    sha256: str
    template: float | None = None

    def describe(self) -> dict[str, Any]:
        """What the result keeps of it."""
        return {
            "prompts": len(self.ids),
            "prompt_tokens": sum(len(ids) for ids in self.ids),
            "sha256": self.sha256,
            "template_agrees": self.template,
        }


class Progress:
    """Prints `::progress DONE/TOTAL requests`, at most once a second and at the end."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._next = time.monotonic()
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._done += 1
            now = time.monotonic()
            if now >= self._next or self._done >= self._total:
                self._next = now + 1.0
                print(f"::progress {self._done}/{self._total} requests", flush=True)


def ask_for_ids(adapter: Any, name: str, prompts: Sequence[Prompt], template: dict[str, Any]) -> Asked:
    """The token ids of a set, through the server's own tokenizer and chat template where they are not given."""
    extra = {"chat_template_kwargs": template} if template else {}
    found: list[list[int]] = []
    agreed: list[bool] = []
    for prompt in prompts:
        if prompt.ids is not None:
            found.append(prompt.ids)
            if prompt.messages is not None:
                agreed.append(adapter.tokenize(messages=prompt.messages, **extra) == prompt.ids)
        elif prompt.messages is not None:
            found.append(adapter.tokenize(messages=prompt.messages, **extra))
        else:
            found.append(adapter.tokenize(prompt=prompt.text))
    digest = hashlib.sha256(repr(found).encode("ascii")).hexdigest()
    share = round(sum(agreed) / len(agreed), 4) if agreed else None
    return Asked(name, found, [p.answer_ids for p in prompts], digest, share)


def requests_of(asked: Sequence[Asked], concurrencies: Sequence[int], temperatures: Sequence[float], warm: int) -> int:
    """How many requests all passes make."""
    return len(temperatures) * sum(len(one.ids) + max(c, warm) for one in asked for c in concurrencies)


def run_pass(
    adapter: Any, asked: Asked, concurrency: int, sampling: Sampling, warm: int, speculation: Any, progress: Progress
) -> dict[str, Any]:
    """Warm up, empty the prefix cache, measure one set at one concurrency. Raises BenchError when a request fails."""
    number = max(concurrency, warm)
    first = [asked.ids[k % len(asked.ids)] for k in range(number)]
    short = sampling._replace(max_tokens=min(sampling.max_tokens, WARM_UP_TOKENS))
    _keep_in_flight(adapter, first, concurrency, short, progress)
    flushed = adapter.flush()
    answers, wall, total = _timed(adapter, asked.ids, concurrency, sampling, progress)
    return {
        "set": asked.name,
        "concurrency": concurrency,
        "temperature": sampling.temperature,
        "prefix_cache_flushed": flushed,
        "like_reference": figures.likeness(answers, asked.references) if sampling.temperature == 0 else None,
        **figures.measure(answers, wall, total, speculation, sampling.seed),
    }


def _timed(
    adapter: Any, ids: list[list[int]], concurrency: int, sampling: Sampling, progress: Progress
) -> tuple[list[Answer], float, Counts | None]:
    """Answers, wall time and the engine's counts in total. One request at a time gets the counts that it caused."""
    before = adapter.counts(0)
    if before is None or concurrency > 1:
        answers, wall = _keep_in_flight(adapter, ids, concurrency, sampling, progress)
        expected = sum(a.tokens - 1 for a in answers)
        return answers, wall, None if before is None else since(_counts(adapter, before, expected), before)
    answers, salt = [], new_salt()
    for prompt in ids:
        answer = adapter.generate(prompt, sampling, salt)
        progress.step()
        now = _counts(adapter, before, answer.tokens - 1)
        answers.append(answer._replace(counts=since(now, before)))
        before = now
    return answers, sum(a.seconds for a in answers), None


def _counts(adapter: Any, before: Counts, tokens: int) -> Counts:
    now = adapter.counts(before.rounds + before.correct + tokens)
    if now is None:
        raise BenchError("the engine's counters went away during the pass", "has the server been restarted?")
    return now  # type: ignore[no-any-return]


def _keep_in_flight(
    adapter: Any, ids: Sequence[list[int]], concurrency: int, sampling: Sampling, progress: Progress
) -> tuple[list[Answer], float]:
    """All answers in order, and the wall time. The first failure ends the pass and is raised."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(ids)):
        waiting.put(number)
    answers: dict[int, Answer] = {}
    failures: list[BaseException] = []
    salt = new_salt()

    def work() -> None:
        while not failures:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answers[number] = adapter.generate(ids[number], sampling, salt)
            except Exception as error:  # noqa: BLE001 - a thread's failure is raised by the one that waits for it
                failures.append(error)
                return
            progress.step()

    began = time.monotonic()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(ids)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - began
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(ids))], wall


def gpus(run: Callable[..., Any] = subprocess.run) -> list[str]:
    """Names of this machine's GPUs, as far as `nvidia-smi` tells them."""
    try:
        done = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.decode("utf-8", "replace").split("\n")[:-1] if done.returncode == 0 else []
