"""Notices: durable rows, told once, and never lost with a turn that came to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from agent.budget import spent_by
from agent.talk import create_chat
from state import changes as c
from state import conversation as talk
from state.db import Database
from state.errors import StateError
from state.log import append, rebuild, snapshot
from state.models import Notice, Usage, table

USAGE = {"input": 100, "output": 10, "cache_read": 5, "cache_write": 1}


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    db = Database.open(str(tmp_path / "turnout.db"))
    yield db, create_chat(db, title="t")
    db.close()


def open_notices(db: Database) -> list[str]:
    rows = table(Notice).c
    return db.read(lambda conn: list(conn.execute(select(rows.id).where(rows.delivered.is_(None))).scalars()))


def raised(id: str) -> Any:
    return talk.notice_raised(id, "todo `a` completed", about={"todo": "a"}, data={"n": 1})


def answered(call: str, cost: float | None = 0.5) -> Any:
    return talk.model_answered(call, model="m", content=[], stop_reason="end_turn", usage=USAGE, cost=cost)


def test_a_notice_is_delivered_once_and_with_the_answer_of_the_turn_that_carried_it(stored: Any) -> None:
    """Delivered twice is refused, and takes the answer of that second turn with it: both or neither."""
    db, session = stored
    db.write(lambda conn: append(conn, session, [raised("n1"), raised("n2")], 1.0))
    db.write(lambda conn: append(conn, session, [answered("c1"), talk.notice_delivered(["n1"], "c1")], 2.0))
    assert open_notices(db) == ["n2"]
    before = db.read(snapshot)
    with pytest.raises(StateError, match="had been delivered before, or was never raised"):
        db.write(lambda conn: append(conn, session, [answered("c2"), talk.notice_delivered(["n1", "n2"], "c2")], 3.0))
    assert db.read(snapshot) == before
    assert open_notices(db) == ["n2"]


def test_a_failed_call_delivers_nothing_and_is_paid_for(stored: Any) -> None:
    """What a broken answer cost is counted; what it would have told is told again."""
    db, session = stored
    failed = talk.model_failed("c1", "cut", "broke off", attempt=1, usage=USAGE, cost=0.25, model="m")
    db.write(lambda conn: append(conn, session, [raised("n1"), failed], 1.0))
    db.write(lambda conn: append(conn, session, [talk.model_failed("c1", "down", "x", attempt=2)], 2.0))
    assert open_notices(db) == ["n1"]
    row = db.read(lambda conn: conn.execute(select(table(Usage))).one())
    assert (row.calls, row.input, row.cost) == (1, 100, 0.25)


def test_usage_is_summed_by_session_and_model_and_with_that_of_subagents(stored: Any) -> None:
    """The account of a session holds its children's; a call without a price is counted and costs nothing known."""
    db, session = stored
    child = f"{session}.look.1"
    created = c.session_created(kind="subagent", title="x", playbook=None, source=None, parent=session, settings={})
    db.write(lambda conn: append(conn, session, [answered("c1"), answered("c2")], 1.0))
    db.write(lambda conn: append(conn, child, [created, answered("c1", cost=None)], 2.0))
    spent = db.read(lambda conn: spent_by(conn, session))
    assert (spent.calls, spent.input, spent.tokens, spent.cost, spent.unpriced) == (3, 300, 348, 1.0, 1)
    own = db.read(lambda conn: spent_by(conn, child))
    assert (own.calls, own.unpriced) == (1, 1)


def test_notices_and_usage_follow_from_the_log(stored: Any) -> None:
    """Thrown away and rebuilt, both tables are what they were."""
    db, session = stored
    changes = [raised("n1"), raised("n2"), answered("c1"), talk.notice_delivered(["n2"], "c1"), answered("c2", None)]
    db.write(lambda conn: append(conn, session, changes, 1.0))
    before = db.read(snapshot)
    db.write(rebuild)
    assert db.read(snapshot) == before
    assert len(before["notices"]) == 2
    assert before["usage"][0]["calls"] == 2
