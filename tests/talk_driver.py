"""For the crash matrix of the turn: a session that is talked to until its end, in a process that may be killed.

    python tests/talk_driver.py          # then a JSON object a line: env, base_url, err; answers with the exit status

The first life says `start`; each one goes on until the model has said `The end.`. As in `crash_driver.py`, the child
is a real process, and only its imports are shared.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import anthropic  # noqa: F401
import anyio
import anyio.to_thread
from sqlalchemy import select

import tools.local  # noqa: F401
from agent.runner import take_over
from agent.talk import create_chat, open_talk
from state import failpoints
from state.db import Database
from state.models import Session, table
from tests.talking import QUICK, Face, configured_at


def life(base_url: str) -> None:
    """Create the session or take it over, and talk until the end."""
    db = Database.open()
    query = select(table(Session).c.id).where(table(Session).c.kind == "chat")
    known = db.read(lambda conn: list(conn.execute(query).scalars()))
    if known:
        take_over(db, known[0])
    session = known[0] if known else create_chat(db, title="Crash")
    anyio.run(_talk, db, session, base_url)
    db.close()


async def _talk(db: Database, session: str, base_url: str) -> None:
    face, config = Face("yes"), configured_at(base_url)
    async with open_talk(db, session, face, config) as talk:
        face.talk, talk.patience = talk, QUICK
        talk.use_model("scripted")
        before = str(talk.transcript.turns)
        async with anyio.create_task_group() as group:
            group.start_soon(talk.run)
            if not (talk.transcript.turns or talk.transcript.waiting):
                talk.hear("start")
            if "The end." not in before:
                await face.until(lambda: "The end." in face.words(), 40)
            await face.until(lambda: not talk.transcript.unanswered)
            talk.stop()


def child(request: dict[str, Any]) -> None:
    os.environ.update(request["env"])
    failpoints._target = request["env"].get("TURNOUT_FAILPOINT")
    failpoints._trace = request["env"].get("TURNOUT_FAILPOINT_TRACE")
    for number, target in ((0, os.devnull), (1, os.devnull), (2, request["err"])):
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    life(request["base_url"])


def serve() -> None:
    """One life after the other."""
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                child(json.loads(line))
                code = 0
            finally:
                sys.stderr.flush()
                if code:
                    import traceback

                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
