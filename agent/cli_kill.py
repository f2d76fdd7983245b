"""`turnout kill`: ends one job on its host, with proof.

The intent is in the session's log before the host is told. What the end means for the todo is the business of the
process that drives the session, now or after `turnout resume`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio

from agent.cli_frame import confirm, say
from agent.host_actions import spec_for
from agent.look import find_job, session_state
from state import changes as c
from state.db import Database
from state.errors import JobError
from state.log import append
from state.models import Session, table
from state.owner import owner_of
from state.projection import JOB_ENDED
from tools.jobs import JobState, describe_end
from tools.ssh import Host


def kill(db: Database, name: str, session: str | None, *, grace_s: float | None, yes: bool) -> int:
    """Ask, kill, and say what is left. Raises `JobError` when something of the job would not die."""
    job = db.read(lambda conn: find_job(conn, name, session))
    if job["state"] in JOB_ENDED:
        say(f"nothing to do: job {job['id']} has ended ({job['reason'] or job['state']})")
        return 0
    wait = job["spec"].get("grace_s", 10.0) if grace_s is None else grace_s
    question = (
        f"End job {job['id']} on host `{job['host']}` (todo `{job['todo']}` of session {job['session']})? "
        f"All its processes get TERM, and KILL after {wait:g} s."
    )
    if not confirm(question, yes=yes):
        say("left alone")
        return 1
    cancel = c.job_cancel(job["id"], "killed by the operator", actor="operator")
    db.write(lambda conn: append(conn, job["session"], [cancel], time.time()))
    spec = db.read(lambda conn: spec_for(conn, job["host"], job["session"]))

    async def end() -> JobState:
        async with Host(spec) as host:
            return (await host.kill([job["id"]], grace_s))[0]

    state = anyio.run(end)
    _tell(db, job, state)
    return 0


def _tell(db: Database, job: Mapping[str, Any], state: JobState) -> None:
    if state.leftovers or not state.terminal:
        pids = ", ".join(map(str, state.leftovers))
        left = f"; left are the processes {pids}" if pids else ""
        hint = "a process in uninterruptible sleep waits for the driver or a disk: look at `dmesg` on the host"
        if state.node and not pids:
            hint = f"Slurm could not end it either: `scontrol show node {state.node}` says what became of its node"
        raise JobError(f"job `{job['id']}` on `{job['host']}` did not end: {describe_end(state)}{left}", hint=hint)
    say(f"{job['id']}: {describe_end(state)}; no process of it is left")
    if state.removed:
        say(f"removed its shared memory: {', '.join(state.removed)}")
    status, owner = db.read(lambda conn: (_status(conn, job["session"]), owner_of(conn, job["session"], time.time())))
    if session_state(status, owner) in ("interrupted", "paused"):
        say(f"its session does not run: `turnout resume {job['session']}` books this and goes on")


def _status(conn: Any, session: str) -> str:
    sessions = table(Session)
    return str(conn.execute(sessions.select().where(sessions.c.id == session)).mappings().one()["status"])
