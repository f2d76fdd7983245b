"""A run from outside: starting a playbook as a session, resuming a stored one, and leaving either cleanly.

    outcome = start(request, view_factory)     # `turnout run`
    outcome = resume(db, session, ...)         # `turnout resume`

The first Ctrl-C (or SIGTERM) stops dispatching and leaves jobs running; the second leaves at once. Everything that was
committed is found again by `resume`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Connection, select

from agent import playbook
from agent.config import Config, load_config
from agent.dispatcher import Dispatcher, first_error
from agent.host_names import added, check_hosts
from agent.hosts import REQUEST_PATIENCE_S, Hosts, open_hosts, spec_of, stored
from agent.launcher import CONNECT_PATIENCE_S
from agent.load import creation, load, new_id
from agent.payload import snapshot, snapshot_path
from agent.state import SessionState
from agent.thinking import thinker, with_model
from agent.views import View
from state import changes as c
from state import owner
from state.db import Database, state_dir
from state.errors import HostError, NotFound, TurnoutError, UsageError
from state.failpoints import failpoints
from state.log import append
from state.models import Host as HostRow
from state.models import Session, table
from tools import builtin  # noqa: F401 - registers the tools
from tools.base import TOOLS
from tools.ssh import HostSpec

ENDED = {"completed", "failed", "cancelled"}
EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 1, "paused": 3}

ViewFactory = Callable[[SessionState], View]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, in the form of the last line of `--json`."""

    session: str
    status: str
    todos: Mapping[str, Mapping[str, Any]]
    report: str | None
    reason: str | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "status": self.status,
            "reason": self.reason,
            "todos": self.todos,
            "report": self.report,
        }

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.status, 1)


def create(
    db: Database, name: str, sets: Mapping[str, str], *, host: str | None, yes: bool, title: str | None = None
) -> str:
    """Load a playbook and store it as a new session, owned by this process. Returns its id.

    Raises `PlaybookError`, `UsageError`, or `NotFound` for a host that is not there; then nothing was stored.
    """
    plan = playbook.load(playbook.find(name), sets, host=host, tools=TOOLS)
    check_hosts(plan, db.read(added))
    settings: dict[str, Any] = {
        "params": dict(plan.params),
        "playbook": plan.name,
        "yes": yes,
        "hosts": {k: dict(v) for k, v in plan.hosts.items()},
        "report": plan.report,
    }
    if plan.payload is not None:
        settings["payload"] = snapshot(Path(plan.payload), plan.package or plan.name)
    session = new_id()
    changes = creation(plan, settings)

    def store(conn: Connection) -> None:
        append(conn, session, changes, time.time())
        owner.acquire(conn, session, owner.this_process(), time.time())

    failpoints("commit.before", changes)
    db.write(store)
    failpoints("commit.after", changes)
    return session


def latest(db: Database) -> str:
    """The session that `resume` means when none is named: the newest that has not ended."""
    sessions = table(Session)
    query = select(sessions.c.id).where(sessions.c.status.in_(("running", "paused"))).where(sessions.c.kind != "system")
    found = db.read(lambda conn: conn.execute(query.order_by(sessions.c.updated.desc()).limit(1)).scalar_one_or_none())
    if found is None:
        raise NotFound("there is no unfinished session to resume", hint="`turnout sessions` lists all of them")
    return str(found)


def take_over(db: Database, session: str) -> None:
    """Become the session's owner. Raises `SessionBusy` while another process drives it, `NotFound`."""

    def take(conn: Connection) -> None:
        if conn.execute(select(table(Session).c.id).where(table(Session).c.id == session)).one_or_none() is None:
            raise NotFound(f"no session `{session}`", hint="`turnout sessions` lists them")
        me = owner.this_process()
        owner.acquire(conn, session, me, time.time())
        append(conn, session, [c.session_resumed(me)], time.time())

    db.write(take)


def drive(db: Database, session: str, make_view: ViewFactory, *, retry: bool = False) -> Outcome:
    """Run an owned session until it ends or is stopped, show it, and give it back."""
    try:
        config = load_config()
        if config.model is not None:
            with_model()
        return anyio.run(_drive, db, session, make_view, retry, config)
    finally:
        db.write(lambda conn: owner.release(conn, session, owner.this_process()))


async def _drive(db: Database, session: str, make_view: ViewFactory, retry: bool, config: Config) -> Outcome:
    state = await db.aread(lambda conn: load(conn, session, thinks=config.model is not None))
    state.max_children = config.subagents.limit
    specs = await db.aread(lambda conn: host_specs(conn, state.settings))
    view = make_view(state)
    patience = float(os.environ.get("TURNOUT_CONNECT_TIMEOUT") or CONNECT_PATIENCE_S)
    async with (
        open_hosts(specs, patience_s=min(patience, REQUEST_PATIENCE_S)) as hosts,
        thinker(db, session, config, hosts, view) as think,
    ):
        payload = snapshot_path(state.settings.get("payload"))
        dispatcher = Dispatcher(db, state, hosts, view, payload=payload, connect_patience_s=patience, think=think)
        view.answer = dispatcher.answer
        try:
            if state.status not in ENDED or retry:
                await _run(dispatcher, view, retry)
        finally:
            view.close()
        return await _outcome(dispatcher.state, hosts)


async def _run(dispatcher: Dispatcher, view: View, retry: bool) -> None:
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_obey_signals, dispatcher, view)
            if retry:
                dispatcher.retry_failed()
            await dispatcher.run()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors


async def _obey_signals(dispatcher: Dispatcher, view: View) -> None:
    """Once: stop dispatching. Twice: leave at once, which is safe because every intent is stored before its effect."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        asked = False
        async for received in signals:
            if asked:
                view.close()
                os._exit(128 + received)
            asked = True
            dispatcher.stop()


def host_specs(conn: Connection, settings: Mapping[str, Any]) -> dict[str, HostSpec]:
    """How to reach every host known to the operator or brought by the playbook."""
    specs = {row.name: spec_of(row.name, stored(conn, row.name)) for row in conn.execute(select(table(HostRow).c.name))}
    specs["local"] = spec_of("local", None)
    for name, brought in (settings.get("hosts") or {}).items():
        specs[name] = spec_of(name, None, brought)
    return specs


async def _outcome(state: SessionState, hosts: Hosts) -> Outcome:
    todos = {
        id: {"status": state.graph[id].status, "result": info.result, "reason": info.reason}
        for id, info in state.todos.items()
    }
    notes: list[str] = []
    report = None
    if state.status == "completed" and state.settings.get("report"):
        try:
            report = await _fetch_report(state, hosts)
        except TurnoutError as error:
            notes.append(f"the report could not be fetched: {error.message}")
    return Outcome(state.session, state.status, todos, report, state.reason, notes)


async def _fetch_report(state: SessionState, hosts: Hosts) -> str:
    """Copy the report's folder from the host; returns the path of the report here."""
    path = Path(str(state.settings["report"]))
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(f"the report path `{path}` leaves the session's folder", hint="give a path inside it")
    host = await hosts.get(str(state.settings["params"].get("host", "local")))
    root = (await host.hello()).root
    target = state_dir() / "reports" / state.session
    await host.get_tree(f"{root}/work/{state.session}/{path.parent}", target)
    if not (target / path.name).exists():
        raise HostError(f"host `{host.spec.name}` has no `{path}` in the session's folder")
    return str(target / path.name)
