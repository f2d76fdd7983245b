"""Recorded sessions against today's code: what was recorded is made again to the letter, and a change is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agent import core as core_module
from agent import core_notice, core_start, recording
from agent.abilities import commands
from agent.check import check
from agent.check_edits import Edits
from agent.cli_check import check_
from agent.core import Core
from agent.events import Add, Edit, Event, Go, JobSeen, Stop
from agent.load import creation, load
from agent.state import SessionState
from state import changes as c
from state import conversation as talk
from state import export
from state.db import Database
from state.errors import UsageError
from state.log import append, read
from state.models import Message
from state.specs import EdgeSpec, Plan, Retry, TodoSpec
from tests.cli_helpers import ROOT
from tests.test_log import plans, possible

FAST = (Phase.explicit, Phase.reuse, Phase.generate)
PYTHON3 = "python3"
RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))


def log_of(db: Database, session: str = "s") -> list[Message]:
    return db.read(lambda conn: list(read(conn, session)))


def run_through(plan: Plan, events: Any, **settings_: Any) -> list[Message]:
    """The log of a session that these events happened to. `events` is called with the state and gives the next one."""
    db = Database.open("sqlite://")
    given = {"params": {}, "hosts": {"local": {"gpus": 2, "max_jobs": 3}}, **settings_}
    db.write(lambda conn: append(conn, "s", creation(plan, given), 0.0))
    state = db.read(lambda conn: load(conn, "s"))
    core, clock = Core(state), 1.0
    while (event := events(state)) is not None:
        if event == "resume":
            db.write(lambda conn, clock=clock: append(conn, "s", [c.session_resumed({"pid": 1})], clock))
            state = db.read(lambda conn: load(conn, "s"))
            core = Core(state)
        else:
            changes = core.step(event)
            db.write(lambda conn, changes=changes, clock=clock: append(conn, "s", changes, clock))
        clock += 1
    log = log_of(db)
    db.close()
    return log


def one_by_one(*events: Event | str) -> Any:
    waiting = list(events)
    return lambda state: waiting.pop(0) if waiting else None


@settings(max_examples=60, deadline=None, phases=FAST)
@given(plan=plans(), data=st.data())
def test_any_recorded_run_is_made_again(plan: Plan, data: st.DataObject) -> None:
    """Whatever happened in whatever order, edits and processes that died in between: the code says the same again."""
    left = data.draw(st.integers(1, 25))
    before: list[Event | str] = []

    def events(state: SessionState) -> Event | str | None:
        if len(before) >= left:
            return None
        open_ = state.status == "running" and not isinstance(before[-1] if before else None, Stop)
        taken_over = bool(before) and before[-1] == "resume"
        before.append(data.draw(st.sampled_from([*possible(state), "resume"])) if open_ or taken_over else "resume")
        if isinstance(before[-1], Stop) and state.status != "running":
            before[-1] = Go()  # who is not running cannot be stopped
        return before[-1]

    options = {"told": data.draw(st.booleans()), "stay": data.draw(st.booleans())}
    verdict = check(run_through(plan, events, **options))
    assert verdict.difference is None, "\n".join(verdict.difference.lines())
    assert verdict.notes == []


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_examples_behave_as_they_were_recorded(path: Path) -> None:
    """Each example's recorded session is made again; `turnout replay FILE --accept` follows a change that is meant."""
    for messages in recording.read(path).values():
        verdict = check(messages)
        assert verdict.difference is None, "\n".join(verdict.difference.lines())
        assert verdict.compared
        assert verdict.notes == []


def two_jobs(*events: Event | str, times: int = 1) -> list[Message]:
    """A job that is tried again, and one that waits for it."""
    first = TodoSpec("a", "First", "job", {"host": "h", "run": "{{ python }} -m work"}, retry=Retry(times, ("failed",)))
    second = TodoSpec("b", "Second", "job", {"host": "h", "run": "true"})
    return run_through(Plan("p", "p", {}, (first, second), (EdgeSpec("a", "b"),), "p.yaml"), one_by_one(*events))


STORY = (
    Go(),
    JobSeen("s.a.1", "exited", rc=1, failure="failed", reason="exit code 1", started=1.5),
    JobSeen("s.a.2", "exited", rc=0, output={"n": 1}),
    JobSeen("s.b.1", "exited", rc=0),
)


