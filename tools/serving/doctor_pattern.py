"""Recognises a fault by how acceptance falls from draft to draft, against the prediction.

The signatures are measured: one small drafter, each fault planted in turn, its conditional acceptance at the first,
second and third draft divided by the healthy drafter's. A pattern names candidates, never a proof, because several
faults look alike; layers off by one and rotary settings hardly show at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Ratios = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """`faults` are what was planted when acceptance looked so; `look` says how to tell them apart."""

    name: str
    faults: tuple[str, ...]
    look: str
    seen: Callable[[float, Ratios], bool]


def _later(ratios: Ratios, k: int) -> float | None:
    return ratios[k] if k < len(ratios) else None


def _below(value: float | None, most: float) -> bool:
    return value is not None and value < most


PATTERNS = (
    Pattern(
        "nothing is accepted",
        ("d2t holds target ids where the engine wants offsets", "d2t was not loaded", "the head is random"),
        "check `d2t` in the folder and that the engine's log mentions no skipped weights",
        lambda first, ratios: first < 0.03,
    ),
    Pattern(
        "the first draft is almost never right",
        (
            "the hidden states come in another order", "EAGLE was launched for an EAGLE-3 drafter",
            "norm_before_residual differs", "the embedding is shifted twice", "d2t was not loaded",
        ),
        "compare captured hidden states; check --speculative-algorithm and the norm flags",
        lambda first, ratios: _below(ratios[0], 0.25),
    ),
    Pattern(
        "each draft is worse than the one before",
        ("the embedding is not shifted: the drafter gets token p where it was trained on p + 1",),
        "compare captured hidden states and token ids position by position",
        lambda first, ratios: _below(ratios[0], 0.55) and _below(_later(ratios, 1), 0.35),
    ),
    Pattern(
        "the first draft is right, the second hardly ever",
        ("norm_output differs: the next draft is fed the state before the final norm, or after it, wrongly",),
        "compare `norm_output` in config.json with what training fed",
        lambda first, ratios: (ratios[0] or 0) > 0.8 and _below(_later(ratios, 1), 0.35),
    ),
    Pattern(
        "every draft is worse by a like share",
        ("the hidden states are one position late or early", "the final norm is missing", "d2t covers other tokens"),
        "compare captured hidden states position by position",
        lambda first, ratios: _below(ratios[0], 0.88),
    ),
    Pattern(
        "a little worse everywhere",
        ("a boundary one layer off", "other rotary settings", "positions off by one", "the engine quantizes"),
        "acceptance cannot tell these apart: compare captured hidden states, or measure with ids +1 and -1",
        lambda first, ratios: True,
    ),
)  # fmt: skip


def recognise(measured: Sequence[float | None], predicted: Sequence[float | None]) -> Pattern:
    """The first pattern that fits conditional acceptances below what was predicted."""
    first = measured[0] if measured and measured[0] is not None else 0.0
    size = min(len(measured), len(predicted))
    ratios = [_ratio(measured[k], predicted[k]) for k in range(size)] or [0.0]
    return next(pattern for pattern in PATTERNS if pattern.seen(first, ratios))


def _ratio(measured: float | None, predicted: float | None) -> float | None:
    return None if measured is None or not predicted else measured / predicted
