"""What running jobs report is kept in the log: not each time, less and less often, and never in the way of the run."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from agent.replay import Entry
from agent.replay_source import entries
from agent.reports import MAX_LINE, Reports, due_after
from state import changes as c
from state.db import Database
from state.log import append
from tools.jobs import JobState, Progress


@pytest.fixture
def db(tmp_path: Path) -> Database:
    opened = Database.open(str(tmp_path / "turnout.db"))
    made = c.session_created(kind="playbook", title="", playbook=None, source=None, parent=None, settings={})
    opened.write(lambda conn: append(conn, "s", [made], 0.0))
    return opened


class Clock:
    """A clock that stands until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def said(done: float, line: str = "", job: str = "s.a.1", state: str = "running") -> JobState:
    return JobState(job, state, progress=Progress(done, 1e6, "steps", line))  # type: ignore[arg-type]


def kept(db: Database) -> list[Entry]:
    return [entry for entry in db.read(lambda conn: list(entries(conn, "s"))) if entry.kind == "job.reported"]


def test_a_long_job_leaves_few_reports(db: Database) -> None:
    """Of a day of reports every second some hundred are kept: dense at first, then ever rarer, none invented."""
    clock = Clock()
    reports = Reports(db, "s", clock=clock)

    async def day() -> None:
        for second in range(0, 86_400, 7):
            clock.now = 100.0 + second
            reports.saw("gpu1", said(second))
            await reports.keep_due()

    anyio.run(day)
    dones = [entry.payload["done"] for entry in kept(db)]
    assert 100 < len(dones) < 500
    assert dones == sorted(set(dones))
    gaps = [b - a for a, b in pairwise(dones)]
    assert gaps[0] == 7
    assert max(gaps) <= due_after(86_400) + 7
    assert kept(db)[0].actor == "host:gpu1"


def test_a_short_job_leaves_none_and_a_longer_one_its_last_word(db: Database) -> None:
    """What was over before anything of it was kept stays unkept; else the end of the curve is in the log."""
    clock = Clock()
    reports = Reports(db, "s", clock=clock)

    async def run() -> None:
        reports.saw("h", said(1, job="s.short.1"))
        await reports.end(said(2, job="s.short.1", state="exited"))
        reports.saw("h", said(1))
        clock.now += 1
        await reports.keep_due()
        clock.now += 0.5
        reports.saw("h", said(5))
        await reports.keep_due()
        await reports.end(said(9, "done", state="exited"))
        await reports.end(said(9, "done", state="exited"))

    anyio.run(run)
    assert [(e.payload["id"], e.payload["done"]) for e in kept(db)] == [("s.a.1", 1), ("s.a.1", 9)]


def test_a_measurement_is_not_lost_to_a_remark(db: Database) -> None:
    """Between two reports that are kept, the last line with a number in it is the one that stays, cut to a length."""
    clock = Clock()
    reports = Reports(db, "s", clock=clock)

    async def run() -> None:
        reports.saw("h", said(1, "loss 0.5"))
        reports.saw("h", said(2, "saving"))
        clock.now += 1
        await reports.keep_due()
        reports.saw("h", said(3, "x" * 5000))
        clock.now += 10
        await reports.keep_due()
        clock.now += 10
        await reports.keep_due()

    anyio.run(run)
    told = kept(db)
    assert [entry.payload["line"] for entry in told] == ["loss 0.5", "x" * MAX_LINE]
    assert [entry.payload["done"] for entry in told] == [2, 3]


def test_a_busy_database_costs_a_delay_and_nothing_else(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the log cannot be written just now, the report is kept the next time."""
    clock = Clock()
    reports = Reports(db, "s", clock=clock)

    async def busy(work: object) -> None:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    async def run() -> None:
        reports.saw("h", said(4))
        clock.now += 1
        with monkeypatch.context() as patch:
            patch.setattr(db, "awrite", busy)
            await reports.keep_due()
        assert kept_now == []
        await reports.keep_due()

    kept_now = kept(db)
    anyio.run(run)
    assert [entry.payload["done"] for entry in kept(db)] == [4]


def test_reports_change_no_table(db: Database) -> None:
    """They are messages and nothing else: every table is as it was, but for the session's count of messages."""
    from state.log import rebuild, snapshot

    def work(conn: Connection) -> None:
        append(conn, "s", [c.job_reported("s.a.1", "h", done=1, total=None, unit=None, line="")], 1.0)

    before = db.read(snapshot)
    db.write(work)
    after = db.read(snapshot)
    for row in (*before["sessions"], *after["sessions"]):
        row.pop("next_seq")
        row.pop("updated")
    assert before == after
    assert db.write(rebuild) == 2
    assert math.isclose(kept(db)[0].time, 1.0)
    assert kept(db)[0].payload == {"id": "s.a.1", "done": 1}
