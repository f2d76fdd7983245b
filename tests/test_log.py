"""The log and the tables: one transaction, equal for ever, and the same state when read back."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from agent.core import Core
from agent.events import (
    Add,
    Alter,
    Answered,
    Cancel,
    Edit,
    Event,
    Go,
    JobSeen,
    Kill,
    Link,
    Load,
    Reset,
    Stop,
    ToolEnded,
)
from agent.load import creation, load
from agent.state import SessionState
from state import changes as c
from state import owner
from state.db import Database
from state.errors import CycleError, GraphError, NotFound, SessionBusy, StateError, UsageError
from state.graph import Graph
from state.log import append, read, rebuild, snapshot
from state.models import Message, Todo, table
from state.specs import EdgeSpec, Plan, Retry, TodoSpec

KINDS = ["job", "job", "job", "service", "gate", "ask", "tool", "race", "stop"]


@pytest.fixture
def db(tmp_path: Path) -> Any:
    database = Database.open(str(tmp_path / "t.db"))
    yield database
    database.close()


def body(kind: str, place: int) -> dict[str, Any]:
    match kind:
        case "job":
            return {"host": "local", "run": "true", "gpus": place % 2}
        case "service":
            return {"host": "local", "run": "serve", "ready": {"file": "up"}}
        case "gate":
            return {"if": f"{place} % 2 == 0"}
        case "ask":
            return {"question": "Sure?"}
        case "tool":
            return {"tool": "probe", "args": {}}
        case "stop":
            return {"todo": "t0"}
        case _:
            return {"losers": "cancel"}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Random small playbooks with every kind of todo and edge."""
    kinds = ["job", *draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9))]
    todos, edges, graph = [], [], Graph()
    for place, kind in enumerate(kinds):
        join = "any" if kind == "race" else draw(st.sampled_from(["all", "any"]))
        retry = Retry(draw(st.integers(0, 2)), ("failed", "lost"))
        real: Any = "job" if kind == "service" else kind
        priority: Any = draw(st.sampled_from(["high", "medium", "low"]))
        spec = TodoSpec(f"t{place}", f"todo {place}", real, body(kind, place), priority, join, retry)  # type: ignore[arg-type]
        todos.append(spec)
        sources = draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set()
        for source in sources:
            on: Any = "success" if kind == "race" else draw(st.sampled_from(["success", "failure", "finish"]))
            edges.append(EdgeSpec(f"t{source}", f"t{place}", on))
    del graph
    return Plan("random", "random", {}, tuple(todos), tuple(edges), "random.yaml")


def possible(state: SessionState) -> list[Event]:
    """What could happen next in this state."""
    events: list[Event] = [Go(), Stop()]
    for job in state.jobs.values():
        events += [
            JobSeen(job.id, "running", started=1.0),
            JobSeen(job.id, "ready", output={"n": 1}),
            JobSeen(job.id, "exited", rc=0, output={"n": 2}),
            JobSeen(job.id, "exited", rc=1, failure="failed", reason="exit code 1"),
            JobSeen(job.id, "lost", failure="lost", reason="reboot"),
            JobSeen(job.id, "refused", failure="host", reason="no Python"),
        ]
    events += [ToolEnded(todo, ok) for todo in sorted(state.tools) for ok in (True, False)]
    events += [Answered(todo, answer) for todo in state.questions for answer in ("yes", "no")]
    events += [Cancel(todo) for todo in state.todos]
    events += [Reset(tuple(state.unhandled_failures()))]
    events += [edit for n in range(3) for edit in edits(state, n)]
    return events


def edits(state: SessionState, n: int) -> list[Edit]:
    """What a model may do to a graph that runs: sensible or not."""
    known = list(state.todos)
    first, last, number = known[n % len(known)], known[-1 - n % len(known)], len(known)
    kind = ["job", "gate", "race"][n]
    spec = TodoSpec(f"t{number}", f"todo {number}", kind, body(kind, n), join="any" if kind == "race" else "all")  # type: ignore[arg-type]
    playbook = Load(f"p{number}", "p", "p.", {"x": n}, hosts={"more": {"gpus": 1}})
    ops = [
        (Add(spec, ((first, "finish"), (last, "success" if kind == "race" else "failure"))),),
        (Link(last, first, "finish"), Link(first, last)),
        (Alter(last, "other", "low", {"gpus": 0, "run": "false", "if": "1 == 1"}), Kill(first)),
        (Cancel(first), Reset((last,)), playbook),
    ]
    return [Edit(f"e{n}{i}", op, "model", ("c1", "todo") if i % 2 else None) for i, op in enumerate(ops)]


