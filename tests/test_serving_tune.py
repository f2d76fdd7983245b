"""The search for the fastest setting, over a scripted drafter whose every setting has a known worth."""

from __future__ import annotations

import anyio
import pytest

from tools.serving.tune import Figures, Measured, Outcome, Setting, expected_cost, expected_length, grid, tune


class Bench:
    """Serves make-believe settings: chains accept `shares`, a round of K steps costs 1 + `slope` * K plain steps."""

    def __init__(self, shares: dict[str, tuple[float, ...]], slope: float, broken: tuple[int, ...] = ()) -> None:
        self.shares, self.slope, self.broken = shares, slope, broken
        self.asked: list[tuple[str, int]] = []

    async def measure(self, setting: Setting | None, prompts: int) -> Figures:
        self.asked.append((setting.name if setting else "plain", prompts))
        return {name: self.worth(setting, shares) for name, shares in self.shares.items()}

    def worth(self, setting: Setting | None, shares: tuple[float, ...]) -> Measured:
        if setting is None:
            return Measured(100.0)
        if setting.steps in self.broken:
            return Measured(0.0)
        length = expected_length(shares, setting) or 1.0
        gain = length / (1 + self.slope * setting.steps) * (0.8 if setting.topk > 1 else 1.0)
        return Measured(100 * gain, length, shares[: setting.steps] if setting.chain else ())


def search(bench: Bench, settings: list[Setting]) -> Outcome:
    """Run a search to its end."""
    outcome: list[Outcome] = []

    async def run() -> None:
        outcome.append(await tune(bench.measure, settings, prompts=(4, 16)))

    anyio.run(run)
    return outcome[0]


SHARES = (0.8, 0.75, 0.7, 0.4, 0.2, 0.1, 0.1)


def test_the_best_chain_is_found_with_few_starts() -> None:
    """The longest chain predicts the others; those that cannot win are never started, and it says why."""
    bench = Bench({"a": SHARES}, slope=0.25)
    settings = grid(range(1, 8))
    best = max(settings, key=lambda one: bench.worth(one, SHARES).tokens_per_s)
    found = search(bench, settings)
    assert found.best is not None
    assert found.best.setting == best
    assert found.best.setting.flags() == (
        f"--speculative-num-steps {best.steps} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {best.steps + 1}"
    )
    started = {name for name, _ in bench.asked} - {"plain"}
    assert len(started) < len(settings)
    left_out = [trial for trial in found.trials if not trial.started]
    assert len(started) + len(left_out) == len(settings)
    assert all("predicted" in (trial.left_out or "") for trial in left_out)


def test_the_better_half_goes_on_with_more_prompts() -> None:
    """Each rung measures half as many settings with more prompts, and the winner was measured with the most."""
    bench = Bench({"a": (0.9,) * 7}, slope=0.01)
    found = search(bench, grid((5, 6, 7)))
    rungs = {rung: [n for n, r in bench.asked if r == rung and n != "plain"] for rung in (4, 16)}
    assert len(rungs[16]) == (len(rungs[4]) + 1) // 2
    assert found.best is not None
    assert found.best.prompts == 16


def test_each_set_has_its_own_best() -> None:
    """A set that is drafted well wants a long chain, one that is drafted badly a short one or none."""
    found = search(Bench({"good": (0.95,) * 5, "bad": (0.1,) * 5}, slope=0.2), grid((1, 3, 5)))
    assert found.by_set["good"] is not None
    assert found.by_set["good"].setting.steps == 5
    assert found.by_set["bad"] is None


def test_no_speculation_wins_where_nothing_gains() -> None:
    """A drafter that costs more than it brings ends with no flags and a multiplier of 1."""
    found = search(Bench({"a": (0.14, 0.1, 0.1)}, slope=0.5), grid((1, 2, 3)))
    told = found.as_json()
    assert (told["best"], told["flags"], told["multiplier"]) == (None, "", 1.0)
    assert told["started"] < 3


def test_a_setting_that_does_not_come_up_loses_and_the_search_goes_on() -> None:
    """The longest chain may not fit into memory; the others are still found."""
    found = search(Bench({"a": SHARES}, slope=0.25, broken=(7,)), grid((2, 3, 7)))
    assert found.best is not None
    assert found.best.setting.steps == 3


def test_a_tree_is_tried_only_where_it_may_win() -> None:
    """A tree's length is bounded by independent tries, so a hopeless one is not started and a hopeful one is."""
    hopeless = search(Bench({"a": (0.99,) * 3}, slope=0.1), [Setting(3, 1, 4), Setting(1, 4, 4)])
    assert [trial.started for trial in hopeless.trials] == [True, False]
    hopeful = search(Bench({"a": (0.4,) * 3}, slope=0.1), [Setting(3, 1, 4), Setting(3, 4, 16)])
    assert all(trial.started for trial in hopeful.trials)


def test_the_length_of_a_shorter_chain_follows_from_a_longer_one() -> None:
    """1 + c1 + c1*c2 for two drafts; a chain longer than what was measured is not guessed."""
    assert expected_length((0.5, 0.4, 0.3), Setting(2, 1, 3)) == pytest.approx(1 + 0.5 + 0.2)
    assert expected_length((0.5,), Setting(2, 1, 3)) is None
    assert expected_length((0.5, 0.5), Setting(1, 2, 3)) == pytest.approx(1.75)


def test_costs_lie_on_a_line() -> None:
    """One measurement goes with a round of no drafts at one step; two and more give the line themselves."""
    assert expected_cost({4: 3.0}, 2) == pytest.approx(2.0)
    assert expected_cost({1: 2.0, 3: 3.0}, 5) == pytest.approx(4.0)


def test_a_grid_holds_only_what_an_engine_takes() -> None:
    """A chain has steps + 1 draft tokens, a tree no more than it has room for."""
    for setting in grid((1, 2, 4), (1, 2, 4)):
        room = setting.topk + (setting.steps - 1) * setting.topk**2 + 1
        assert (
            setting.draft_tokens == setting.steps + 1 if setting.chain else setting.steps < setting.draft_tokens <= room
        )
