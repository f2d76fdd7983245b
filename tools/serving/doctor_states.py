"""Holds the hidden states that an engine feeds a drafter against the target's own: layer, order, position, embedding.

Acceptance hardly shows a layer that is off by one; the states do. The reference file (safetensors) has the target's
boundaries `boundary.K` [T, H], best all of them, and may have `ids` [T] and `embedding` [V, H]; the captured file has
what the drafter was given, `slot.S` [T, H] or `features` [T, S*H] side by side, and may have `embeds` [T, H].

    slots = compare_states(load(reference), load(captured), expected=[2, 15, 27])

Needs numpy, which comes with the `train` extra. States are compared by the median cosine over positions, each less the
reference's mean over positions: a few dimensions that are large everywhere would make all layers look alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from state.errors import UsageError
from tools.serving.doctor_finding import Finding, error, note
from tools.serving.doctor_weights import Stored, header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

SHIFTS = (0, -1, 1)
SURE = 0.98
"""States that are the same but for rounding have a cosine above this; those of a neighbouring layer do not."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What one slot of the drafter's input holds: boundary `found` moved by `shift` positions (1: one late).

    `cosine` is that of the found boundary, `cosine_expected` that of the expected one where it was expected.
    """

    slot: int
    expected: int
    found: int
    shift: int
    cosine: float
    cosine_expected: float

    @property
    def right(self) -> bool:
        return self.found == self.expected and self.shift == 0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"right": self.right}


def load(path: Path) -> dict[str, Array]:
    """Every tensor of a file as float32. Raises UsageError without numpy, and for a file that is damaged."""
    return {name: _array(stored) for name, stored in header(path).items()}


def compare_states(
    reference: Mapping[str, Array], captured: Mapping[str, Array], expected: Sequence[int]
) -> list[Slot]:
    """The boundary that each slot really holds. Raises UsageError when tensors are missing or do not fit."""
    boundaries = {int(name[9:]): states for name, states in reference.items() if re.fullmatch(r"boundary\.\d+", name)}
    missing = sorted(set(expected) - boundaries.keys())
    if missing:
        raise UsageError(f"the reference has no boundary {missing}", hint="store `boundary.K` [T, H] for every K")
    slots = _slots(captured, len(expected))
    for states in slots:
        if any(states.shape != other.shape for other in boundaries.values()):
            raise UsageError(
                f"captured states are {states.shape}, the reference's {next(iter(boundaries.values())).shape}",
                hint="capture the same tokens of the same prompt, all of them",
            )
    return [_best(number, states, boundaries, expected[number]) for number, states in enumerate(slots)]


def _slots(captured: Mapping[str, Array], count: int) -> list[Array]:
    if "features" in captured:
        features = captured["features"]
        size = features.shape[-1] // count
        return [features[:, slot * size : (slot + 1) * size] for slot in range(count)]
    slots = [captured.get(f"slot.{slot}") for slot in range(count)]
    found = [slot for slot in slots if slot is not None]
    if len(found) < count:
        raise UsageError(
            f"the capture has neither `features` nor {count} `slot.S`", hint="store what the drafter is fed"
        )
    return found


def _best(number: int, states: Array, boundaries: Mapping[int, Array], expected: int) -> Slot:
    scores = {(k, shift): alike(states, other, shift) for k, other in boundaries.items() for shift in SHIFTS}
    (found, shift), cosine = max(scores.items(), key=lambda item: item[1])
    return Slot(number, expected, found, shift, round(cosine, 4), round(scores[expected, 0], 4))


def alike(states: Array, reference: Array, shift: int = 0) -> float:
    """The median cosine of `states` [T, H] at p with `reference` at p - shift."""
    np = _numpy()
    length = len(states)
    mine = states[max(0, shift) : length + min(0, shift)]
    theirs = reference[max(0, -shift) : length - max(0, shift)]
    middle = reference.mean(axis=0)
    a, b = mine - middle, theirs - middle
    long = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.median((a * b).sum(axis=1) / np.maximum(long, 1e-12)))


def embedding_shift(reference: Mapping[str, Array], captured: Mapping[str, Array]) -> int | None:
    """By how many positions the embedded token is ahead of its hidden state: 1 is right. `None` without the tensors."""
    np = _numpy()
    if "embeds" not in captured or not {"ids", "embedding"} <= reference.keys():
        return None
    rows = reference["embedding"][reference["ids"].astype(np.int64)]
    scores = {ahead: alike(captured["embeds"], rows, -ahead) for ahead in (0, 1, 2)}
    return max(scores, key=lambda ahead: scores[ahead])


def findings(slots: Sequence[Slot], ahead: int | None = None) -> list[Finding]:
    """What the slots say, in words: a layer off, another order, a position off, an embedding that is not shifted."""
    found = []
    expected, seen = [slot.expected for slot in slots], [slot.found for slot in slots]
    apart = {slot.found - slot.expected for slot in slots}
    told = f"the engine feeds boundaries {seen} where {expected} were trained"
    if seen != expected and sorted(seen) == sorted(expected):
        found.append(error("states-order", f"{told}: another order", "correct the order of the aux layers"))
    elif seen != expected and len(apart) == 1:
        found.append(
            error(
                "states-layer",
                f"{told}: {apart.pop():+d} on each",
                "correct the ids by as much: engines differ in whether they name layer outputs or boundaries",
            )
        )
    elif seen != expected:
        found.append(error("states-layers", told, "write the boundaries that were trained"))
    shifts = {slot.shift for slot in slots} - {0}
    if shifts:
        side = " and ".join("late" if shift > 0 else "early" for shift in sorted(shifts))
        found.append(error("states-position", f"the hidden states are one position {side}", "a fault of the engine"))
    if ahead not in (None, 1):
        seen_ahead = f"the embedded token is {ahead} positions ahead of its hidden state, and 1 was trained"
        found.append(error("embedding-shift", seen_ahead, "a fault of the engine, or of the training data"))
    unsure = [slot.slot for slot in slots if slot.cosine < SURE]
    if unsure:
        why = f"slots {unsure} are like no boundary of the reference (cosine below {SURE})"
        found.append(error("states-unknown", why, "another prompt, another target, or states after a norm"))
    return found or [note("states-right", f"the engine feeds what was trained: boundaries {seen}", "nothing to do")]


def _array(stored: Stored) -> Array:
    np = _numpy()
    with open(stored.file, "rb") as file:
        file.seek(stored.start)
        if stored.dtype == "BF16":
            half = np.fromfile(file, dtype="<u2", count=stored.numbers)
            flat = (half.astype("<u4") << 16).view("<f4")
        else:
            kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}
            if stored.dtype not in kinds:
                raise UsageError(f"`{stored.name}` is `{stored.dtype}`", hint="store states as bf16, f16 or f32")
            flat = np.fromfile(file, dtype=kinds[stored.dtype], count=stored.numbers)
    shaped: Array = flat.reshape(stored.shape).astype(np.float32)
    return shaped


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as missing:
        raise UsageError(
            "comparing hidden states needs numpy, which is not installed", hint="pip install 'turnout[train]'"
        ) from missing
    return numpy
