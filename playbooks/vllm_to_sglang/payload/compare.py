"""Two servers' answers to the same questions: how far the text agrees, and whether its form has changed.

python3 -m vllm_to_sglang.compare --old old.json --new new.json

    agree        mean share of an answer's first tokens that are the same, of at most 16: two right engines part sooner
                 or later at a near tie, and then say different things; a wrong one parts at once
    exact        share of answers that are the same to the end
    logprob      mean difference of the log-probability of the first token, where both chose the same
    broken       what changed in form: a tool call that is now text, reasoning that is now in the answer
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .common import main, read, result

FIRST = 16


def agreement(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The share of the first tokens that are the same from the start; of words, where the servers write tokens
    differently or tell none."""
    if "error" in one or "error" in other:
        return 0.0
    by_words = _same(one["text"].split(), other["text"].split())
    return max(_same(one["tokens"], other["tokens"]), by_words) if one["tokens"] and other["tokens"] else by_words


def _same(a: list[Any], b: list[Any]) -> float:
    most = min(FIRST, max(len(a), len(b)))
    same = 0
    while same < min(most, len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same / most if most else 1.0


def logprob(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """How much the first token's log-probability differs, where both chose it."""
    a, b = one.get("logprobs") or [], other.get("logprobs") or []
    if not a or not b or a[0] is None or b[0] is None or one["tokens"][0] != other["tokens"][0]:
        return None
    return abs(float(a[0]) - float(b[0]))


def forms(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a client that reads tool calls or reasoning would trip over."""
    found = []
    before, after = old["tool"].get("tool_calls"), new["tool"].get("tool_calls")
    if before and not after:
        found.append("a tool call is no longer parsed (is --tool-call-parser set?)")
    elif before and after and [c["name"] for c in before] != [c["name"] for c in after]:
        found.append("another tool is called")
    elif before and after and any(not isinstance(c["arguments"], dict) for c in after):
        found.append("a tool call's arguments are no JSON object")
    if "error" in new["tool"] and "error" not in old["tool"]:
        found.append(f"a question with tools is refused: {new['tool']['error'][:160]}")
    if old["reasoning"].get("reasoning") and not new["reasoning"].get("reasoning"):
        found.append("reasoning is no longer kept apart (is --reasoning-parser set?)")
    if new["reasoning"].get("reasoning") and not old["reasoning"].get("reasoning"):
        found.append("reasoning is now kept apart, and was not before")
    return found


def compare(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The account of both."""
    number = min(len(old["answers"]), len(new["answers"]))
    pairs = [(old["answers"][k], new["answers"][k]) for k in range(number)]
    shares = [agreement(a, b) for a, b in pairs]
    drifts = [d for d in (logprob(a, b) for a, b in pairs) if d is not None]
    exact = sum("error" not in a and "error" not in b and a["text"] == b["text"] for a, b in pairs)
    worst = min(range(len(pairs)), key=lambda at: shares[at]) if pairs else None
    return {
        "agree": round(sum(shares) / len(shares), 4) if shares else None,
        "exact": round(exact / len(pairs), 4) if pairs else None,
        "logprob": round(sum(drifts) / len(drifts), 4) if drifts else None,
        "asked": len(pairs), "failed": sum("error" in b for _, b in pairs), "broken": forms(old, new),
        "worst": None if worst is None else {
            "number": worst, "old": pairs[worst][0].get("text", "")[:200],
            "new": pairs[worst][1].get("text", pairs[worst][1].get("error", ""))[:200],
        },
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="compare")
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    return parser.parse_args()


def step(given: argparse.Namespace) -> int:
    """Compare and write the result; that they differ is no failure of this step."""
    result(compare(read(given.old), read(given.new)))
    return 0


if __name__ == "__main__":
    main(lambda: step(arguments()))
