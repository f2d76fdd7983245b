"""The core: what follows from an event. No host, no clock, no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.core import Core, open_effects
from agent.events import Answered, Cancel, Event, Go, JobSeen, Reset, Stop, ToolEnded
from agent.infos import HostInfo
from agent.state import SessionState
from state.changes import Change
from state.specs import Retry, TodoSpec

JOB = {"host": "h", "run": "true"}


class Session:
    """A session in memory, stepped by hand."""

    def __init__(self, *todos: TodoSpec, edges: list[tuple[str, str] | tuple[str, str, str]] = (), **settings: Any):  # type: ignore[assignment]
        self.state = SessionState("s", {"params": {}, **settings})
        self.state.hosts["h"] = HostInfo("h", max_jobs=2, gpus=[0, 1])
        for place, spec in enumerate(todos):
            self.state.add(spec, place)
        for edge in edges:
            self.state.graph.link(*edge)  # type: ignore[arg-type]
        self.core = Core(self.state)
        self.log: list[Change] = []

    def step(self, *events: Event) -> list[Change]:
        new = [change for event in events for change in self.core.step(event)]
        self.log += new
        return new

    def ended(self, todo: str, rc: int = 0, **seen: Any) -> list[Change]:
        job = self.state.live_job(todo)
        assert job is not None, todo
        seen = {"failure": None if rc == 0 else "failed", **seen}
        return self.step(JobSeen(job.id, "exited", rc=rc, reason=f"exit code {rc}", **seen))

    def status(self) -> dict[str, str]:
        return {node.id: node.status for node in self.state.graph.nodes.values()}

    def launched(self) -> list[str]:
        return [change.payload["id"] for change in self.log if change.kind == "job.submitted"]


def job(id: str, body: Mapping[str, Any] | None = None, **more: Any) -> TodoSpec:
    return TodoSpec(id, id, "job", {**JOB, **(body or {})}, **more)


def test_a_finished_todo_releases_its_dependents_at_once() -> None:
    """There is no round: the dependent starts in the very step that saw its source end."""
    s = Session(job("a"), job("b"), job("slow"), edges=[("a", "b")])
    s.step(Go())
    assert s.launched() == ["s.a.1", "s.slow.1"]
    kinds = [c.kind for c in s.ended("a")]
    assert kinds == ["job.state", "todo.status", "todo.status", "job.submitted"]
    assert s.status() == {"a": "completed", "b": "in_progress", "slow": "in_progress"}


def test_the_changes_of_one_step_name_their_cause() -> None:
    """What follows from a report points back to the report, so that a reader can ask why."""
    s = Session(job("a"), job("b"), edges=[("a", "b")])
    s.step(Go())
    assert [c.follows for c in s.ended("a")] == [None, 1, 2, 3]


def test_jobs_start_in_order_of_priority_within_the_limit_of_the_host() -> None:
    """Two at a time on this host; the urgent one goes first although it was asked for last."""
    s = Session(job("x"), job("y"), job("urgent", priority="high"))
    s.step(Go())
    assert s.launched() == ["s.urgent.1", "s.x.1"]
    assert s.state.waiting() == [("y", "a place on `h`")]
    s.ended("x")
    assert s.launched()[-1] == "s.y.1"


def test_gpus_are_leased_to_one_job_each_and_a_small_job_does_not_starve_a_large_one() -> None:
    """Nobody shares a card; the job at the head of the queue gets the next cards that come free."""
    s = Session(job("one", {"gpus": 1}), job("both", {"gpus": 2}), job("small", {"gpus": 1}))
    s.step(Go())
    assert s.launched() == ["s.one.1"]
    assert s.state.leases == {("h", 0): "s.one.1"}
    s.ended("one")
    assert s.launched()[-1] == "s.both.1"
    assert set(s.state.leases.values()) == {"s.both.1"}
    assert s.state.jobs["s.both.1"].spec["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    s.ended("both")
    assert s.launched()[-1] == "s.small.1"


def test_more_gpus_than_the_host_has_is_a_clear_failure() -> None:
    """A job that can never run fails with the reason; it does not wait for ever."""
    s = Session(job("big", {"gpus": 9}))
    s.step(Go())
    assert s.status() == {"big": "failed"}
    assert "`9` GPUs are asked for and host `h` has `2`" in (s.state.todos["big"].reason or "")


def test_unknown_gpus_are_looked_up_before_anything_is_decided() -> None:
    """Unknown is not zero: the host is probed first."""
    s = Session(job("a", {"gpus": 1}))
    s.state.hosts["h"].gpus = None
    assert s.step(Go()) == []
    assert s.state.probes_wanted == {"h"}
    s.state.hosts["h"].gpus = [3]
    s.step(Go())
    assert s.state.jobs["s.a.1"].gpus == [3]


def race(losers: str = "cancel") -> Session:
    return Session(
        job("a"),
        job("b"),
        TodoSpec("race", "race", "race", {"losers": losers}, join="any"),
        job("after", {"run": "echo {{ todos.race.winner }} {{ todos.race.n }}"}),
        edges=[("a", "race"), ("b", "race"), ("race", "after")],
    )


def test_the_first_success_wins_a_race_and_the_losers_job_is_killed() -> None:
    """The winner's result is the race's; the loser is cancelled and its job is to be killed."""
    s = race()
    s.step(Go())
    changes = s.ended("a", output={"n": 7})
    assert s.status() == {"a": "completed", "b": "cancelled", "race": "completed", "after": "in_progress"}
    assert [c.payload["id"] for c in changes if c.kind == "job.cancel"] == ["s.b.1"]
    s.step(JobSeen("s.b.1", "exited", signal="SIGTERM", failure="cancelled", reason="SIGTERM (cancelled)"))
    assert s.state.jobs["s.after.1"].spec["run"].endswith("echo a 7")
    s.ended("after")
    assert s.state.status == "completed"


def test_a_race_may_keep_its_losers() -> None:
    """A hedge whose second result is wanted too."""
    s = race("keep")
    s.step(Go())
    s.ended("a", output={"n": 7})
    assert s.status()["b"] == "in_progress"


def test_a_race_without_a_winner_fails_and_says_why() -> None:
    """All members failed: so has the race, and what waits for it is skipped."""
    s = race()
    s.step(Go())
    s.ended("a", rc=1)
    s.ended("b", rc=2)
    assert s.status() == {"a": "failed", "b": "failed", "race": "failed", "after": "skipped"}
    assert s.state.todos["race"].reason == "no member succeeded: `a` failed, `b` failed"
    assert s.state.status == "failed"


def contingency() -> Session:
    return Session(
        job("bench"),
        TodoSpec("worth_it", "worth it?", "gate", {"if": "todos.bench.multiplier >= 1.0"}),
        job("ship"),
        job("look"),
        edges=[("bench", "worth_it"), ("worth_it", "ship"), ("worth_it", "look", "failure")],
    )


def test_a_gate_that_does_not_hold_takes_the_other_branch() -> None:
    """A failure with a failure edge is a decision, not a failed session."""
    s = contingency()
    s.step(Go())
    s.ended("bench", output={"multiplier": 0.66})
    assert s.status() == {"bench": "completed", "worth_it": "failed", "ship": "skipped", "look": "in_progress"}
    assert s.state.todos["ship"].reason == "`worth_it` failed"
    s.ended("look")
    assert s.state.status == "completed"


def test_a_gate_over_a_missing_result_fails_with_the_name_of_what_is_missing() -> None:
    """A bench that wrote no figure is not taken for a bad figure."""
    s = contingency()
    s.step(Go())
    s.ended("bench", output={"rate": 1})
    assert s.status()["worth_it"] == "failed"
    assert "multiplier" in (s.state.todos["worth_it"].reason or "")


def test_a_retry_is_a_new_job_and_only_for_the_failures_it_names() -> None:
    """`retry: {times: 1, on: [lost]}`: a lost job is launched again under a new id, a failed one is not."""
    s = Session(job("a", retry=Retry(1, ("lost",))), job("b", retry=Retry(1, ("lost",))))
    s.step(Go())
    s.step(JobSeen("s.a.1", "lost", failure="lost", reason="lost: reboot"))
    s.ended("b", rc=1)
    assert s.launched() == ["s.a.1", "s.b.1", "s.a.2"]
    assert s.status() == {"a": "in_progress", "b": "failed"}
    s.step(JobSeen("s.a.2", "lost", failure="lost", reason="lost: reboot"))
    assert s.status()["a"] == "failed"


def test_a_report_that_comes_twice_changes_nothing() -> None:
    """After a reconnect the host tells again what it told before."""
    s = Session(job("a"))
    s.step(Go())
    seen = JobSeen("s.a.1", "exited", rc=0)
    assert s.step(JobSeen("s.a.1", "running", started=1.0))
    assert s.step(JobSeen("s.a.1", "running", started=1.0)) == []
    assert s.step(seen)
    assert s.step(seen) == []


def test_stop_starts_nothing_more_and_leaves_jobs_alone() -> None:
    """After Ctrl-C results are still booked, but nothing new begins."""
    s = Session(job("a"), job("b"), edges=[("a", "b")])
    s.step(Go(), Stop())
    assert s.state.status == "paused"
    s.ended("a")
    assert s.status() == {"a": "completed", "b": "pending"}
    assert not [c for c in s.log if c.kind == "job.cancel"]


def test_stop_does_not_pause_what_has_just_ended() -> None:
    """A Ctrl-C that comes together with the last result finds the session completed."""
    s = Session(job("a"))
    s.step(Go())
    s.ended("a")
    s.step(Stop())
    assert s.state.status == "completed"


def test_reset_runs_the_failed_part_again_with_new_jobs() -> None:
    """An operator who mended the host goes on from the failed step; no job id is ever used twice."""
    s = Session(job("a"), job("b"), job("c"), edges=[("a", "b"), ("b", "c")])
    s.step(Go())
    s.ended("a")
    s.ended("b", rc=1)
    assert s.state.status == "failed"
    s.step(Reset(("b",)))
    assert s.status() == {"a": "completed", "b": "in_progress", "c": "pending"}
    assert s.launched()[-1] == "s.b.2"
    s.ended("b")
    s.ended("c")
    assert s.state.status == "completed"


def test_reset_of_a_lost_race_reopens_its_members_first() -> None:
    """Whatever order the failed todos are named in."""
    s = race()
    s.step(Go())
    s.ended("a", rc=1)
    s.ended("b", rc=1)
    s.step(Reset(("race", "a", "b")))
    assert s.status() == {"a": "in_progress", "b": "in_progress", "race": "pending", "after": "pending"}


def service(**body: Any) -> Session:
    return Session(
        job("server", {"ready": {"http": "http://127.0.0.1:30000/health"}, **body}),
        job("bench"),
        edges=[("server", "bench")],
    )


def test_a_service_completes_when_it_is_ready_and_is_stopped_at_the_end() -> None:
    """The server runs beside what uses it; the session ends when it is proved gone."""
    s = service()
    s.step(Go(), JobSeen("s.server.1", "running"), JobSeen("s.server.1", "ready"))
    assert s.status() == {"server": "completed", "bench": "in_progress"}
    s.ended("bench")
    assert s.log[-1].kind == "job.cancel"
    assert s.state.status == "running"
    s.step(JobSeen("s.server.1", "exited", signal="SIGTERM", failure="cancelled"))
    assert s.state.status == "completed"


def test_a_service_that_ends_before_it_is_ready_has_failed() -> None:
    """Exit code 0 is no success for a server."""
    s = service()
    s.step(Go())
    s.ended("server")
    assert s.status() == {"server": "failed", "bench": "skipped"}


def test_a_service_may_be_kept() -> None:
    """The server of a migration outlives the session that started it."""
    s = service(keep=True)
    s.step(Go(), JobSeen("s.server.1", "ready"))
    s.ended("bench")
    assert s.state.status == "completed"
    assert list(s.state.jobs) == ["s.server.1"]


def test_a_stop_todo_waits_for_the_proof() -> None:
    """What comes after `stop` finds the GPUs free."""
    s = service(keep=True)
    s.state.add(TodoSpec("halt", "halt", "stop", {"todo": "server"}), 9)
    s.state.graph.link("bench", "halt")
    s.step(Go(), JobSeen("s.server.1", "ready"))
    s.ended("bench")
    assert s.status()["halt"] == "in_progress"
    s.step(JobSeen("s.server.1", "exited", signal="SIGTERM", failure="cancelled"))
    assert s.status()["halt"] == "completed"


def test_a_question_waits_for_its_answer_and_yes_goes_on() -> None:
    """`ask` holds back what depends on it; no fails it."""
    for answer, then in (("yes", "in_progress"), ("no", "skipped")):
        s = Session(TodoSpec("door", "door", "ask", {"question": "Sure?"}), job("go"), edges=[("door", "go")])
        s.step(Go())
        assert s.status() == {"door": "in_progress", "go": "pending"}
        s.step(Answered("door", answer))
        assert s.status()["go"] == then


def test_yes_answers_in_the_operators_name() -> None:
    """With `--yes` the answer is in the log, and by whom."""
    s = Session(TodoSpec("door", "door", "ask", {"question": "Sure?"}), yes=True)
    s.step(Go())
    assert s.status() == {"door": "completed"}
    assert [c.payload["by"] for c in s.log if c.kind == "approval.answered"] == ["--yes"]


def test_a_tool_returns_a_result_or_a_reason() -> None:
    """A tool's result is seen by templates like a job's."""
    s = Session(
        TodoSpec("look", "look", "tool", {"tool": "probe", "args": {"host": "h"}}),
        job("use", {"run": "echo {{ todos.look.disk }}"}),
        edges=[("look", "use")],
    )
    s.step(Go(), ToolEnded("look", True, {"disk": 5}))
    assert s.state.jobs["s.use.1"].spec["run"].endswith("echo 5")


def test_a_template_that_cannot_be_rendered_fails_its_todo_only() -> None:
    """The session goes on, and the reason names what is missing."""
    s = Session(job("a"), job("b", {"run": "echo {{ todos.nobody.x }}"}))
    s.step(Go())
    assert s.status() == {"a": "in_progress", "b": "failed"}
    assert "nobody" in (s.state.todos["b"].reason or "")


def test_cancel_kills_the_job_and_skips_what_waits() -> None:
    """The operator no longer wants it: so nothing that needs it runs."""
    s = Session(job("a"), job("b"), edges=[("a", "b")])
    s.step(Go(), Cancel("a"))
    assert s.status() == {"a": "cancelled", "b": "skipped"}
    assert [c.payload["id"] for c in s.log if c.kind == "job.cancel"] == ["s.a.1"]


def test_the_open_effects_after_a_crash_are_the_intents_that_may_not_have_been_done() -> None:
    """Launches, kills, tools and questions; nothing that has ended."""
    s = race()
    s.state.add(TodoSpec("look", "look", "tool", {"tool": "probe", "args": {}}), 8)
    s.state.add(TodoSpec("door", "door", "ask", {"question": "Sure?"}), 9)
    s.step(Go())
    s.ended("a", output={"n": 1})
    effects = [(c.kind, c.payload.get("id") or c.payload.get("todo")) for c in open_effects(s.state)]
    assert effects == [
        ("job.submitted", "s.b.1"),
        ("job.cancel", "s.b.1"),
        ("job.submitted", "s.after.1"),
        ("todo.status", "look"),
        ("approval.asked", "door"),
    ]


def test_two_todos_never_share_a_job_id() -> None:
    """Ids that differ only in what a directory's name cannot hold stay apart."""
    s = Session(job("a@b"), job("a_b"))
    s.step(Go())
    assert len(set(s.launched())) == 2


def test_research_without_a_model_runs_its_fallback_and_without_one_says_so() -> None:
    """A playbook with research steps runs in a shell without a key."""
    fallback = {"host": "h", "run": "collect"}
    s = Session(
        TodoSpec("read", "read", "research", {"prompt": "Why?", "fallback": fallback}),
        TodoSpec("think", "think", "research", {"prompt": "Why?", "fallback": None}),
    )
    s.step(Go())
    assert s.status() == {"read": "in_progress", "think": "failed"}
    assert s.state.todos["think"].reason == "no model is configured and the step has no `fallback`"


def test_a_job_runs_in_the_sessions_folder_unless_it_names_its_own() -> None:
    """Steps find each other's files; `cwd` is obeyed."""
    s = Session(job("a"), job("b", {"cwd": "/srv/{{ host }}"}))
    s.step(Go())
    assert 'cd "$TURNOUT_ROOT/work/s"' in s.state.jobs["s.a.1"].spec["run"]
    assert "cd " not in s.state.jobs["s.b.1"].spec["run"]
    assert s.state.jobs["s.b.1"].spec["cwd"] == "/srv/h"
