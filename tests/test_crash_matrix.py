"""Killed at any moment, resumed, and nothing is different.

Every commit point and every effect is a named failpoint. An undisturbed run writes down which ones it passes; then, for
each, a fresh run is killed there with SIGKILL and resumed, and its end, its log and the launches counted on the host
must equal those of the undisturbed run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from state.db import Database
from state.log import read, rebuild, snapshot
from state.models import Session, table

ROOT = Path(__file__).parent.parent
PLAYBOOK = ROOT / "tests" / "data" / "crash.yaml"
KILLED = -signal.SIGKILL
CREATION = ("commit.before:session.created:", "commit.before:todo.added:", "commit.before:todo.linked:")


@dataclass(frozen=True)
class Ended:
    """How one command ended."""

    code: int
    out: str
    err: str


class Forks:
    """One forking process (`crash_driver.py`) a thread, for as long as the module is tested."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[subprocess.Popen[str]] = []

    def command(self, request: dict[str, Any]) -> int:
        if not hasattr(self._mine, "process"):
            program = [sys.executable, str(ROOT / "tests" / "crash_driver.py")]
            self._mine.process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            self._all.append(self._mine.process)
        process = self._mine.process
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def close(self) -> None:
        for process in self._all:
            process.communicate("")


FORKS = Forks()


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    yield
    FORKS.close()


@dataclass
class Driver:
    """A place of its own for one run: database, state and the host's folder."""

    home: Path

    def turnout(self, *argv: str, **env: str) -> Ended:
        self.home.mkdir(exist_ok=True)
        place = {
            "TURNOUT_DB": str(self.home / "t.db"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "TURNOUT_ROOT": str(self.home / "host"),
        }
        out, err = self.home / "out", self.home / "err"
        code = FORKS.command({"argv": argv, "env": {**place, **env}, "out": str(out), "err": str(err)})
        return Ended(code, out.read_text(), err.read_text())

    def run(self, **env: str) -> Ended:
        return self.turnout("run", str(PLAYBOOK), "--yes", "--json", **env)

    def resume(self, **env: str) -> Ended:
        return self.turnout("resume", self.session(), "--json", **env)

    def sessions(self) -> list[str]:
        db = Database.open(str(self.home / "t.db"))
        query = select(table(Session).c.id).where(table(Session).c.kind == "playbook")
        found = db.read(lambda conn: list(conn.execute(query).scalars()))
        db.close()
        return found

    def session(self) -> str:
        (session,) = self.sessions()
        return session

    def launches(self) -> Counter[str]:
        """How often each attempt ran on the host, whatever the session is called."""
        lines = (self.home / "host" / "launches").read_text().split()
        return Counter(line.partition(".")[2] for line in lines)

    def log(self) -> Counter[str]:
        """What the log says happened, as a bag: what runs in parallel may be reported in another order."""
        session = self.session()
        db = Database.open(str(self.home / "t.db"))
        messages = db.read(lambda conn: list(read(conn, session)))
        before = db.read(snapshot)
        db.write(rebuild)
        assert db.read(snapshot) == before, "tables and log differ"
        db.close()
        return Counter(
            json.dumps([m.kind, m.actor, told(m.payload, session)], sort_keys=True)
            for m in messages
            if m.kind not in ("session.resumed", "session.created", "job.reported")
        )


def told(payload: dict[str, Any], session: str) -> Any:
    """A payload without what differs between any two runs: times, and the session's own name."""
    kept = {k: v for k, v in payload.items() if k not in ("started", "ended")}
    return json.loads(json.dumps(kept).replace(session, "SESSION"))


def end(result: Ended) -> dict[str, Any]:
    assert result.code == 0, (result.code, result.out[-2000:], result.err[-2000:])
    last: dict[str, Any] = json.loads(result.out.splitlines()[-1])
    told_last: dict[str, Any] = told(last, last.pop("session"))
    return told_last


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Driver, dict[str, Any], list[str]]:
    driver = Driver(tmp_path_factory.mktemp("undisturbed") / "home")
    trace = driver.home.parent / "trace"
    result = end(driver.run(TURNOUT_FAILPOINT_TRACE=str(trace)))
    return driver, result, list(dict.fromkeys(trace.read_text().splitlines()))


