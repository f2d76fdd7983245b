"""The drafter doctor's look at hidden states: which boundaries, in which order and where an engine feeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from state.errors import UsageError
from tests import serving_folders as made
from tools.serving.doctor_states import compare_states, embedding_shift, findings, load

np = pytest.importorskip("numpy", reason="numpy comes with the train extra")
EXPECTED = (2, 6, 9)


@pytest.fixture
def reference() -> dict[str, Any]:
    """Boundaries 0 to 12 of a make-believe target: each layer adds a little, two dimensions are large everywhere."""
    draw = np.random.default_rng(5)
    states = draw.normal(size=(40, 32)).astype(np.float32)
    found = {}
    for k in range(13):
        found[f"boundary.{k}"] = states.copy()
        found[f"boundary.{k}"][:, :2] += 300
        states += 0.4 * draw.normal(size=(40, 32)).astype(np.float32)
    found["embedding"] = draw.normal(size=(50, 32)).astype(np.float32)
    found["ids"] = draw.integers(0, 50, size=40).astype(np.float32)
    return found


def fed(reference: dict[str, Any], boundaries: Sequence[int], shift: int = 0) -> dict[str, Any]:
    """What an engine would feed that takes these boundaries, `shift` positions late."""
    slots = [np.roll(reference[f"boundary.{k}"], shift, axis=0) for k in boundaries]
    return {"features": np.concatenate(slots, axis=1) * 1.001}


@pytest.mark.parametrize(
    ("boundaries", "shift", "code"),
    [
        ((2, 6, 9), 0, "states-right"),
        ((3, 7, 10), 0, "states-layer"),
        ((1, 5, 8), 0, "states-layer"),
        ((9, 6, 2), 0, "states-order"),
        ((2, 5, 9), 0, "states-layers"),
        ((2, 6, 9), 1, "states-position"),
        ((2, 6, 9), -1, "states-position"),
    ],
)
def test_what_an_engine_feeds_is_recognised(
    reference: dict[str, Any], boundaries: Sequence[int], shift: int, code: str
) -> None:
    """Layers off by one, another order and positions off by one are told from states alone."""
    slots = compare_states(reference, fed(reference, boundaries, shift), EXPECTED)
    assert [slot.found for slot in slots] == list(boundaries)
    assert {slot.shift for slot in slots} == {shift}
    assert [one.code for one in findings(slots)] == [code]


def test_other_states_are_like_no_boundary(reference: dict[str, Any]) -> None:
    """States of another text are said to be unknown."""
    other = {"features": np.random.default_rng(9).normal(size=(40, 96)).astype(np.float32)}
    assert "states-unknown" in [one.code for one in findings(compare_states(reference, other, EXPECTED))]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_shift_of_the_embedding_is_measured(reference: dict[str, Any], ahead: int) -> None:
    """The embedded token is one ahead of its hidden state; 0 and 2 are faults."""
    rows = reference["embedding"][reference["ids"].astype(int)]
    captured = fed(reference, EXPECTED) | {"embeds": np.roll(rows, -ahead, axis=0)}
    assert embedding_shift(reference, captured) == ahead
    codes = [one.code for one in findings(compare_states(reference, captured, EXPECTED), ahead)]
    assert ("embedding-shift" in codes) == (ahead != 1)


def test_states_are_read_from_files_and_must_fit(tmp_path: Path, reference: dict[str, Any]) -> None:
    """A capture of another length, or without its slots, is refused with what is missing."""
    slot = reference["boundary.2"]
    made.write_safetensors(tmp_path / "c.safetensors", {"slot.0": ("F32", list(slot.shape), slot.ravel().tolist())})
    captured = load(tmp_path / "c.safetensors")
    assert compare_states(reference, captured, (2,))[0].right
    with pytest.raises(UsageError, match="neither `features` nor 3"):
        compare_states(reference, captured, EXPECTED)
    with pytest.raises(UsageError, match=r"captured states are \(5, 32\)"):
        compare_states(reference, {"features": slot[:5]}, (2,))
    with pytest.raises(UsageError, match=r"no boundary \[20\]"):
        compare_states(reference, captured, (20,))
