"""Holds what an engine accepts of a drafter against what was predicted without an engine, and says who is at fault.

    judge(read_prediction(...), read_measurement(...), findings)

A weak drafter and a broken integration both show a low acceptance length; only the comparison tells them apart. The
prediction walks the target's own greedy answers (`evaluate` of the trainer), so it is for a greedy chain on such text;
what is not that is `not comparable`, with the reason. Verdicts:

    healthy                     as predicted, and worth its cost as far as is known
    drafter weak                as predicted, and not worth its cost
    engine integration broken   far below the prediction
    data mismatch               the engine saw other text than the prediction is for
    not comparable              nothing can be said, and why
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from state.errors import UsageError
from tools.serving.bench.figures import conditional
from tools.serving.doctor_finding import Finding
from tools.serving.doctor_pattern import recognise

Name = Literal["healthy", "drafter weak", "engine integration broken", "data mismatch", "not comparable"]

TOLERANCE = 0.10
"""Differences of accepted drafts up to this share are ties in bfloat16 and the ends of answers."""
SIGMAS = 3.0
"""And a difference counts only if it is so many standard errors."""
FIRST_DRAFT = 0.5
"""Without a multiplier, a drafter whose first draft is right less often is called weak; published ones have 0.6-0.8."""
ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Reading:
    """Acceptance of a greedy chain: `histogram[k]` rounds with exactly k accepted drafts. `about` names its prompts."""

    histogram: tuple[int, ...]
    about: str = "all"
    notes: tuple[str, ...] = ()

    @property
    def drafts(self) -> int:
        """The length of the chain."""
        return len(self.histogram) - 1

    @property
    def rounds(self) -> int:
        return sum(self.histogram)

    @property
    def accepted(self) -> float:
        """Mean accepted drafts of a round."""
        return sum(k * n for k, n in enumerate(self.histogram)) / self.rounds if self.rounds else 0.0

    @property
    def length(self) -> float:
        return 1.0 + self.accepted

    @property
    def error(self) -> float:
        """The standard error of the mean, rounds taken for independent (those of one answer are a little alike)."""
        if self.rounds < 2:
            return math.inf
        mean = self.accepted
        square = sum(n * (k - mean) ** 2 for k, n in enumerate(self.histogram))
        return math.sqrt(square / (self.rounds - 1) / self.rounds)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "about": self.about, "acceptance_length": round(self.length, 4), "rounds": self.rounds,
            "conditional": conditional(self.histogram), "histogram": list(self.histogram),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fault` is named where it is recognised; `evidence` are the sentences behind it, `next` what to do."""

    name: Name
    evidence: tuple[str, ...]
    fault: str | None = None
    next: str | None = None
    prediction: Reading | None = None
    measured: Reading | None = None
    findings: tuple[Finding, ...] = ()
    engine: str = "sglang"

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        return {
            "verdict": self.name,
            "engine": self.engine,
            "fault": self.fault,
            "evidence": list(self.evidence),
            "next": self.next,
            "prediction": self.prediction.as_json() if self.prediction else None,
            "measured": self.measured.as_json() if self.measured else None,
            "findings": [finding.as_json() for finding in self.findings],
        }


def judge(
    prediction: Reading,
    measured: Reading,
    findings: Sequence[Finding] = (),
    *,
    reasons: Sequence[str] = (),
    mismatch: Sequence[str] = (),
    worth: float | None = None,
    engine: str = "sglang",
) -> Verdict:
    """The verdict. `reasons` are why the two are not comparable, `mismatch` why the text is another, `worth` the
    multiplier over no speculation where it is known."""
    case = Verdict("not comparable", (), prediction=prediction, measured=measured, findings=tuple(findings))
    case = replace(case, engine=engine)
    if prediction.drafts != measured.drafts:
        other = f"the prediction is for chains of {prediction.drafts} drafts, measured were {measured.drafts}"
        reasons = [*reasons, other]
    if reasons:
        return replace(case, evidence=tuple(reasons), next="predict and measure the same greedy chain on the same text")
    shown = _shown(prediction, measured)
    below, alike = _far_below(prediction, measured), _alike(prediction, measured)
    if mismatch and not alike:
        remedy = "serve with the template and the target that the answers were made with"
        return replace(case, name="data mismatch", evidence=(*mismatch, shown), fault=mismatch[0], next=remedy)
    if below:
        return _broken(case, prediction, measured, shown, engine)
    if not alike and measured.accepted > prediction.accepted:
        why = "no engine accepts more than the greedy walk of the same text: it answered easier prompts, or in circles"
        return replace(case, name="data mismatch", evidence=(shown, why), fault="other prompts than predicted",
                       next="measure the held-out prompts of the prediction")  # fmt: skip
    return _judge_drafter(case, measured, shown, worth)


def _judge_drafter(case: Verdict, measured: Reading, shown: str, worth: float | None) -> Verdict:
    """The engine does what was predicted: is that enough?"""
    first = conditional(measured.histogram)[0] or 0.0
    gain = "what it gains was not measured" if worth is None else f"speculation is {worth:.2f} times as fast as none"
    weak = worth < 1 if worth is not None else first < FIRST_DRAFT
    evidence = (shown, f"the first draft is right {100 * first:.0f} % of the time", gain)
    if not weak:
        return replace(case, name="healthy", evidence=evidence)
    remedy = "train on more and broader answers; `turnout drafter tune` finds the best setting for what there is"
    return replace(case, name="drafter weak", evidence=evidence, next=remedy)


def _shown(prediction: Reading, measured: Reading) -> str:
    return (
        f"predicted {prediction.length:.2f} tokens a round over {prediction.rounds} rounds, "
        f"the engine has {measured.length:.2f} over {measured.rounds}"
    )


def _far_below(prediction: Reading, measured: Reading) -> bool:
    gap = prediction.accepted - measured.accepted
    return gap > TOLERANCE * prediction.accepted and gap > SIGMAS * math.hypot(prediction.error, measured.error)


def _alike(prediction: Reading, measured: Reading) -> bool:
    gap = abs(prediction.accepted - measured.accepted)
    return gap <= max(TOLERANCE * prediction.accepted, SIGMAS * math.hypot(prediction.error, measured.error))


def _broken(case: Verdict, prediction: Reading, measured: Reading, shown: str, engine: str) -> Verdict:
    seen, wanted = conditional(measured.histogram), conditional(prediction.histogram)
    pattern = recognise(seen, wanted)
    errors = [one for one in case.findings if one.level == "error" and engine in one.engines]
    compared = f"{pattern.name}: {_list(seen)} accepted of those asked, where {_list(wanted)} was predicted"
    return replace(
        case,
        name="engine integration broken",
        evidence=(shown, compared, *(one.what for one in errors)),
        fault=errors[0].what if errors else " or ".join(pattern.faults),
        next=errors[0].remedy if errors else pattern.look,
    )


def _list(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def read_reading(value: Mapping[str, Any], about: str = "all") -> Reading:
    """A reading from JSON with a `histogram`. Raises UsageError when it has none, or one that counts nothing."""
    counts = value.get("histogram")
    if not isinstance(counts, list) or len(counts) < 2 or not all(isinstance(n, int) and n >= 0 for n in counts):
        raise UsageError(
            f"`{about}` has no histogram of accepted drafts: `{str(dict(value))[:120]}`",
            hint="give what `evaluate` wrote as prediction, and what `turnout bench` wrote as measurement",
        )
    return Reading(tuple(counts), about)