def test_the_undisturbed_run_is_what_it_should_be(undisturbed: tuple[Driver, dict[str, Any], list[str]]) -> None:
    """The run that all others are held against passes every kind of failpoint and launches each attempt once."""
    driver, result, failpoints = undisturbed
    assert {todo: info["status"] for todo, info in result["todos"].items()} == {
        "left": "completed",
        "right": "completed",
        "fast": "completed",
        "slow": "cancelled",
        "first": "completed",
        "door": "completed",
        "breaks": "failed",
        "never": "skipped",
        "instead": "completed",
        "read": "completed",
        "enough": "completed",
        "last": "completed",
    }
    attempts = ["left.1", "right.1", "fast.1", "slow.1", "breaks.1", "breaks.2", "instead.1", "last.1"]
    assert driver.launches() == Counter(attempts)
    places = {label.partition(":")[0].partition("#")[0] for label in failpoints}
    effects = {f"{effect}.{when}" for effect in ("commit", "launch", "kill", "tool") for when in ("before", "after")}
    assert places == effects


@pytest.mark.slow
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(
    undisturbed: tuple[Driver, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    """SIGKILL at each failpoint, then `turnout resume`: same end, same log, every attempt launched exactly once."""
    driver, result, failpoints = undisturbed
    expected = driver.log(), driver.launches()

    def trial(place: tuple[int, str]) -> tuple[str, str | None]:
        number, label = place
        at = Driver(tmp_path / f"{number}")
        first = at.run(TURNOUT_FAILPOINT=label)
        if first.code != KILLED:
            return label, f"not killed: {first.code} {first.err[-500:]}"
        if label.startswith(
            tuple(f"commit.before:{kind}:" for kind in ("session.created", "todo.added", "todo.linked"))
        ):
            return label, "stored in part" if at.sessions() else None  # so there is nothing to resume
        return label, differs(at, at.resume(), result, expected)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = {label: why for label, why in pool.map(trial, enumerate(failpoints)) if why}
    # Which launches go together depends on timing, so a few effect points may not be passed a second time.
    missed = [label for label, why in wrong.items() if why.startswith("not killed") and not label.startswith("commit")]
    assert len(missed) <= 3, missed
    assert [f"{label}: {why}" for label, why in wrong.items() if label not in missed] == []


@pytest.mark.slow
def test_a_resume_may_be_killed_too(undisturbed: tuple[Driver, dict[str, Any], list[str]], tmp_path: Path) -> None:
    """Killed in the run, killed again in the resume, resumed: still the same."""
    driver, result, failpoints = undisturbed
    expected = driver.log(), driver.launches()
    launched = [label for label in failpoints if label.startswith("commit.after:job.submitted")]
    ends = [label for label in failpoints if label.startswith("commit.") and ":job.state:" in label]
    pairs = list(zip(launched, ends[len(launched) :], strict=False))
    killed_twice = 0
    for number, (one, two) in enumerate(pairs):
        at = Driver(tmp_path / f"{number}")
        assert at.run(TURNOUT_FAILPOINT=one).code == KILLED
        second = at.resume(TURNOUT_FAILPOINT=two)
        killed_twice += second.code == KILLED
        if second.code == KILLED:
            second = at.resume()
        assert differs(at, second, result, expected) is None, (one, two)
    assert killed_twice >= len(pairs) // 2


def differs(
    at: Driver,
    last: Ended,
    result: dict[str, Any],
    expected: tuple[Counter[str], Counter[str]],
) -> str | None:
    """What is not as in the undisturbed run; `None` when all is."""
    if last.code != 0:
        return f"resume ended with {last.code}: {last.out[-500:]} {last.err[-1500:]}"
    if end(last) != result:
        return f"end: {end(last)}"
    if at.launches() != expected[1]:
        return f"launches: {at.launches() - expected[1]} too many, {expected[1] - at.launches()} too few"
    log = at.log()
    if log != expected[0]:
        return f"log: {list(log - expected[0])} too much, {list(expected[0] - log)} missing"
    return None