def test_a_change_of_behaviour_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message that differs is told with both versions and with what led to it."""
    log = two_jobs(*STORY)
    assert check(log).difference is None
    monkeypatch.setattr(core_module.c, "job_cancel", core_module.c.job_cancel)  # the module is shared: only the core
    monkeypatch.setattr(Core, "_fail", lambda self, todo, kind, reason, output: self.end(todo, "failed", reason=reason))
    found = check(log).difference
    assert found is not None
    again = next(m for m in log if m.kind == "todo.status" and m.payload["now"] == "pending")
    assert found.seq == again.seq
    assert found.recorded is not None
    assert found.recorded["payload"]["reason"] == "exit code 1; try 2"
    assert found.today is not None
    assert found.today["payload"]["now"] == "failed"
    assert found.cause.startswith("the host's word about job `s.a.1`")
    assert found.lines()[0] == f"message {again.seq} differs"


def test_what_is_missing_or_added_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is no longer written, and one that is written now, are differences."""
    log = two_jobs(*STORY)
    monkeypatch.setattr(Core, "_maybe_finish", lambda self: None)
    missing = check(log).difference
    assert missing is not None
    assert (missing.seq, missing.today) == (len(log), None)
    monkeypatch.undo()
    added = check(log[:-1]).difference
    assert added is not None
    assert (added.seq, added.recorded) == (len(log), None)


def test_the_python_of_a_host_is_the_recordings() -> None:
    """A command is compared but for the host's Python in it, which is the recording's on whatever machine."""
    log = two_jobs(*STORY)
    for message in log:
        text = json.dumps(message.payload).replace(PYTHON3, "/somewhere/else/python")
        message.payload = json.loads(text)
    assert check(log).difference is None
    job = [m for m in log if m.kind == "job.submitted"][1]
    job.payload["spec"]["run"] = job.payload["spec"]["run"].replace("-m work", "-m other")
    found = check(log).difference
    assert found is not None
    assert found.seq == job.seq


def test_a_log_that_was_cut_is_refused() -> None:
    """A log that does not begin with its session proves nothing."""
    with pytest.raises(UsageError, match="does not begin"):
        check(two_jobs(*STORY)[1:])


def spoken_edit(given: dict[str, Any]) -> list[Message]:
    """A conversation in which the model makes one job."""
    db = Database.open("sqlite://")
    begins = c.session_created(
        kind="chat", title="t", playbook=None, source=None, parent=None, settings={"params": {}, "stay": True}
    )
    use = {"type": "tool_use", "id": "t1", "name": "job", "input": given}
    answer = talk.model_answered("c1", model="m", content=[use], stop_reason="tool_use", usage={}, cost=None)
    db.write(lambda conn: append(conn, "s", [begins, talk.operator_said("go"), answer], 0.0))
    state = db.read(lambda conn: load(conn, "s"))
    edits = Edits(lambda: state)
    ops = edits.ops("job", "t1", given, (Add(TodoSpec("job-7", "", "job")),))
    edits.close()
    assert ops is not None
    changes = Core(state).step(Edit("t1", ops, "model", ("c1", "job")))
    db.write(lambda conn: append(conn, "s", changes, 1.0))
    log = log_of(db)
    db.close()
    return log


def test_a_models_call_goes_through_todays_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded call is made again: a tool that now makes another todo of it, or refuses it, is a difference."""
    log = spoken_edit({"host": "local", "run": "echo one"})
    assert check(log).difference is None
    monkeypatch.setattr(commands, "first_line", lambda command: "another title")
    found = check(log).difference
    assert found is not None
    assert found.today is not None
    assert found.today["payload"]["title"] == "another title"
    monkeypatch.undo()
    log[2].payload["content"][0]["input"] = {"host": "local", "run": "echo one", "unheard": 1}
    refused = check(log).difference
    assert refused is not None
    assert refused.cause == "the model's call `t1` of `job` is refused"


def test_another_prompt_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the planner is told before all else belongs to its requests: a change is named at the first."""
    path = next(path for path in RECORDINGS if path.stem == "pivot-conversation")
    messages = next(iter(recording.read(path).values()))
    monkeypatch.setattr("agent.check_talk.PLANNER", "Be brief.")
    found = check(messages).difference
    assert found is not None
    assert found.seq == next(m.seq for m in messages if m.kind == "model.asked")
    assert "`system_sha`" in found.cause


