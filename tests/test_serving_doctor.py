"""The drafter doctor's verdict: prediction against measurement, and the hidden states behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from state.errors import UsageError
from tools.serving.bench.figures import conditional
from tools.serving.doctor import Reading, judge
from tools.serving.doctor_evidence import diagnose_acceptance
from tools.serving.doctor_finding import error

HEALTHY = (0.28, 0.32, 0.44)
"""Conditional acceptance of a small drafter as it was trained; `PLANTED` is the same one with one fault each."""
PLANTED = {
    "aux order reversed": ((0.05, 0.02, 0.0), "another order"),
    "EAGLE for EAGLE-3": ((0.04, 0.02, 0.0), "EAGLE was launched"),
    "d2t absolute": ((0.0, 0.0, 0.0), "target ids"),
    "embedding unshifted": ((0.11, 0.04, 0.0), "embedding"),
    "embedding shifted twice": ((0.04, 0.0, 0.0), "shifted twice"),
    "features one late": ((0.18, 0.28, 0.4), "one position late"),
    "features one early": ((0.23, 0.28, 0.4), "one position late or early"),
    "norm_output mismatch": ((0.30, 0.03, 0.07), "norm_output"),
    "norm_before_residual mismatch": ((0.03, 0.02, 0.0), "norm_before_residual"),
    "final norm missing": ((0.24, 0.29, 0.27), "final norm"),
}
HARDLY_SEEN = {"one layer early": (0.26, 0.31, 0.46), "rotary settings": (0.275, 0.32, 0.43)}


def reading(shares: Sequence[float], rounds: int = 20_000, about: str = "all") -> Reading:
    """A reading of so many rounds with these conditional acceptances."""
    reached = [rounds]
    for share in shares:
        reached.append(round(reached[-1] * share))
    return Reading((*(a - b for a, b in pairwise(reached)), reached[-1]), about)


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_of_the_engine_is_told_from_a_weak_drafter(name: str) -> None:
    """Each planted fault is a broken integration, and the fault is among those that its pattern names."""
    shares, word = PLANTED[name]
    verdict = judge(reading(HEALTHY), reading(shares))
    assert verdict.name == "engine integration broken"
    assert word in (verdict.fault or "")
    assert verdict.next


@pytest.mark.parametrize("name", HARDLY_SEEN)
def test_what_acceptance_cannot_show_is_not_claimed(name: str) -> None:
    """A layer or a position off costs less than the tolerance on a small drafter: no fault is invented."""
    assert judge(reading(HEALTHY), reading(HARDLY_SEEN[name])).name == "drafter weak"


def test_a_strong_drafter_without_its_mapping_is_recognised() -> None:
    """E06: .77/.55/.38/.29 by position become .11/.01/0/0 when `d2t` is dropped."""
    wanted, seen = reading((0.77, 0.714, 0.69, 0.763)), reading((0.11, 0.09, 0.0, 0.0))
    assert round(wanted.length, 2) == 2.99
    verdict = judge(wanted, seen)
    assert verdict.name == "engine integration broken"
    assert "d2t was not loaded" in (verdict.fault or "")


def test_a_low_acceptance_that_was_predicted_is_the_drafters() -> None:
    """The 15 % of the story proves no fault of the engine when 15 % was predicted."""
    verdict = judge(reading((0.28, 0.32, 0.44)), reading((0.28, 0.31, 0.42)))
    assert (verdict.name, verdict.fault) == ("drafter weak", None)


def test_what_a_drafter_is_worth_decides_when_it_is_known() -> None:
    """A multiplier below 1 makes a good acceptance weak, one above 1 makes a low one healthy."""
    good, low = reading((0.8, 0.8, 0.8)), reading(HEALTHY)
    assert judge(good, good).name == "healthy"
    assert judge(good, good, worth=0.9).name == "drafter weak"
    assert judge(low, low, worth=1.2).name == "healthy"


def test_few_rounds_prove_nothing() -> None:
    """A difference within the noise of a short measurement is no fault."""
    assert judge(reading(HEALTHY), reading((0.2, 0.2, 0.2), rounds=40)).name != "engine integration broken"


def test_a_finding_of_the_folder_names_the_fault() -> None:
    """What the folder shows goes before what a pattern suggests, if it concerns that engine."""
    found = [error("d2t-missing", "there is no d2t", "export it"), error("other", "vLLM reads it wrongly", "x", "vllm")]
    verdict = judge(reading(HEALTHY), reading((0.05, 0.0, 0.0)), found)
    assert (verdict.fault, verdict.next) == ("there is no d2t", "export it")
    assert "vLLM" not in " ".join(verdict.evidence)


def test_chains_of_other_lengths_are_not_compared() -> None:
    """A chain of three drafts says nothing of one of five, since their walks differ."""
    verdict = judge(reading(HEALTHY), reading((0.28, 0.32, 0.44, 0.4, 0.4)))
    assert verdict.name == "not comparable"
    assert "3" in verdict.evidence[0]
    assert "5" in verdict.evidence[0]


def measured(shares: Sequence[float], rounds: int = 20_000, **changed: Any) -> dict[str, Any]:
    """A result of the bench with one greedy pass of the set `sums`."""
    histogram = list(reading(shares, rounds).histogram)
    one = {
        "set": "sums", "temperature": 0.0, "concurrency": 1, "prompts": 40, "degenerate": 0, "like_reference": None,
        "acceptance": {"histogram": histogram, "shape": "chain", "topk": 1},
    }  # fmt: skip
    engine = {"name": "sglang", "speculation": {"algorithm": "EAGLE3"}, "arguments": {}}
    result: dict[str, Any] = {"engine": engine, "sets": {"sums": {"template_agrees": None}}, "passes": [one]}
    for name, value in changed.items():
        part = engine if name in engine else result["sets"]["sums"] if name == "template_agrees" else one
        part[name] = value
    return result


def prediction(**changed: Any) -> dict[str, Any]:
    return {"histogram": list(reading(HEALTHY).histogram), "greedy_agreement": 1.0, **changed}


@pytest.mark.parametrize(
    ("result", "expected", "why"),
    [
        (measured(HEALTHY, acceptance={"histogram": [5, 5, 5, 5], "shape": "tree", "topk": 4}), {}, "tree"),
        (measured(HEALTHY, acceptance=None), {}, "counted no round"),
        (measured(HEALTHY, degenerate=30), {}, "in circles"),
        (measured(HEALTHY), {"greedy_agreement": 0.7}, "greedily"),
    ],
    ids=["tree", "no speculation", "loops", "not greedy text"],
)
def test_what_cannot_be_compared_is_refused(result: dict[str, Any], expected: dict[str, Any], why: str) -> None:
    """The verdict is `not comparable`, with the reason."""
    (verdict,) = diagnose_acceptance(prediction(**expected), result, [])
    assert verdict.name == "not comparable"
    assert any(why in text for text in verdict.evidence)


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"template_agrees": 0.0}, "chat template"), ({"like_reference": 0.2}, "greedy answers")],
    ids=["E12 thinking template", "another target"],
)
def test_another_text_is_a_mismatch_of_data(changed: dict[str, Any], why: str) -> None:
    """E12: a low acceptance with another template, or other answers than the target's, is blamed on the data."""
    (verdict,) = diagnose_acceptance(prediction(), measured((0.12, 0.2, 0.2), **changed), [])
    assert verdict.name == "data mismatch"
    assert why in (verdict.fault or "")


