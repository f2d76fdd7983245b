"""Reads predictions and measurements as they are written, pairs them, and lists why a pair cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from state.errors import UsageError
from tools.serving.doctor import ALIKE, Reading, Verdict, judge, read_reading
from tools.serving.doctor_finding import Finding, error, warning

Json = Mapping[str, Any]
AGREEMENT = 0.97
"""Text of which a smaller share is the target's greedy choice is not greedy text; ties in bfloat16 cost up to 3 %."""


def read_predictions(value: Json) -> dict[str, Json]:
    """The predictions of `evaluate` by set; one without sets is for `all`. Raises UsageError for anything else."""
    sets = value.get("sets", {"all": value} if "histogram" in value else value)
    found = {name: one for name, one in sets.items() if isinstance(one, Mapping) and "histogram" in one}
    if not found:
        raise UsageError("the prediction has no `histogram`", hint="give the JSON that the payload's `evaluate` wrote")
    return found


def diagnose_acceptance(
    prediction: Json, measured: Json, findings: list[Finding], *, drafter: str | None = None
) -> list[Verdict]:
    """One verdict for each prediction that the measurement has a set for; one for `all` goes with every set.

    `drafter` is the digest that the served folder carries: a prediction for another one is refused.
    """
    predictions = read_predictions(prediction)
    of = prediction.get("drafter")
    reasons = (
        [f"the prediction is for the drafter {of}, the folder has {drafter}"]
        if of and drafter not in (None, of)
        else []
    )
    pairs: list[tuple[Json, Reading, Json, Json]]
    if "passes" not in measured:
        told = read_predictions(measured)
        pairs = [(predictions[name], read_reading(told[name], name), {}, {}) for name in predictions if name in told]
    else:
        pairs = [pair for one in _greedy(measured) for pair in _pair(predictions, measured, one)]
    if not pairs:
        raise UsageError(
            f"no set was both predicted ({', '.join(predictions)}) and measured greedily",
            hint="name the prompt sets alike, and measure them at temperature 0",
        )
    return [_one(expected, reading, one, engine, findings, reasons) for expected, reading, one, engine in pairs]


def _greedy(measured: Json) -> list[Json]:
    """The greedy pass of each set with the fewest requests in flight: the one that a prediction is for."""
    found: dict[str, Json] = {}
    for one in measured["passes"]:
        best = found.get(one["set"])
        if one["temperature"] == 0 and (best is None or one["concurrency"] < best["concurrency"]):
            found[one["set"]] = one
    return list(found.values())


def _pair(predictions: Mapping[str, Json], measured: Json, one: Json) -> list[tuple[Json, Reading, Json, Json]]:
    expected = predictions.get(one["set"]) or predictions.get("all")
    if expected is None:
        return []
    accepted = one["acceptance"] or {"histogram": [0, 0]}
    about = {**measured["sets"][one["set"]], **one}
    return [(expected, read_reading(accepted, one["set"]), about, measured["engine"])]


def _one(
    expected: Json, reading: Reading, one: Json, engine: Json, findings: list[Finding], reasons: list[str]
) -> Verdict:
    versus = one.get("versus") or {}
    # Chains of several lengths may have been predicted: the one that was served counts.
    chain = (expected.get("chains") or {}).get(str(reading.drafts), expected)
    return judge(
        read_reading(chain, reading.about),
        reading,
        [*findings, *_launched(engine)],
        reasons=[*reasons, *_reasons(expected, reading, one)],
        mismatch=_mismatch(one),
        worth=versus.get("multiplier"),
        engine=engine.get("name", "sglang"),
    )


def _reasons(expected: Json, reading: Reading, one: Json) -> list[str]:
    """Why nothing can be said of this pair."""
    found = []
    accepted = one.get("acceptance") or {}
    if one and not accepted:
        found.append("the engine counted no round of draft and verify: does it speculate at all?")
    if accepted.get("shape") == "tree":
        found.append(f"the engine drafts a tree (top-k {accepted.get('topk')}), the prediction is for a chain")
    agreement = expected.get("greedy_agreement")
    if agreement is not None and agreement < AGREEMENT:
        found.append(f"only {100 * agreement:.1f} % of the predicted text is what the target says greedily")
    if one and one["degenerate"] > 0.1 * one["prompts"]:
        found.append(f"{one['degenerate']} of {one['prompts']} answers go in circles, which raises acceptance")
    if not reading.rounds and accepted:
        found.append("the histogram is empty")
    return found


def _mismatch(one: Json) -> list[str]:
    """Signs that the engine saw, or said, other text than the prediction is for."""
    found = []
    agrees, alike = one.get("template_agrees"), one.get("like_reference")
    if agrees is not None and agrees < 1:
        found.append(
            f"the server's chat template gives other tokens for {100 * (1 - agrees):.0f} % of the prompts: another "
            "template, or thinking on in one and off in the other"
        )
    if alike is not None and alike < ALIKE:
        found.append(
            f"the engine's greedy answers begin like the target's own for {100 * alike:.0f} % of their first tokens: "
            "another target, template or precision"
        )
    return found


def _launched(engine: Json) -> list[Finding]:
    """Faults of the launch that the engine itself tells."""
    told, arguments = engine.get("speculation") or {}, engine.get("arguments") or {}
    found = []
    if told.get("algorithm") == "EAGLE" and engine.get("name") == "sglang":
        found.append(
            error(
                "algorithm",
                "SGLang was launched with the algorithm EAGLE, which feeds the drafter one hidden state, not three",
                "--speculative-algorithm EAGLE3",
                "sglang",
            )
        )
    limits = [arguments.get(f"speculative_accept_threshold_{name}", 1.0) for name in ("single", "acc")]
    if limits != [1.0, 1.0]:
        found.append(
            warning(
                "thresholds",
                f"drafts are accepted below certainty (thresholds {limits}): the answers are not the target's",
                "leave both thresholds at 1.0",
            )
        )
    return found
