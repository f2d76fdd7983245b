"""The core where a todo is begun anew while an older attempt at it still ends, and where a job cannot be placed."""

from __future__ import annotations

from typing import Any

import pytest

from agent.events import Cancel, Go, JobSeen, Reset
from tests.test_core import Session, job

SERVICE = {"ready": {"log": "up"}}


def test_a_todo_that_is_begun_anew_waits_for_its_old_job_and_is_not_ended_by_it() -> None:
    """Two attempts at one todo never run at once, and the end of the first is no word about the second."""
    s = Session(job("a"))
    s.step(Go(), Cancel("a"), Reset(("a",)))
    assert (s.launched(), s.status()) == (["s.a.1"], {"a": "pending"})
    s.step(JobSeen("s.a.1", "exited", failure="cancelled", reason="cancelled"))
    assert (s.launched(), s.status()) == (["s.a.1", "s.a.2"], {"a": "in_progress"})
    s.ended("a")
    assert s.status() == {"a": "completed"}


def test_a_service_that_is_begun_anew_is_stopped_first_and_the_session_still_ends() -> None:
    """No service is left behind that nobody counts on any more, and none keeps the session open."""
    s = Session(job("a", SERVICE), job("b"))
    s.step(Go(), JobSeen("s.a.1", "ready"), Reset(("a",)))
    assert [c.payload["id"] for c in s.log if c.kind == "job.cancel"] == ["s.a.1"]
    s.step(JobSeen("s.a.1", "exited", failure="cancelled"), JobSeen("s.a.2", "ready"))
    s.ended("b")
    s.ended("a", failure="cancelled")
    assert (s.state.status, s.state.jobs) == ("completed", {})


@pytest.mark.parametrize("gpus", ["abc", "-1", "1.5", [1], 1.5, True, float("inf")])
def test_gpus_that_are_no_number_fail_their_todo_only(gpus: Any) -> None:
    """A parameter that is no number of GPUs is that todo's failure, with what was seen; the session goes on."""
    s = Session(job("a", {"gpus": "{{ params.g }}"}), job("b"), params={"g": gpus})
    s.step(Go())
    assert s.status() == {"a": "failed", "b": "in_progress"}
    assert "is no number of GPUs" in str(s.state.todos["a"].reason)


@pytest.mark.parametrize("key", ["host", "gpus"])
def test_a_job_whose_place_cannot_be_told_fails_and_does_not_start_elsewhere(key: str) -> None:
    """A missing result in `host` or `gpus` is named; no job is started without the GPUs that it asked for."""
    s = Session(job("a", {key: "{{ todos.nope.x }}"}))
    s.step(Go())
    assert (s.status(), s.launched()) == ({"a": "failed"}, [])
    assert "`todos.nope` is missing" in str(s.state.todos["a"].reason)
