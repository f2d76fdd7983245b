"""Looks after the new server for a while: a token each few seconds, through the port that users use.

python3 -m vllm_to_sglang.watch --url http://127.0.0.1:8000 --for 3600 --every 10

Three failures in a row end it with exit code 1: the step after that is the way back.
"""

from __future__ import annotations

import argparse
import time

from .common import fetch, main, progress, result, said

TOLERATED = 3


def look(url: str, model: str) -> str | None:
    """What is wrong with the server; nothing when it generates."""
    try:
        reply = fetch(url + "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 2}, 60)
        return None if reply["choices"][0].get("finish_reason") else "an answer without an end"
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return said(error)


def step(given: argparse.Namespace) -> int:
    """Watch."""
    url, began = given.url.rstrip("/"), time.monotonic()
    looks = failures = row = 0
    first: str | None = None
    slowest = 0.0
    while True:
        at = time.monotonic()
        wrong = look(url, given.model)
        looks += 1
        slowest = max(slowest, time.monotonic() - at)
        if wrong:
            failures, row, first = failures + 1, row + 1, first or wrong
            print(f"look {looks}: {wrong}", flush=True)
        else:
            row = 0
        progress(min(time.monotonic() - began, given.seconds), given.seconds, "s watched")
        over = time.monotonic() - began >= given.seconds
        if over or row >= TOLERATED:
            break
        time.sleep(min(given.every, 1.0) if wrong else given.every)
    told = {"looks": looks, "failures": failures, "first_failure": first, "slowest_s": round(slowest, 3)}
    result({**told, "seconds": round(time.monotonic() - began, 1)})
    return 1 if row >= TOLERATED else 0


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="watch")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--for", dest="seconds", type=float, default=3600)
    parser.add_argument("--every", type=float, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: step(arguments()))
