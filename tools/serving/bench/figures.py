"""From answers to figures. Pure arithmetic; all rates are tokens a second, all times seconds.

    acceptance length    tokens of a round: the drafts accepted and the one that the target adds, 1 + accepted / rounds
    acceptance rate      accepted / proposed drafts; for a chain of K drafts length = 1 + K * rate
    conditional[k]       of the rounds that accepted k drafts, the share that accepted one more
    distinct bigrams     different pairs of neighbouring tokens / pairs; a text that goes in circles has few

Sources: the definitions of sglang 0.5.14 (`spec_*` of `meta_info`) and vllm 0.23.0 (`spec_decode/metrics.py`). SGLang's
own `spec_accept_length` is tokens / rounds, which also counts the token that the prompt's pass gives; it is kept as
`engine_length`. The intervals are 95 % percentile bootstraps over prompts, of ratios of sums.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from .adapters import Answer
from .counters import Counts, add

RESAMPLES = 1000
DEGENERATE = 0.4
"""Below this share of distinct bigrams an answer of at least `LONG_ENOUGH` tokens goes in circles."""
LONG_ENOUGH = 32
COMPARED = 16
"""How many leading tokens of an answer are held against the target's own: later a tie may part them for good."""


def measure(
    answers: Sequence[Answer], wall_s: float, total: Counts | None, speculation: dict[str, Any] | None, seed: int
) -> dict[str, Any]:
    """The figures of one pass. `total` are its counts where the engine has none for each answer."""
    tokens = sum(a.tokens for a in answers)
    busy = sum(a.seconds for a in answers)
    decoding = sum(a.seconds - a.first_s for a in answers)
    bigrams = [distinct_bigrams(a.ids) for a in answers]
    found: dict[str, Any] = {
        "prompts": len(answers),
        "tokens": tokens,
        "wall_s": round(wall_s, 4),
        "tokens_per_s": _rate(tokens, wall_s),
        "tokens_per_s_stream": _rate(tokens, busy),
        "decode_tokens_per_s": _rate(tokens - len(answers), decoding),
        "ttft_s": spread([a.first_s for a in answers]),
        "latency_s": spread([a.seconds for a in answers]),
        "mean_tokens": round(tokens / len(answers), 2),
        "stopped": round(sum(a.finish == "stop" for a in answers) / len(answers), 4),
        "distinct_bigrams": round(sum(bigrams) / len(bigrams), 4),
        "degenerate": sum(a.tokens >= LONG_ENOUGH and b < DEGENERATE for a, b in _pairs(answers, bigrams)),
        "acceptance": None,
        "per_prompt": {
            "tokens": [a.tokens for a in answers],
            "seconds": [round(a.seconds, 6) for a in answers],
            "first_s": [round(a.first_s, 6) for a in answers],
        },
    }
    if speculation:
        found["acceptance"] = acceptance(answers, total, speculation, seed)
        if all(a.counts is not None for a in answers):
            found["per_prompt"]["rounds"] = [a.counts.rounds for a in answers if a.counts]
            found["per_prompt"]["correct"] = [a.counts.correct for a in answers if a.counts]
    return found


def acceptance(
    answers: Sequence[Answer], total: Counts | None, speculation: dict[str, Any], seed: int
) -> dict[str, Any] | None:
    """What was accepted, or `None` when the engine counted no round."""
    each = [a.counts for a in answers if a.counts is not None]
    counts = total
    for one in () if total is not None else each:
        counts = one if counts is None else add(counts, one)
    if counts is None or not counts.rounds:
        return None
    chain = speculation["shape"] == "chain"
    longest = (speculation.get("draft_tokens") or 1) - 1 if chain else speculation.get("steps") or counts.longest
    histogram = counts.histogram + [0] * (longest + 1 - len(counts.histogram))
    interval = None
    if len(each) == len(answers):
        interval = bootstrap(lambda at: 1 + _ratio(sum(each[i].correct for i in at), sum(each[i].rounds for i in at)),
                             len(each), seed)  # fmt: skip
    return {
        "length": round(1 + counts.correct / counts.rounds, 4),
        "interval": interval,
        "rate": _ratio(counts.correct, counts.proposed),
        "conditional": conditional(histogram),
        "histogram": histogram,
        "rounds": counts.rounds,
        "accepted": counts.correct,
        "proposed": counts.proposed,
        "engine_length": _ratio(sum(a.tokens for a in answers), counts.rounds),
        "shape": speculation["shape"],
        "steps": speculation.get("steps"),
        "topk": speculation.get("topk"),
        "draft_tokens": speculation.get("draft_tokens"),
    }


def conditional(histogram: Sequence[int]) -> list[float | None]:
    """For each draft of a chain: its share accepted, of the rounds that accepted all before it; `None` without such."""
    reached = [sum(histogram[k:]) for k in range(len(histogram))]
    return [round(reached[k + 1] / reached[k], 4) if reached[k] else None for k in range(len(reached) - 1)]


def distinct_bigrams(ids: Sequence[int]) -> float:
    """The share of neighbouring pairs of tokens that are different pairs; 1.0 for a text too short to repeat one."""
    pairs = len(ids) - 1
    return len({(ids[k], ids[k + 1]) for k in range(pairs)}) / pairs if pairs > 0 else 1.0


def likeness(answers: Sequence[Answer], references: Sequence[list[int] | None]) -> float | None:
    """How much of the first tokens of the answers is what the target itself had said; `None` without references."""
    shares = []
    for answer, reference in _pairs(answers, references):
        if reference and answer.ids:
            length = min(len(answer.ids), len(reference), COMPARED)
            same = 0
            while same < length and answer.ids[same] == reference[same]:
                same += 1
            shares.append(same / length)
    return round(sum(shares) / len(shares), 4) if shares else None


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile, by nearest rank."""
    ranked = sorted(values)
    p95 = -(-95 * len(ranked) // 100) - 1
    return {"median": round(ranked[(len(ranked) - 1) // 2], 5), "p95": round(ranked[p95], 5)}


def bootstrap(statistic: Callable[[Sequence[int]], float], size: int, seed: int) -> tuple[float, float] | None:
    """The 95 % interval of a statistic of the chosen indices; `None` for fewer than two prompts."""
    if size < 2:
        return None
    draw = random.Random(seed)
    seen = sorted(statistic(draw.choices(range(size), k=size)) for _ in range(RESAMPLES))
    return round(seen[RESAMPLES * 25 // 1000], 4), round(seen[RESAMPLES * 975 // 1000 - 1], 4)


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 2) if seconds > 0 else 0.0


def _pairs(one: Sequence[Any], other: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(one[k], other[k]) for k in range(len(one))]
