"""What the agent costs beside the model: how soon a notice is asked about, twenty subagents at once, a long resume.

    python -m benchmarks.agent [--rounds 20]

The model is the scripted one (`agent/scripted.py`): real HTTP and real streaming on the loopback, in threads of this
process. `notice` is the time from the end of a job, by the clock of the host that ran it (this machine), to the arrival
of the model request that carries its notice, while the planner is idle. `subagents` lets twenty of them work for three
turns of a second each. `resume` opens a conversation of 20,000 messages: from the closed file to a built request.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from sqlalchemy import select

from agent.config import Config, ModelConfig, Subagents
from agent.events import Add
from agent.scripted import ScriptedModel
from agent.talk import create_chat, open_talk
from benchmarks.common import Aim, idle, median, save, wait_until_quiet, workplace
from state import conversation as talk
from state.changes import Change
from state.db import Database
from state.log import append
from state.models import Session, table
from state.specs import TodoSpec
from tests.talking import Face

CHILDREN = 20
TURN_S = 1.0
MESSAGES = 20_000
SUMMARY_EVERY = 400
"""Turns between two summaries: at about 300 tokens a turn, those that a window of 200,000 holds at its four fifths."""


def config(server: ScriptedModel) -> Config:
    return Config(ModelConfig(name="scripted", base_url=server.base_url), Subagents(limit=CHILDREN))


async def notices(db: Database, server: ScriptedModel, rounds: int) -> list[float]:
    """Milliseconds from the end of a job to the request that tells of it, a round each."""
    session = await to_thread.run_sync(lambda: create_chat(db, title="Notices"))
    face, found = Face(), []
    offset = time.time() - time.monotonic()
    async with open_talk(db, session, face, config(server)) as going, anyio.create_task_group() as group:
        face.talk = going
        group.start_soon(going.run)
        for number in range(rounds):
            before = len(server.requests)
            body = {"host": "local", "run": "sleep 0.3", "by": "bench"}
            await going.edit([Add(TodoSpec(f"job{number}", "A job", "job", body))])
            await face.until(lambda number=number: len(face.words()) == number + 1)  # type: ignore[misc]
            ended = next(p["ended"] for p in reversed(face.kinds("job.state")) if p["state"] == "exited")
            found.append(round((server.arrivals[before] + offset - ended) * 1000, 2))
        going.stop()
    return found


async def children(db: Database, server: ScriptedModel) -> dict[str, float]:
    """Twenty subagents from the first start to the last report, against the slowest of them."""
    session = await to_thread.run_sync(lambda: create_chat(db, title="Children"))
    face = Face()
    specs = [
        TodoSpec(f"t{n}", f"Question {n}", "research", {"prompt": f"Question {n}?", "literal": True, "fallback": None})
        for n in range(CHILDREN)
    ]
    async with open_talk(db, session, face, config(server)) as going, anyio.create_task_group() as group:
        face.talk = going
        group.start_soon(going.run)
        going.pause()  # the planner is not to speak meanwhile; it is the subagents that are measured
        await going.edit([Add(spec) for spec in specs])
        going.planner.pause(True)
        going.dispatcher.pause(False)
        began, processor = time.perf_counter(), time.process_time()
        await face.until(lambda: all(face.status(spec.id) == "completed" for spec in specs), 300)
        wall, used = time.perf_counter() - began, time.process_time() - processor
        going.stop()
    sessions = table(Session).c
    query = select(sessions.created, sessions.updated).where(sessions.parent == session)
    spans = await db.aread(lambda conn: [row.updated - row.created for row in conn.execute(query)])
    return {"wall_s": round(wall, 3), "slowest_s": round(max(spans), 3), "cpu_s": round(used, 3)}


def conversation(number: int) -> list[Change]:
    """A long conversation: words, calls, tool results, and the summaries that its length calls for."""
    changes: list[Change] = []
    usage = {"input": 1000, "output": 50, "cache_read": 0, "cache_write": 0}
    for turn in range(number // 5):
        call = f"c{turn + 1}"
        request = {"through": len(changes) + 2, "notices": [], "messages": turn, "system_sha": "x", "tools_sha": "y"}
        use = {"type": "tool_use", "id": f"toolu_{turn}", "name": "read", "input": {"path": "/etc/hosts"}}
        said = {"type": "text", "text": "I look at the file and say what is in it. " * 4}
        changes += [
            talk.operator_said(f"word {turn} of the operator, who has something to say " * 3),
            talk.model_asked(call, model="m", purpose="turn", request=request),
            talk.model_answered(call, model="m", content=[said, use], stop_reason="tool_use", usage=usage, cost=0.01),
            talk.tool_answered(call, f"toolu_{turn}", "read", "127.0.0.1 localhost\n" * 40),
            talk.notice_raised(f"n{turn}", "todo ended", about={"todo": "x"}),
        ]
        if turn % SUMMARY_EVERY == SUMMARY_EVERY - 1:
            changes.append(talk.conversation_compacted("What was wanted, found and decided. " * 100, len(changes) + 1))
    return changes


def stored_conversation(path: Path) -> str:
    db = Database.open(str(path))
    session = create_chat(db, title="Long")
    changes = conversation(MESSAGES - 1)
    # Notices of old turns were delivered by later answers; here all at once.
    delivered = talk.notice_delivered([c.payload["id"] for c in changes if c.kind == "notice.raised"], "c1")
    db.write(lambda conn: append(conn, session, [*changes, delivered], time.time()))
    db.close()
    return session


async def resume(path: Path, session: str, server: ScriptedModel) -> float:
    """Seconds from the file to a built request."""
    began = time.perf_counter()
    db = await to_thread.run_sync(Database.open, str(path))
    try:
        async with open_talk(db, session, Face(), config(server)) as going:
            assert going.planner.speaker is not None
            going.planner.speaker.request(time.time())
            return round(time.perf_counter() - began, 3)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(db.close)


def turns() -> Sequence[Mapping[str, Any]]:
    report = {"answer": "Nothing.", "findings": [], "unknown": []}
    child = {"system": "You research one question", "again": True, "wait_s": TURN_S}
    return [
        {**child, "when": "bytes", "tools": [{"name": "report", "input": report}]},
        {**child, "when": "-rw", "tools": [{"name": "read", "input": {"path": "/etc/hostname"}}]},
        {**child, "tools": [{"name": "list", "input": {"path": "/etc"}}]},
        {"again": True, "say": "Heard."},
    ]


def main() -> None:
    """Measure, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    with workplace() as folder:
        os.environ |= {"XDG_STATE_HOME": str(folder / "state"), "TURNOUT_ROOT": str(folder / "root")}
        session = stored_conversation(folder / "long.db")
        wait_until_quiet(options.patience)
        quiet = [idle()]
        db = Database.open(str(folder / "turnout.db"))
        with ScriptedModel(turns()) as server:
            latencies = anyio.run(notices, db, server, options.rounds)
            quiet.append(idle())
            together = [anyio.run(children, db, server) for _ in range(3)]
            quiet.append(idle())
            resumes = [anyio.run(resume, folder / "long.db", session, server) for _ in range(5)]
        db.close()
        ratios = [run["wall_s"] / run["slowest_s"] for run in together]
        aims = [
            Aim("notice to model request, median", median(latencies), "<", 100, "ms"),
            Aim("20 subagents against the slowest", median(ratios), "<", 1.2, "times"),
            Aim("resume of 20,000 messages", median(resumes), "<", 1, "s"),
        ]
        figures = {
            "notice_ms": median(latencies),
            "notice_ms_worst": max(latencies),
            "subagents_wall_s": median([run["wall_s"] for run in together]),
            "subagents_slowest_s": median([run["slowest_s"] for run in together]),
            "subagents_driver_cpu_s": median([run["cpu_s"] for run in together]),
            "resume_s": median(resumes),
        }
        raw = {"notices_ms": latencies, "subagents": together, "resumes_s": resumes, "idle_before_and_after": quiet}
        save("agent", folder, aims, figures, **raw)


if __name__ == "__main__":
    main()
