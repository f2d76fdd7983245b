"""Finds the speculative setting that serves fastest: steps, top-k, draft tokens. A small search, few starts.

    outcome = await tune(measure, grid(steps=(1, 2, 3, 5), topk=(1,)), prompts=(8, 32))

`measure(setting, prompts)` serves with a setting (`None`: without speculation) and returns what each prompt set gave.
Starting a server costs a minute or more, so what a setting may be worth is predicted before it is started:

    length of a chain of K     1 + c1 + c1*c2 + ... + c1*...*cK, from the conditional acceptances of a longer chain
    cost of a round            a line through the costs measured so far, in plain decoding steps; before two are known
                               a round of no drafts costs one step
    multiplier                 length / cost

A tree accepts at most what k independent tries at each draft would, which bounds it from above. The most promising
setting goes first, one that cannot beat the best is never started, and the others halve: each rung measures the better
half with more prompts. Pure but for `measure`; jobs on hosts are `tune_trials`'.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARGIN = 0.05
"""A prediction may be so much too low before a setting is left out."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """SGLang's three numbers; a chain has top-k 1 and steps + 1 draft tokens."""

    steps: int
    topk: int
    draft_tokens: int

    @property
    def chain(self) -> bool:
        return self.topk == 1

    @property
    def name(self) -> str:
        """Short, and fit for a job's id."""
        return f"{self.steps}-{self.topk}-{self.draft_tokens}"

    def flags(self) -> str:
        """The launch arguments of SGLang."""
        return (
            f"--speculative-num-steps {self.steps} --speculative-eagle-topk {self.topk} "
            f"--speculative-num-draft-tokens {self.draft_tokens}"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt set under one setting. `conditional` is empty without speculation; rates in tokens a second."""

    tokens_per_s: float
    length: float = 1.0
    conditional: tuple[float, ...] = ()


Figures = Mapping[str, Measured]
Measure = Callable[[Setting | None, int], Awaitable[Figures]]


@dataclass(slots=True)
class Trial:
    """What is known of a setting: figures and multipliers by set if it was started, else why it was left out."""

    setting: Setting
    predicted: float | None = None
    figures: Figures = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    prompts: int = 0
    left_out: str | None = None

    @property
    def started(self) -> bool:
        return bool(self.gains)

    @property
    def overall(self) -> float:
        """The geometric mean of the multipliers: sets count alike, whatever their rates."""
        return mean(self.gains.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "setting": self.setting.name,
            "flags": self.setting.flags(),
            "predicted": None if self.predicted is None else round(self.predicted, 3),
            "multiplier": round(self.overall, 3) if self.started else None,
            "sets": {name: round(gain, 3) for name, gain in self.gains.items()},
            "lengths": {name: one.length for name, one in self.figures.items()},
            "prompts": self.prompts,
            "left_out": self.left_out,
        }


@dataclass(slots=True)
class Outcome:
    """The end of a search: `best` overall and for each set; `None` where no speculation is faster than any."""

    plain: Figures
    trials: list[Trial]
    best: Trial | None = None
    by_set: dict[str, Trial | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `flags` is what to start the server with, empty for no speculation."""
        return {
            "best": self.best.setting.name if self.best else None,
            "flags": self.best.setting.flags() if self.best else "",
            "multiplier": round(self.best.overall, 3) if self.best else 1.0,
            "by_set": {name: one.setting.flags() if one else "" for name, one in self.by_set.items()},
            "plain_tokens_per_s": {name: one.tokens_per_s for name, one in self.plain.items()},
            "trials": [trial.as_json() for trial in self.trials],
            "started": sum(trial.started for trial in self.trials),
        }


def grid(steps: Sequence[int] = (1, 2, 3, 5), topk: Sequence[int] = (1,)) -> list[Setting]:
    """Chains of these lengths, and trees of them for each top-k above 1 (draft tokens 4, 8, 16, 32 that have room)."""
    found = {Setting(n, 1, n + 1) for n in steps if 1 in topk}
    for k in topk:
        if k > 1:
            rooms = {n: k + (n - 1) * k * k + 1 for n in steps}
            found |= {Setting(n, k, d) for n in steps for d in (4, 8, 16, 32) if n < d <= rooms[n]}
    return sorted(found)


def mean(gains: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(max(one, 1e-9)) for one in gains]
    return math.exp(sum(logs) / len(logs))


def expected_length(conditional: Sequence[float], setting: Setting) -> float | None:
    """Tokens of a round: exact for a shorter chain, a bound from above for a tree; `None` for a longer one."""
    if setting.steps > len(conditional):
        return None
    length, chance = 1.0, 1.0
    for accepted in conditional[: setting.steps]:
        chance *= 1 - (1 - accepted) ** setting.topk
        length += chance
    return length


def expected_cost(costs: Mapping[int, float], steps: int) -> float:
    """A round's cost in plain steps, on the line through what was measured by number of steps."""
    points = sorted({0: 1.0, **costs}.items()) if len(costs) < 2 else sorted(costs.items())
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return max(mean_y + slope * (steps - mean_x), 0.1)


async def tune(measure: Measure, settings: Sequence[Setting], *, prompts: Sequence[int] = (8, 32)) -> Outcome:
    """Search `settings`; `prompts` are the rungs, few to many."""
    plain = {rung: await measure(None, rung) for rung in prompts}

    async def run(trial: Trial, rung: int) -> None:
        trial.figures, trial.prompts = await measure(trial.setting, rung), rung
        trial.gains = {name: one.tokens_per_s / plain[rung][name].tokens_per_s for name, one in trial.figures.items()}

    trials = {setting: Trial(setting) for setting in settings}
    # The longest chain first: from it every shorter one is predicted.
    waiting = sorted(settings, key=lambda s: (not s.chain, -s.steps))
    while waiting:
        trial = trials[waiting.pop(0)]
        best = max((t.overall for t in trials.values() if t.started), default=1.0)
        if trial.predicted is not None and trial.predicted * (1 + MARGIN) < best:
            trial.left_out = f"predicted {trial.predicted:.2f}, and {best:.2f} was reached"
            continue
        await run(trial, prompts[0])
        predict(trials.values(), plain[prompts[0]])
        waiting.sort(key=lambda s: -(trials[s].predicted or math.inf))
    going = [trial for trial in trials.values() if trial.started]
    for rung in prompts[1:]:
        going = sorted(going, key=lambda t: -t.overall)[: (len(going) + 1) // 2]
        for trial in going:
            await run(trial, rung)
    return conclude(plain[prompts[-1]], list(trials.values()), going)


def predict(trials: Iterable[Trial], plain: Figures) -> None:
    """Fill in what the settings that were not started may be worth, from the chains that were."""
    every = list(trials)
    chains = [trial for trial in every if trial.started and trial.setting.chain]
    for trial in every if chains else ():
        gains = [_predicted(trial.setting, name, chains) for name in plain]
        known = [one for one in gains if one is not None]
        if not trial.started and len(known) == len(gains):
            trial.predicted = mean(known)


def _predicted(setting: Setting, name: str, chains: Sequence[Trial]) -> float | None:
    longest = max(chains, key=lambda trial: trial.setting.steps).figures[name]
    length = expected_length(longest.conditional, setting)
    costs = {
        trial.setting.steps: trial.figures[name].length / trial.gains[name] for trial in chains if trial.gains[name]
    }
    return None if length is None or not costs else length / expected_cost(costs, setting.steps)


def conclude(plain: Figures, trials: list[Trial], final: Sequence[Trial]) -> Outcome:
    """The best of those measured with the most prompts; no speculation is a contender at 1.0."""
    outcome = Outcome(plain, trials)
    winner = max(final, key=lambda t: t.overall, default=None)
    outcome.best = winner if winner is not None and winner.overall > 1 else None
    for name in plain:
        # A set's own best may have left the race early, so all that were measured count here.
        best = max((t for t in trials if t.started), key=lambda t: t.gains[name], default=None)
        outcome.by_set[name] = best if best is not None and best.gains[name] > 1 else None
    return outcome
