"""What draft-and-verify counted: rounds, accepted drafts, and how many rounds accepted exactly k of them.

SGLang tells it with each answer. vLLM (0.23.0) adds it up in Prometheus counters, `_total` at the end of each name:

    vllm:spec_decode_num_drafts                    rounds
    vllm:spec_decode_num_draft_tokens              proposed drafts
    vllm:spec_decode_num_accepted_tokens           accepted drafts
    vllm:spec_decode_num_accepted_tokens_per_pos   rounds that accepted the draft at `position`, and all before it
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_LINE = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total"
    r"(?:\{([^}]*)\})?\s+([0-9.eE+-]+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'position="(\d+)"')
_PAUSE_S = 0.02
_QUIET_S = 0.3


class Counts(NamedTuple):
    """`histogram[k]`: rounds with exactly k accepted drafts; it may end before the longest possible k."""

    rounds: int
    correct: int
    proposed: int
    histogram: list[int]

    @property
    def longest(self) -> int:
        """The most drafts a round could have accepted, as far as the histogram knows."""
        return max(len(self.histogram) - 1, 0)


def add(one: Counts, other: Counts) -> Counts:
    """The counts of both."""
    return Counts(
        one.rounds + other.rounds,
        one.correct + other.correct,
        one.proposed + other.proposed,
        _together(one.histogram, other.histogram, 1),
    )


def since(now: Counts, before: Counts) -> Counts:
    """What was counted between two readings."""
    return Counts(
        now.rounds - before.rounds,
        now.correct - before.correct,
        now.proposed - before.proposed,
        _together(now.histogram, before.histogram, -1),
    )


def _together(one: list[int], other: list[int], sign: int) -> list[int]:
    size = max(len(one), len(other))
    return [(one[k] if k < len(one) else 0) + sign * (other[k] if k < len(other) else 0) for k in range(size)]


def parse(text: str) -> Counts | None:
    """The counts in a page of Prometheus metrics, over all engines of a server; `None` when there are none."""
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _LINE.findall(text):
        if name == "accepted_tokens_per_pos":
            found = _POSITION.search(labels)
            place = int(found.group(1)) if found else 0
            positions[place] = positions.get(place, 0.0) + float(value)
        else:
            totals[name] = totals.get(name, 0.0) + float(value)
    if "drafts" not in totals:
        return None
    reached = [int(totals["drafts"])] + [int(positions[place]) for place in sorted(positions)]
    histogram = [reached[k] - (reached[k + 1] if k + 1 < len(reached) else 0) for k in range(len(reached))]
    return Counts(reached[0], int(totals.get("accepted_tokens", 0)), int(totals.get("draft_tokens", 0)), histogram)


def settled(page: Callable[[], Any], at_least: int) -> Counts | None:
    """Read counters until they account for `at_least` tokens, since they trail the answers by some milliseconds.

    A round gives its accepted drafts and one more token. Where rounds without drafts leave them short for ever, the
    reading stands once it has not moved for 0.3 s.
    """
    latest, moved = parse(str(page())), time.monotonic()
    while latest is not None and latest.rounds + latest.correct < at_least and time.monotonic() - moved < _QUIET_S:
        time.sleep(_PAUSE_S)
        now = parse(str(page()))
        if now != latest:
            latest, moved = now, time.monotonic()
    return latest
