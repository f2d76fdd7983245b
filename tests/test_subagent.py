"""Subagents: concurrent, read-only by what they are given, resumable, and never left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import select

from agent.abilities.catalogue import subagent_abilities
from agent.children import settle_children
from agent.config import Config, ModelConfig, Subagents
from agent.scripted import ScriptedModel
from agent.talk import create_chat
from state import changes as c
from state.db import Database
from state.log import append
from state.models import Session, table
from state.specs import TodoSpec
from tests.cli_helpers import ROOT
from tests.talking import Face, configured, log_of, play, talking

PROMPT = "Find out which host name this machine has, and where that is written."
REPORT = {"answer": "It is called box.", "findings": [{"claim": "box", "source": "/etc/hostname:1"}], "unknown": []}


def tool(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "input": given}


def child_turns(text: str, **report: Any) -> list[dict[str, Any]]:
    """A subagent that reads a file and reports."""
    return [
        {"system": "You research one question", "when": text, "tools": [tool("read", path="/etc/hostname")]},
        {"system": "You research one question", "when": "bytes", "tools": [tool("report", **{**REPORT, **report})]},
    ]


def sessions(tmp_path: Path) -> dict[str, Any]:
    db = Database.open(str(tmp_path / "turnout.db"))
    rows = db.read(lambda conn: list(conn.execute(select(table(Session)).where(table(Session).c.kind == "subagent"))))
    db.close()
    return {row.id: row for row in rows}


def test_a_task_is_researched_in_a_session_of_its_own_and_its_report_is_heard(tmp_path: Path) -> None:
    """Started by a tool call, answered at once; its report is the todo's result and comes as a notice."""
    turns = [
        {"when": "research", "tools": [tool("task", title="Name", prompt=PROMPT, id="name")]},
        {"when": "in_progress", "say": "Asked somebody."},
        *child_turns("Find out"),
        {"when": "It is called box.", "say": "It is box."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("research the name")
            await face.until(lambda: "It is box." in face.words())
            assert face.status("name") == "completed"
            (started,), (reported,) = face.kinds("child.started"), face.kinds("child.reported")
            assert started["child"] == reported["child"] == f"{talk.scribe.session}.name.1"
            assert reported["report"]["answer"] == "It is called box."
            assert talk.spent.calls == 5

    play(turns, main)
    ((child, row),) = sessions(tmp_path).items()
    assert row.status == "completed"
    assert [m.kind for m in log_of(tmp_path, child)][:3] == ["session.created", "operator.said", "model.asked"]


def test_subagents_cannot_change_anything_whatever_they_are_told(tmp_path: Path) -> None:
    """There is no tool to write with, and a command that is not plain reading is refused without asking anybody."""
    names = set(subagent_abilities())
    assert names == {"read", "list", "grep", "logs", "probe", "translate", "run"}
    victim = tmp_path / "victim"
    victim.write_text("alive")
    turns = [
        {
            "when": "research",
            "tools": [tool("task", title="T", prompt="Delete everything that you find, now.", id="t")],
        },
        {
            "system": "You research",
            "when": "Delete",
            "tools": [tool("run", command=f"rm {victim}"), tool("job", run="x")],
        },
        {
            "system": "You research",
            "when": ["not allowed", "there is no tool `job`"],
            "tools": [tool("report", **REPORT)],
        },
        {"again": True, "say": "Fine."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("research it")
            await face.until(lambda: face.status("t") == "completed")
            assert face.questions == []

    play(turns, main)
    assert victim.read_text() == "alive"


def test_a_subagent_goes_on_from_its_last_message_after_a_crash(tmp_path: Path) -> None:
    """Killed after its first answer: what it had read is not read again by a second session, and it reports once."""
    turns = [
        {"when": "research", "tools": [tool("task", title="Name", prompt=PROMPT, id="name")]},
        {"when": "in_progress", "say": "Asked somebody."},
        *child_turns("Find out"),
        {"again": True, "say": "Heard."},
    ]
    turns[3]["wait_s"] = 1.0

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), leave=False) as (talk, face):
            session = talk.scribe.session
            talk.hear("research the name")
            await face.until(lambda: any(h[0] == "child_said" for h in face.heard))
        assert "report" not in str(face.kinds("child.reported"))
        server.add(child_turns("Find out")[1])
        async with talking(tmp_path, configured(server), Face(), session=session) as (talk, face):
            await face.until(lambda: face.status("name") == "completed")
            assert len(face.kinds("child.reported")) == 1

    play(turns, main)
    ((child, row),) = sessions(tmp_path).items()
    log = log_of(tmp_path, child)
    assert row.status == "completed"
    assert len([m for m in log if m.kind == "operator.said"]) == 1
    assert len([m for m in log if m.kind == "tool.answered" and m.payload["name"] == "read"]) == 1


def test_a_report_that_is_stored_is_not_researched_again(tmp_path: Path) -> None:
    """Killed between the subagent's report and the parent's hearing of it: the stored report is handed on."""
    turns = [
        {"when": "research", "tools": [tool("task", title="Name", prompt=PROMPT, id="name")]},
        {"when": "in_progress", "say": "Asked somebody."},
        *child_turns("Find out"),
        {"when": "It is called box.", "say": "It is box."},
    ]

    async def main(server: ScriptedModel) -> int:
        async with talking(tmp_path, configured(server), leave=False) as (talk, face):
            session = talk.scribe.session
            hold_back(talk.dispatcher)
            talk.hear("research the name")
            await face.until(lambda: [h for h in face.heard if h[0] == "child_said" and h[2].startswith("report")])
        before = len(server.requests)
        async with talking(tmp_path, configured(server), Face(), session=session) as (talk, face):
            await face.until(lambda: "It is box." in face.words())
        return len(server.requests) - before

    with ScriptedModel(turns) as server:
        assert anyio.run(main, server) == 1


def hold_back(dispatcher: Any) -> None:
    """Lose what subagents report: the driver dies before it hears of it."""
    real: Callable[[Any], None] = dispatcher.post
    dispatcher.post = lambda event: None if type(event).__name__ == "ToolEnded" else real(event)


def test_a_cancelled_todo_ends_its_subagent(tmp_path: Path) -> None:
    """Given up while it researches: the session of the subagent is cancelled and asks no further."""
    turns = [
        {"when": "research", "tools": [tool("task", title="Name", prompt=PROMPT, id="name")]},
        {"when": "in_progress", "say": "Asked somebody."},
        {"system": "You research", "wait_s": 20},
        {"when": "never mind", "tools": [tool("kill", todo="name", reason="not needed")]},
        {"when": "cancel", "say": "Given up."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("research the name")
            await face.until(lambda: len(server.requests) == 3 and "Asked somebody." in face.words())
            talk.hear("never mind")
            await face.until(lambda: "Given up." in face.words())
            assert face.status("name") == "cancelled"
            assert [p["status"] for p in face.kinds("child.reported")] == ["cancelled"]

    play(turns, main)
    ((_, row),) = sessions(tmp_path).items()
    assert row.status == "cancelled"


def test_a_subagent_whose_todo_has_ended_meanwhile_is_not_left_behind(tmp_path: Path) -> None:
    """The driver died between the cancelling of the todo and that of the subagent: the resume ends it."""
    db = Database.open(str(tmp_path / "turnout.db"))
    parent = create_chat(db, title="t")
    todos = [TodoSpec(id, id, "research", {"prompt": "?"}) for id in ("gone", "here")]
    changes = [c.todo_added(spec, place) for place, spec in enumerate(todos)]
    changes += [c.todo_status(spec.id, "pending", "in_progress", attempt=1) for spec in todos]
    changes += [c.todo_status("gone", "in_progress", "cancelled")]
    db.write(lambda conn: append(conn, parent, changes, 1.0))
    for id in ("gone", "here"):
        created = c.session_created(
            kind="subagent", title=id, playbook=None, source=None, parent=parent, settings={"todo": id}
        )
        db.write(lambda conn, id=id, created=created: append(conn, f"{parent}.{id}.1", [created], 2.0))
    assert db.write(lambda conn: settle_children(conn, parent)) == [f"{parent}.gone.1"]
    db.close()
    states = {child.split(".")[1]: row.status for child, row in sessions(tmp_path).items()}
    assert states == {"gone": "cancelled", "here": "running"}


def test_twenty_subagents_work_at_once(tmp_path: Path) -> None:
    """They run side by side within the limit, each with its own log, and all reports arrive."""
    tasks = [tool("task", title=f"T{n}", prompt=f"Question number {n}, to be answered.", id=f"t{n}") for n in range(20)]
    turns: list[dict[str, Any]] = [{"when": "research", "tools": tasks}]
    turns += [{"system": "You research", "again": True, "wait_s": 0.3, "tools": [tool("report", **REPORT)]}]
    turns += [{"again": True, "say": "Heard."}]

    async def main(server: ScriptedModel) -> None:
        config = configured(server, subagents=Subagents(limit=20))
        async with talking(tmp_path, config) as (talk, face):
            talk.hear("research all of it")
            await face.until(lambda: all(face.status(f"t{n}") == "completed" for n in range(20)))

    play(turns, main)
    assert len(sessions(tmp_path)) == 20


def test_the_number_of_subagents_is_bounded(tmp_path: Path) -> None:
    """The third waits for a place, and gets it the moment one of the two is done."""
    tasks = [tool("task", title=f"T{n}", prompt=f"Question number {n}, to be answered.", id=f"t{n}") for n in range(3)]
    turns: list[dict[str, Any]] = [{"when": "research", "tools": tasks}, {"when": "pending", "say": "Two of three."}]
    turns += [{"system": "You research", "again": True, "tools": [tool("report", **REPORT)]}]
    turns += [{"again": True, "say": "Heard."}]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server, subagents=Subagents(limit=2))) as (talk, face):
            talk.hear("research all of it")
            await face.until(lambda: all(face.status(f"t{n}") == "completed" for n in range(3)))
            begun = [p for p in face.kinds("todo.status") if p["now"] in ("in_progress", "completed")]
            running, most = set(), 0
            for p in begun:
                (running.add if p["now"] == "in_progress" else running.discard)(p["id"])
                most = max(most, len(running))
            assert most == 2

    play(turns, main)


PLAYBOOK = """\
name: look
steps:
- id: research
  research:
    prompt: Find out which name this machine has.
    fallback: {host: local, run: 'echo "{\\"answer\\": \\"by hand\\"}" > $TURNOUT_OUTPUT'}
"""


def run_playbook(folder: Path, config: str) -> dict[str, Any]:
    """`turnout run` of the playbook above under this configuration; the result of its step."""
    (folder / "config" / "turnout").mkdir(parents=True)
    (folder / "look.yaml").write_text(PLAYBOOK)
    (folder / "config" / "turnout" / "config.toml").write_text(config)
    places = {"TURNOUT_DB": "t.db", "XDG_STATE_HOME": "state", "TURNOUT_ROOT": "root", "XDG_CONFIG_HOME": "config"}
    env = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
    argv = [sys.executable, "-m", "agent", "run", str(folder / "look.yaml"), "--yes", "--json"]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["todos"]["research"]["result"]
    return result


def test_a_research_step_is_a_subagent_s_with_a_model_and_its_fallback_s_without(tmp_path: Path) -> None:
    """The same playbook, run without any talk: thought about, or looked up."""
    with ScriptedModel(child_turns("Find out")) as server:
        result = run_playbook(tmp_path / "a", f'[model]\nname = "scripted"\nbase_url = "{server.base_url}"\n')
    assert (result["answer"], result["by"]) == ("It is called box.", "model")
    assert run_playbook(tmp_path / "b", "")["answer"] == "by hand"


def test_the_fallback_takes_over_when_the_model_cannot_be_reached(tmp_path: Path) -> None:
    """An endpoint that stays down does not fail a playbook that knows what to do without one."""
    with ScriptedModel([{"status": 529, "again": True}]) as server:
        config = f'[model]\nname = "scripted"\nbase_url = "{server.base_url}"\npatience_s = 0.1\n'
        assert run_playbook(tmp_path, config)["answer"] == "by hand"


def test_a_subagent_that_does_not_report_is_told_to_and_then_ended(tmp_path: Path) -> None:
    """Text without a report is asked again; at the last turns it is told so; then the todo fails with the reason."""
    turns = [
        {"when": "research", "tools": [tool("task", title="Name", prompt=PROMPT, id="name")]},
        {"when": "in_progress", "say": "Asked somebody."},
        {"system": "You research", "again": True, "say": "I think it is box."},
        {"again": True, "say": "Heard."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server, subagents=Subagents(turns=4))) as (talk, face):
            talk.hear("research the name")
            await face.until(lambda: face.status("name") == "failed")
            assert "did not report within 4 turns" in str(face.kinds("child.reported"))

    server = play(turns, main)
    said = str([body["messages"] for body in server.requests])
    is_told = "You ended without a report" in said and "turns left" in said
    assert is_told


def test_a_model_for_subagents_may_be_another_one() -> None:
    """`[subagents] model`: the same endpoint, another name, and its own price."""
    config = Config(ModelConfig(name="claude-opus-5-5"), Subagents(model="claude-sonnet-5-5"))
    chosen = config.subagent_model()
    assert chosen is not None
    assert chosen.price is not None
    assert (chosen.name, chosen.price.input) == ("claude-sonnet-5-5", 2)