def test_a_gpu_that_changed_hands_while_the_clock_jumped_is_rebuilt(db: Database) -> None:
    """The clock does not say who held a GPU first: the log is rebuilt, whichever way the clock was set meanwhile."""
    todo = TodoSpec("t", "T", "job", {"host": "gpu1", "run": "true", "gpus": 1})
    # `b` took the card from `a` after the clock had been set back, `c` from `b` after it had been set forward
    for session, took, freed in (("a", 1000.0, 1010.0), ("b", 500.0, 2000.0), ("c", 1500.0, None)):
        plan = Plan("p", "P", {}, (todo,), (), "p.yaml")
        db.write(lambda conn, s=session, p=plan: append(conn, s, creation(p, {}), 1.0))
        job = f"{session}.t.1"
        lease = c.job_submitted(job, todo="t", attempt=1, host="gpu1", spec={}, gpus=[0])
        db.write(lambda conn, s=session, lease=lease, at=took: append(conn, s, [lease], at))
        if freed:
            end = c.job_state(job, "gpu1", "exited", rc=0)
            db.write(lambda conn, s=session, end=end, at=freed: append(conn, s, [end], at))
    before = db.read(snapshot)
    assert [lease["job"] for lease in before["leases"]] == ["c.t.1"]
    db.write(rebuild)
    assert db.read(snapshot) == before


@settings(max_examples=60, deadline=None)
@given(plan=plans(), data=st.data())
def test_any_run_leaves_tables_that_equal_the_graph_and_the_log(plan: Plan, data: st.DataObject) -> None:
    """Whatever happens in whatever order: tables, graph, a rebuild from the log and a reload all agree."""
    db = Database.open("sqlite://")  # in memory, one connection: a fresh schema for each example
    settings_: dict[str, Any] = {"params": {}, "hosts": {"local": {"gpus": 2, "max_jobs": 3}}}
    settings_ |= {"told": data.draw(st.booleans()), "stay": data.draw(st.booleans())}
    db.write(lambda conn: append(conn, "s", creation(plan, settings_), 0.0))
    state = db.read(lambda conn: load(conn, "s"))
    clock = 1.0
    for _ in range(data.draw(st.integers(1, 25))):
        event = data.draw(st.sampled_from(possible(state)))
        changes = Core(state).step(event)
        db.write(lambda conn, changes=changes, clock=clock: append(conn, "s", changes, clock))
        clock += data.draw(st.sampled_from([1.0, 1.0, -5.0]))  # somebody may set the clock back
        agree(db, state)
    before = db.read(snapshot)
    db.write(rebuild)
    assert db.read(snapshot) == before
    db.close()


def agree(db: Database, state: SessionState) -> None:
    again = db.read(lambda conn: load(conn, "s"))
    rows = db.read(lambda conn: list(conn.execute(select(table(Todo)))))
    for row in rows:
        node, info = state.graph[row.id], state.todos[row.id]
        assert (row.status, row.open, row.met, row.dead) == (node.status, node.open, node.met, node.dead), row.id
        assert (row.attempts, row.attempts_before, row.result) == (info.attempts, info.attempts_before, info.result)
    assert again.jobs == state.jobs
    assert again.questions == state.questions
    assert again.tools == state.tools
    assert again.leases == state.leases
    assert again.results == state.results
    assert (again.notices, again.settings) == (state.notices, state.settings)
    assert (again.open_todos, again.status) == (state.open_todos, state.status)
    assert {k: sorted(v) for k, v in again.stops.items()} == {k: sorted(v) for k, v in state.stops.items() if v}


def two_jobs(db: Database) -> None:
    todos = (TodoSpec("a", "A", "job", {"host": "local", "run": "true"}), TodoSpec("b", "B", "job", {}))
    plan = Plan("p", "P", {}, todos, (EdgeSpec("a", "b"),), "p.yaml")
    db.write(lambda conn: append(conn, "s", creation(plan, {"params": {}}), 1.0))


def test_messages_are_numbered_from_one_without_gaps(db: Database) -> None:
    """Message 3074 is the 3074th thing that happened."""
    two_jobs(db)
    db.write(lambda conn: append(conn, "s", [c.session_status("paused")], 2.0))
    messages = db.read(lambda conn: list(read(conn, "s")))
    assert [m.seq for m in messages] == [1, 2, 3, 4, 5]
    assert [m.kind for m in messages[:2]] == ["session.created", "todo.added"]


def test_a_refused_change_leaves_neither_message_nor_row(db: Database) -> None:
    """A fact is in the log and in the tables, or in neither."""
    two_jobs(db)
    before = db.read(snapshot)
    wrong = [c.todo_status("a", "pending", "in_progress"), c.todo_status("a", "pending", "in_progress")]
    with pytest.raises(StateError, match="was not `pending`"):
        db.write(lambda conn: append(conn, "s", wrong, 2.0))
    assert db.read(snapshot) == before
    assert len(db.read(lambda conn: list(read(conn, "s")))) == 4


