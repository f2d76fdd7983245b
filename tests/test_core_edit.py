"""Edits of a graph that runs: what is done, what is refused, and what is told about it."""

from __future__ import annotations

from typing import Any

from agent.core import Core
from agent.events import Add, Alter, Answered, Cancel, Edit, Go, JobSeen, Kill, Link, Op, Pause, Reset, ToolEnded
from agent.infos import HostInfo
from agent.joining import edits
from agent.state import SessionState
from state.changes import Change
from state.specs import EdgeSpec, Plan, TodoSpec

JOB = {"host": "h", "run": "true"}


class Session:
    """A session that stays, stepped by hand."""

    def __init__(self, **settings: Any) -> None:
        self.state = SessionState("s", {"params": {}, "stay": True, "told": True, **settings})
        self.state.hosts["h"] = HostInfo("h", max_jobs=2, gpus=[0])
        self.core = Core(self.state)
        self.core.step(Go())
        self._number = 0

    def edit(self, *ops: Op, actor: str = "operator", answers: tuple[str, str] | None = None) -> list[dict[str, Any]]:
        self._number += 1
        self.changes = self.core.step(Edit(f"e{self._number}", ops, actor, answers))
        return self.core.outcomes[f"e{self._number}"]

    def ended(self, todo: str, rc: int = 0, **seen: Any) -> list[Change]:
        job = self.state.live_job(todo)
        assert job is not None
        failure: Any = None if rc == 0 else "failed"
        return self.core.step(JobSeen(job.id, "exited", rc=rc, failure=failure, reason=f"exit code {rc}", **seen))

    def status(self, todo: str) -> str:
        return self.state.graph[todo].status


def job(id: str, **more: Any) -> TodoSpec:
    return TodoSpec(id, id, "job", {**JOB, **more})


def kinds(changes: list[Change]) -> list[str]:
    return [change.kind for change in changes]


def test_a_new_todo_starts_in_the_step_that_adds_it_and_the_answer_is_in_the_same_commit() -> None:
    """The tool's result says how the todo stands, and is stored with what was done."""
    s = Session()
    outcomes = s.edit(Add(job("a")), actor="model", answers=("c1", "job"))
    assert kinds(s.changes) == ["todo.added", "todo.status", "job.submitted", "tool.answered"]
    assert outcomes == [{"op": "add", "id": "a", "status": "in_progress"}]
    assert s.changes[-1].payload["is_error"] is False


def test_a_todo_may_wait_for_what_has_long_ended() -> None:
    """An edge from a completed todo is met at once; one on its failure makes the new todo impossible."""
    s = Session()
    s.edit(Add(job("a")))
    s.ended("a")
    outcomes = s.edit(Add(job("b"), (("a", "success"),)), Add(job("c"), (("a", "failure"),)))
    assert [o["status"] for o in outcomes] == ["in_progress", "skipped"]
    assert outcomes[1]["reason"] == "`a` completed"


def test_each_op_stands_for_itself() -> None:
    """What cannot be done is told with its reason; the rest of the same edit is done."""
    s = Session()
    ops = [Add(job("a")), Add(job("a")), Add(job("b"), (("nobody", "success"),)), Link("a", "a"), Add(job("d"))]
    outcomes = s.edit(*ops, Cancel("nobody"), Kill("d"), Reset(("a",)))
    errors = [outcome.get("error", "") for outcome in outcomes]
    assert "already a todo `a`" in errors[1]
    assert "no todo `nobody`" in errors[2]
    assert "cannot be made to wait" in errors[3] or "wait for each other" in errors[3]
    assert "no todo `nobody`" in errors[5]
    assert "no job that runs" in errors[6]  # it starts when the whole edit is done
    assert "has not ended" in errors[7]
    assert "only what has not begun" in s.edit(Alter("a", title="x"))[0]["error"]
    assert s.status("a") == s.status("d") == "in_progress"
    assert "b" not in s.state.graph


def test_a_model_that_did_nothing_right_gets_an_error() -> None:
    """The result of the call is marked as one only if no op of it was done."""
    s = Session()
    s.edit(Link("x", "y"), actor="model", answers=("c1", "todo"))
    assert s.changes[-1].payload["is_error"] is True


def test_a_waiting_todo_may_be_put_before_others() -> None:
    """A changed priority counts at once, for the very next place that comes free."""
    s = Session()
    s.edit(*(Add(job(id)) for id in "abcd"))
    s.edit(Alter("d", priority="high"))
    s.ended("a")
    assert (s.status("d"), s.status("c")) == ("in_progress", "pending")


