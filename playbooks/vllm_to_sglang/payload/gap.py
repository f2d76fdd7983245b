"""A client that asks all the time, as users do, and notes every request that failed: how long was nobody served?

python3 -m vllm_to_sglang.gap --url http://127.0.0.1:8000 --out gap.json

Each request is a connection of its own. `gap_s` is the longest time from an answer that began before a failure to the
next answer after it, `failed` counts requests, `slowest_s` is the longest wait for an answer. The account is written
each half second and once more on TERM, so that it stands whatever happens to this client.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

from .common import fetch, main, said, write

TICK_S = 0.5


class Account:
    """What was asked and answered; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began = time.time()
        self.requests = self.failed = 0
        self.gap = self.slowest = 0.0
        self.errors: list[dict[str, Any]] = []
        self._good = time.monotonic()  # the last moment at which somebody was served
        self._bad = False  # whether a request failed since

    def answered(self, began: float) -> None:
        """A request that began then has just been answered."""
        with self._lock:
            now = time.monotonic()
            self.requests += 1
            self.slowest = max(self.slowest, now - began)
            if self._bad and began > self._good:
                self.gap, self._bad = max(self.gap, now - self._good), False
            self._good = max(self._good, now)

    def refused(self, error: str) -> None:
        """A request has just failed."""
        with self._lock:
            self.requests += 1
            self.failed += 1
            self._bad = True
            if len(self.errors) < 20:
                self.errors.append({"at": round(time.time(), 3), "error": error})

    def as_json(self) -> dict[str, Any]:
        """The account so far; a gap that is still open counts up to now."""
        with self._lock:
            gap = max(self.gap, time.monotonic() - self._good if self._bad else 0.0)
            return {
                "requests": self.requests, "failed": self.failed, "gap_s": round(gap, 3), "open": self._bad,
                "slowest_s": round(self.slowest, 3), "from": self.began, "to": time.time(), "errors": self.errors,
            }  # fmt: skip


def client(url: str, model: str, tokens: int, pause_s: float, account: Account, over: threading.Event) -> None:
    """Ask, wait, ask again."""
    body = {"model": model, "prompt": "Hello", "max_tokens": tokens, "temperature": 0}
    while not over.is_set():
        began = time.monotonic()
        try:
            fetch(url + "/v1/completions", body, 30)["choices"][0]
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            if not over.is_set():
                account.refused(said(error))
        else:
            account.answered(began)
        over.wait(pause_s)


def step(given: argparse.Namespace) -> int:
    """Ask until told to stop."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, lambda *_: over.set())
    url, account = given.url.rstrip("/"), Account()
    model = given.model or fetch(url + "/v1/models", limit_s=30)["data"][0]["id"]
    work = (url, model, given.tokens, given.pause, account, over)
    threads = [threading.Thread(target=client, args=work, daemon=True) for _ in range(given.clients)]
    for thread in threads:
        thread.start()
    told = False
    while not over.wait(TICK_S):
        write(given.out, json.dumps(account.as_json()))
        if account.requests and not told:
            told = True
            print("asking", flush=True)
    for thread in threads:
        thread.join(35)
    write(given.out, json.dumps(account.as_json()))
    print(json.dumps(account.as_json(), indent=1))
    return 0


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="gap")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.05)
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: step(arguments()))