def test_more_than_predicted_is_a_mismatch_too() -> None:
    """No engine accepts more than the greedy walk of the same text."""
    (verdict,) = diagnose_acceptance(prediction(), measured((0.6, 0.6, 0.6)), [])
    assert verdict.name == "data mismatch"


def test_the_launch_tells_its_own_fault() -> None:
    """EAGLE for an EAGLE-3 drafter is read off the engine's arguments and named exactly."""
    (verdict,) = diagnose_acceptance(prediction(), measured((0.04, 0, 0), speculation={"algorithm": "EAGLE"}), [])
    assert verdict.next == "--speculative-algorithm EAGLE3"


def test_sets_are_paired_by_name() -> None:
    """A prediction of several sets is held against the sets of the same names, and only those."""
    (verdict,) = diagnose_acceptance({"sums": prediction(), "other": prediction()}, measured(HEALTHY), [])
    assert verdict.measured is not None
    assert verdict.measured.about == "sums"
    (same,) = diagnose_acceptance({"histogram": [1, 1], "sets": {"sums": prediction()}}, measured(HEALTHY), [])
    assert same == verdict
    with pytest.raises(UsageError, match="no set was both"):
        diagnose_acceptance({"other": prediction()}, measured(HEALTHY), [])
    with pytest.raises(UsageError, match="histogram"):
        diagnose_acceptance({"x": 1}, measured(HEALTHY), [])


def test_the_chain_that_was_served_is_the_one_that_counts() -> None:
    """Where chains of several lengths were predicted, the one as long as the engine's is taken."""
    chains = {"3": prediction(), "2": {"histogram": list(reading((0.28, 0.32)).histogram)}}
    (verdict,) = diagnose_acceptance(prediction(chains=chains), measured((0.28, 0.32)), [])
    assert verdict.name == "drafter weak"


def test_a_prediction_for_another_drafter_is_refused() -> None:
    """The digest in the prediction and the one in the served folder have to be the same."""
    told = {"sets": {"sums": prediction()}, "drafter": "aaaa"}
    (verdict,) = diagnose_acceptance(told, measured(HEALTHY), [], drafter="bbbb")
    assert verdict.name == "not comparable"
    assert "aaaa" in verdict.evidence[0]
    (verdict,) = diagnose_acceptance(told, measured(HEALTHY), [], drafter="aaaa")
    assert verdict.name == "drafter weak"


def test_a_verdict_is_json() -> None:
    """Programs read verdict, fault, evidence, both readings and the findings."""
    (verdict,) = diagnose_acceptance(prediction(), measured(HEALTHY), [error("a", "b", "c")])
    told = json.loads(json.dumps(verdict.as_json()))
    assert told["verdict"] == "drafter weak"
    assert told["measured"]["conditional"] == conditional(reading(HEALTHY).histogram)
    assert told["findings"][0]["code"] == "a"