def test_an_edge_that_is_added_holds_back_what_was_ready() -> None:
    """A todo that waited for a place on the host now waits for another todo instead."""
    s = Session()
    s.edit(*(Add(job(id)) for id in "abc"))
    s.edit(Link("b", "c"))
    s.ended("a")
    assert s.status("c") == "pending"
    s.ended("b")
    assert s.status("c") == "in_progress"


def test_a_race_over_what_runs_is_decided_by_the_first() -> None:
    """The hedge may be declared while its members are on their way."""
    s = Session()
    s.edit(Add(job("a")), Add(job("b")))
    race = TodoSpec("r", "r", "race", {"losers": "cancel"}, join="any")
    s.edit(Add(race, (("a", "success"), ("b", "success"))))
    s.ended("b", output={"n": 1})
    assert (s.status("r"), s.status("a")) == ("completed", "cancelled")
    assert s.state.todos["r"].result == {"n": 1, "winner": "b"}


def test_the_end_of_a_todo_is_told_and_a_cancelled_one_is_not() -> None:
    """A notice is raised in the very step of the end; what somebody gave up is no news to them."""
    s = Session()
    s.edit(Add(job("a")), Add(job("b")))
    told = [c for c in s.ended("a", rc=3) if c.kind == "notice.raised"]
    assert [c.payload["text"] for c in told] == ["todo `a` (a) failed: exit code 3"]
    assert told[0].payload["about"] == {"todo": "a", "job": "s.a.1"}
    s.edit(Cancel("b"))
    assert "notice.raised" not in kinds(s.changes)


def test_a_free_question_takes_any_answer_and_a_refusal_has_its_reason() -> None:
    """`ask` for words completes with them; a yes-or-no question fails with why."""
    s = Session()
    s.edit(Add(TodoSpec("q", "q", "ask", {"question": "{{ which }}?", "free": True, "literal": True})))
    s.edit(Add(TodoSpec("p", "p", "ask", {"question": "Sure?"})))
    assert s.state.questions["q"] == "{{ which }}?"
    s.core.step(Answered("q", "the second one"))
    s.core.step(Answered("p", "no", reason="too late"))
    assert s.state.todos["q"].result == {"answer": "the second one", "by": "operator"}
    assert s.state.todos["p"].reason == "answered `no` by operator: too late"


def test_a_pause_starts_nothing_and_loses_nothing() -> None:
    """What was added meanwhile starts when it goes on; what ended meanwhile is booked."""
    s = Session()
    s.edit(Add(job("a")))
    s.core.step(Pause())
    s.edit(Add(job("b")))
    s.ended("a")
    assert (s.status("a"), s.status("b")) == ("completed", "pending")
    s.core.step(Pause(False))
    assert s.status("b") == "in_progress"


def test_a_session_that_stays_is_not_over_when_nothing_is_left() -> None:
    """Somebody talks to it; its services run on."""
    s = Session()
    s.edit(Add(job("a", ready={"file": "up"})))
    s.core.step(JobSeen("s.a.1", "ready"))
    assert s.state.status == "running"
    assert s.state.live_job("a") is not None


def test_research_is_a_subagent_s_and_its_fallback_takes_over_for_want_of_a_model() -> None:
    """Started and reported in the same steps as the todo's; without a model at the end, the fallback runs."""
    s = Session()
    s.state.thinks = True
    body = {"prompt": "Why {{ todos }}?", "fallback": {"tool": "evidence", "args": {}}}
    s.edit(Add(TodoSpec("r", "r", "research", body)))
    started = next(c for c in s.changes if c.kind == "child.started")
    assert started.payload["child"] == "s.r.1"
    changes = s.core.step(ToolEnded("r", False, reason="the endpoint is down", fallback=True))
    assert kinds(changes)[:2] == ["child.reported", "todo.status"]
    assert s.status("r") == "in_progress"
    assert s.state.run_as("r") == "tool"


def test_a_playbook_that_joins_twice_has_names_of_its_own() -> None:
    """The second one's ids have a prefix, and its templates see its own results without it."""
    todos = (job("a"), TodoSpec("b", "b", "gate", {"if": "todos.a.n == 2"}))
    plan = Plan("p", "P", {"x": 1}, todos, (EdgeSpec("a", "b"),), "p.yaml")
    s = Session()
    assert [o["id"] for o in s.edit(*edits(s.state, plan, None))] == ["p", "a", "b"]
    assert [o["id"] for o in s.edit(*edits(s.state, plan, None))] == ["p-2", "p-2.a", "p-2.b"]
    s.ended("a", output={"n": 1})
    s.ended("p-2.a", output={"n": 2})
    assert (s.status("b"), s.status("p-2.b")) == ("failed", "completed")
    assert s.state.workdir("a") == "work/s"
    assert s.state.workdir("p-2.a") == "work/s/p-2"
    assert s.state.context("p-2.a")["params"] == {"x": 1}