# Recordings


def written(log: list[Message], path: Path) -> Path:
    path.write_text("".join(export.written("s", log)), encoding="utf-8")
    return path


def test_accepting_without_a_change_changes_nothing(tmp_path: Path) -> None:
    """Rewritten by the code that recorded it, a recording is the same to the byte."""
    for source in RECORDINGS:
        path = tmp_path / source.name
        path.write_bytes(source.read_bytes())
        done = recording.accept(path)
        assert (done.changed, done.open_jobs) == (0, []), source.name
        assert path.read_bytes() == source.read_bytes(), source.name


def test_accepting_follows_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `--accept` the recording checks; what today's code asks that nobody answered is named and stays open."""
    path = written(two_jobs(*STORY), tmp_path / "r.jsonl")
    for module in (core_module, core_start):
        monkeypatch.setattr(
            module, "job_id", lambda session, todo, attempt: f"{session}.{todo}.{attempt + (todo == 'b')}"
        )
    assert check(recording.read(path)["s"]).difference is not None
    done = recording.accept(path)
    assert done.changed
    assert done.open_jobs == ["s.b.2"]
    assert check(recording.read(path)["s"]).difference is None


def test_an_accepted_conversation_speaks_of_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where today's code tells the model less, what requests carried and what was delivered follow, and it checks."""
    source = next(path for path in RECORDINGS if path.stem == "pivot-conversation")
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    monkeypatch.setattr(core_notice, "TOLD_KINDS", core_notice.TOLD_KINDS - {"gate"})
    assert recording.accept(path).changed
    for messages in recording.read(path).values():
        verdict = check(messages)
        assert verdict.difference is None, "\n".join(verdict.difference.lines())
    raised = {m.payload["id"] for m in messages_of(path) if m.kind == "notice.raised"}
    delivered = {id for m in messages_of(path) if m.kind == "notice.delivered" for id in m.payload["ids"]}
    assert delivered <= raised
    assert len(raised) < len([m for m in messages_of(source) if m.kind == "notice.raised"])


def messages_of(path: Path) -> list[Message]:
    return next(iter(recording.read(path).values()))


def test_a_damaged_recording_is_refused(tmp_path: Path) -> None:
    """A recording that is not whole proves nothing, and is not rewritten."""
    path = written(two_jobs(*STORY), tmp_path / "r.jsonl")
    raw = path.read_bytes().replace(b'"exit code 1"', b'"exit code 2"')
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="is damaged"):
        recording.read(path)
    with pytest.raises(UsageError, match="is damaged"):
        recording.accept(path)
    assert path.read_bytes() == raw


def test_a_check_is_the_same_anywhere(tmp_path: Path) -> None:
    """In any time zone, language and folder the verdict is the same text, and nothing is written beside it."""
    told = set()
    for zone, language in (("UTC", "C"), ("Pacific/Kiritimati", "C.UTF-8"), ("America/St_Johns", "POSIX")):
        place = tmp_path / zone.replace("/", "-")
        place.mkdir()
        environment = {**os.environ, "TZ": zone, "LC_ALL": language, "PYTHONPATH": str(ROOT), "HOME": str(place)}
        environment["TURNOUT_DB"] = str(place / "turnout.db")
        command = [sys.executable, "-m", "agent", "replay", "--check", "--json", str(RECORDINGS[0])]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
        told.add(done.stdout)
        assert list(place.iterdir()) == []
    assert len(told) == 1


def test_only_a_file_is_rewritten(tmp_path: Path) -> None:
    """`--accept` on a stored session is refused: its log is what happened."""
    db = Database.open(str(tmp_path / "t.db"))
    with pytest.raises(UsageError, match="a stored session is not rewritten"):
        check_(str(tmp_path / "t.db"), None, accept=True, json=False)
    db.close()


def test_sessions_of_other_programs_have_nothing_to_check(tmp_path: Path) -> None:
    """An imported session was made by no code of ours, and that is said."""
    path = tmp_path / "i.jsonl"
    made = c.session_created(kind="imported", title="t", playbook=None, source=None, parent=None, settings={})
    message = Message(session="s", seq=1, time=0.0, kind=made.kind, actor="operator", payload=dict(made.payload))
    written([message], path)
    with pytest.raises(UsageError, match="recorded by another program"):
        check_(None, str(path), accept=False, json=False)