def test_commits_that_wait_together_share_a_transaction_and_one_bad_one_fails_alone(db: Database) -> None:
    """Group commit is only a matter of speed: every commit still succeeds or fails by itself."""
    two_jobs(db)

    async def main() -> list[Any]:
        outcomes: list[Any] = [None] * 20

        async def one(place: int) -> None:
            session = "nobody" if place == 7 else "s"
            try:
                outcomes[place] = await db.commit(session, [c.session_status("running", str(place))])
            except NotFound as error:
                outcomes[place] = error

        async with anyio.create_task_group() as group:
            for place in range(20):
                group.start_soon(one, place)
        return outcomes

    outcomes = anyio.run(main)
    assert isinstance(outcomes[7], NotFound)
    seqs = sorted(seq for place, outcome in enumerate(outcomes) if place != 7 for seq in outcome)
    assert seqs == list(range(5, 24))


def test_two_writers_wait_for_each_other(tmp_path: Path) -> None:
    """A second process's write waits its turn; neither sees `database is locked`."""
    path = str(tmp_path / "t.db")
    one, two = Database.open(path), Database.open(path)
    two_jobs(one)
    errors: list[Exception] = []

    def hammer(db: Database) -> None:
        try:
            for _ in range(50):
                db.write(lambda conn: append(conn, "s", [c.session_status("running")], 2.0))
        except StateError as error:
            errors.append(error)

    threads = [threading.Thread(target=hammer, args=(db,)) for db in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    count = one.read(lambda conn: len(conn.execute(select(table(Message).c.seq)).all()))
    assert count == 4 + 100
    one.close()
    two.close()


def test_the_database_is_for_its_owner_only(db: Database) -> None:
    """What hosts and models said is nobody else's to read."""
    path = Path(db.url)
    two_jobs(db)
    for file in (path, path.with_name("t.db-wal")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_unusable_path_is_said_with_a_remedy(tmp_path: Path) -> None:
    """No traceback for a typing error."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot create the database") as raised:
        Database.open(str(tmp_path / "file" / "t.db"))
    assert "--db" in (raised.value.hint or "")
    (tmp_path / "junk.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(UsageError, match="not a database"):
        Database.open(str(tmp_path / "junk.db"))


def test_a_plan_with_a_cycle_is_not_stored() -> None:
    """The cycle is found before anything is written."""
    todos = (TodoSpec("a", "A", "job"), TodoSpec("b", "B", "job"))
    plan = Plan("p", "P", {}, todos, (EdgeSpec("a", "b"), EdgeSpec("b", "a")), "p.yaml")
    with pytest.raises(CycleError):
        creation(plan, {})
    with pytest.raises(GraphError, match="already a todo"):
        creation(Plan("p", "P", {}, (todos[0], todos[0]), (), "p.yaml"), {})


def test_a_session_has_one_owner_until_that_process_is_gone(db: Database) -> None:
    """The second driver is told who owns the session; a dead owner on this machine does not have to be waited for."""
    two_jobs(db)
    me = owner.this_process()
    other = {**me, "pid": 1, "ticks": owner._start_ticks(1)}
    now = time.time()
    db.write(lambda conn: owner.acquire(conn, "s", other, now))
    with pytest.raises(SessionBusy, match="driven by process 1 "):
        db.write(lambda conn: owner.acquire(conn, "s", me, now))
    for gone in ({**other, "ticks": 1}, {**other, "boot": "another boot"}, {**other, "pid": 2**22 + 1}):
        db.write(lambda conn, gone=gone: owner.release(conn, "s", other) or owner.acquire(conn, "s", gone, now))
        assert db.write(lambda conn: owner.acquire(conn, "s", me, now)) == gone
        db.write(lambda conn: owner.release(conn, "s", me))
        db.write(lambda conn: owner.acquire(conn, "s", other, now))


def test_an_owner_elsewhere_is_waited_for_and_then_taken_over(db: Database) -> None:
    """On another machine only the heartbeat can tell; the old owner finds out at its next one."""
    two_jobs(db)
    me, other = owner.this_process(), {**owner.this_process(), "machine": "elsewhere"}
    db.write(lambda conn: owner.acquire(conn, "s", other, 1000.0))
    with pytest.raises(SessionBusy, match="`elsewhere`"):
        db.write(lambda conn: owner.acquire(conn, "s", me, 1000.0 + owner.TTL_S - 1))
    db.write(lambda conn: owner.acquire(conn, "s", me, 1000.0 + owner.TTL_S + 1))
    with pytest.raises(SessionBusy, match="taken over"):
        db.write(lambda conn: owner.heartbeat(conn, "s", other, 1100.0))


def test_a_schema_of_the_future_is_refused(tmp_path: Path) -> None:
    """An old Turnout does not write into a database it does not understand."""
    path = str(tmp_path / "t.db")
    db = Database.open(path)
    db.write(lambda conn: conn.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    db.close()
    with pytest.raises(StateError, match="`9999`"):
        Database.open(path)
