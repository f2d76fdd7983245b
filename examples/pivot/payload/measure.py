"""Measures a stand-in server: tokens a second, and what a drafter is worth there.

    python -m standin.measure --server NAME [--plain TOKENS_PER_S] [--requests 4]

`--plain` is the rate without a drafter; `multiplier` is what the drafter makes of it. The result goes to
$TURNOUT_OUTPUT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request


def main() -> None:
    """Ask, count, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="as its engine was named")
    parser.add_argument("--plain", type=float, default=0.0)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    with open(f"{options.server}.json", encoding="utf-8") as file:
        url = json.load(file)["url"]
    tokens = rounds = accepted = 0
    began = time.monotonic()
    for number in range(options.requests):
        body = json.dumps({"prompt": f"Prompt {number}", "max_tokens": options.tokens}).encode()
        request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            spec = json.load(answer)["spec"]
        tokens, rounds, accepted = tokens + spec["tokens"], rounds + spec["rounds"], accepted + spec["accepted"]
        rate = tokens / (time.monotonic() - began)
        print(f"::progress {number + 1}/{options.requests} requests", flush=True)
        print(f"request {number + 1}: {rate:.0f} tokens/s", flush=True)
    found = {"tokens_per_s": round(rate, 1), "accept_length": round(1 + accepted / rounds, 2)}
    if options.plain:
        found["multiplier"] = round(rate / options.plain, 2)
    print(json.dumps(found))
    with open(os.environ["TURNOUT_OUTPUT"], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
