"""Performs what the core decides: commits changes, launches and kills jobs, runs tools, listens to hosts.

    async with open_hosts(specs) as hosts:
        status = await Dispatcher(db, state, hosts, observer).run()

One loop owns the state. Everything else (launching, listening, tools, the operator's answers) runs beside it and only
puts events into its inbox; events that arrive together are stepped and committed together. The order is always: step,
commit, perform. So an intent is stored before its effect, and after a crash `open_effects` brings back what may not
have been done.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio
import structlog
from anyio.abc import TaskGroup
from sqlalchemy import Connection, select

from agent.core import Core, open_effects
from agent.events import Answered, Edit, Event, Go, Op, Pause, Reset, Stop, ToolEnded
from agent.hosts import Hosts
from agent.launcher import CONNECT_PATIENCE_S, Launcher
from agent.load import load, usable_gpus
from agent.payload import snapshot_path
from agent.reports import Reports
from agent.seen import job_seen
from agent.state import SessionState
from agent.templates import render_tree
from state import changes as c
from state import owner
from state.changes import Change
from state.db import Database
from state.errors import HostError, ModelError, StateError, TurnoutError, Unreachable
from state.failpoints import failpoint
from state.log import append_system
from state.models import Lease, table
from tools.base import ONCE, TOOLS, ToolCall
from tools.jobs import ContactEvent, JobState

log = structlog.get_logger(__name__)

FOREIGN_LEASES_EVERY_S = 2.0
STOP_GRACE_S = 5.0
PROBE_AGAIN_S = 5.0
MAX_CONFLICTS = 5
NOT_KNOWN = "the driver died while it ran: it is not known whether it was done"


Think = Callable[[str, str, int], Awaitable[dict[str, Any]]]
"""Does the research of a todo: called with its id, the rendered prompt and the attempt; returns the report."""


class Observer(Protocol):
    """Who wants to see: the live view, plain lines, JSON lines. Called from the loop; must not block."""

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None: ...
    def progressed(self, job: JobState) -> None: ...
    def contact(self, event: ContactEvent) -> None: ...
    def asked(self, todo: str, question: str, default: str) -> None: ...


class _Waiting:
    """Someone who asked for an edit."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.outcomes: list[dict[str, Any]] | None = None


class Dispatcher:
    """Drives one session until it ends, is stopped, or meets an error that only a person can mend."""

    def __init__(
        self,
        db: Database,
        state: SessionState,
        hosts: Hosts,
        observer: Observer,
        *,
        payload: Path | None = None,
        connect_patience_s: float = CONNECT_PATIENCE_S,
        think: Think | None = None,
    ) -> None:
        self.db = db
        self.state = state
        self.core = Core(state)
        self.hosts = hosts
        self.observer = observer
        self._launcher = Launcher(
            hosts, self._saw, self.post, payload=payload, sent_before=state.jobs, patience_s=connect_patience_s
        )
        for loaded in state.settings.get("scopes", {}).values():
            self._bring(loaded.get("payload"))
        self._send, self._receive = anyio.create_memory_object_stream[Event](float("inf"))
        self._listening: set[str] = set()
        self._probed: set[str] = set()
        self._tools: dict[tuple[str, int], anyio.CancelScope] = {}  # by todo and attempt
        self._think = think
        self._edits: dict[str, _Waiting] = {}
        self._closed = False
        self._reports = Reports(db, state.session)
        self._conflicts = 0

    def post(self, event: Event) -> None:
        """Tell the session that something happened; from the event loop's thread. Too late is not wrong."""
        with contextlib.suppress(anyio.ClosedResourceError):
            self._send.send_nowait(event)

    def answer(self, todo: str, answer: str, by: str = "operator", reason: str | None = None) -> None:
        """The operator's answer to a question, or one given in the operator's name."""
        self.post(Answered(todo, answer, by, reason))

    async def edit(
        self, id: str, ops: Sequence[Op], *, actor: str = "operator", answers: tuple[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Change the graph; returns what became of each op, once it is stored. See `agent/core_edit.py`.

        Raises `StateError` when the session is left before: then nothing of it was done.
        """
        waiting = self._edits.setdefault(id, _Waiting())
        if self._closed:
            raise StateError("the session is no longer driven", hint="`turnout resume` goes on with it")
        self.post(Edit(id, tuple(ops), actor, answers))
        await waiting.done.wait()
        if waiting.outcomes is None:
            raise StateError("the session was left before this could be done")
        return waiting.outcomes

    def pause(self, on: bool = True) -> None:
        """Start nothing new until `pause(False)`."""
        self.post(Pause(on))

    def stop(self) -> None:
        """Start nothing more and leave; jobs go on."""
        self.post(Stop())

    def retry_failed(self) -> None:
        """Try again what has failed and was not answered by the graph, and what was cancelled or skipped with it."""
        self.post(Reset(tuple(self.state.unhandled_failures())))

    async def run(self) -> str:
        """Run to the end. Returns the session's status: `completed`, `failed` or `paused`.

        Raises `HostError` when a host of jobs that already run refuses us (they go on there), `StateError` when
        another process took the session over.
        """
        pending = open_effects(self.state)
        for todo in self._not_to_be_repeated():
            self.post(ToolEnded(todo, False, reason=NOT_KNOWN))
        self.post(Go())
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._heartbeat)
                beside.start_soon(self._reports.run)
                async with anyio.create_task_group() as effects:
                    self._perform(effects, beside, pending)
                    await self._loop(effects, beside)
                    # What is on its way may arrive, but not for ever: its intent is stored.
                    effects.cancel_scope.deadline = anyio.current_time() + STOP_GRACE_S
                beside.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._closed = True
            for waiting in self._edits.values():
                waiting.done.set()
            self._send.close()
            self._receive.close()
        return self.state.status

    def _not_to_be_repeated(self) -> list[str]:
        """Tools that were running when the driver died, and that must not run twice."""
        todos = [todo for todo in self.state.tools if self.state.body(todo).get("tool") in ONCE]
        self._tools |= {(todo, self.state.todos[todo].attempts): anyio.CancelScope() for todo in todos}
        return todos

    async def _loop(self, effects: TaskGroup, beside: TaskGroup) -> None:
        while True:
            events = [await self._receive.receive()]
            while self._receive.statistics().current_buffer_used:
                events.append(self._receive.receive_nowait())
            await self._apply(effects, beside, events)
            if self.state.status != "running":
                return

    async def _apply(self, effects: TaskGroup, beside: TaskGroup, events: Sequence[Event]) -> None:
        changes = [change for event in events for change in self.core.step(event)]
        for name in self.state.probes_wanted - self._probed:
            self._probed.add(name)
            effects.start_soon(self._probe, name)
        if not changes:
            self._tell_editors()
            return
        try:
            seqs = await self.db.commit(self.state.session, changes)
        except StateError:
            self._conflicts += 1
            if self._conflicts > MAX_CONFLICTS:
                raise
            await self._reload(effects, beside, events)
            return
        self._conflicts = 0
        self.observer.changed(changes, seqs)
        self._tell_editors()
        self._perform(effects, beside, changes)

    def _tell_editors(self) -> None:
        for id in list(self.core.outcomes):
            outcomes = self.core.outcomes.pop(id)
            if waiting := self._edits.pop(id, None):
                waiting.outcomes = outcomes
                waiting.done.set()

    async def _reload(self, effects: TaskGroup, beside: TaskGroup, events: Sequence[Event]) -> None:
        """A commit was refused, because another session took a GPU first: go on from what is stored, like a resume."""
        log.info("state changed behind us, reading it again", session=self.state.session)
        session = self.state.session
        old = self.state
        self.state = await self.db.aread(lambda conn: load(conn, session, thinks=old.thinks))
        self.state.paused, self.state.max_children = old.paused, old.max_children
        for name, info in old.hosts.items():  # what a probe found of a host that nobody has stored
            if (known := self.state.host(name)).gpus is None:
                known.gpus, known.gpus_unknown = info.gpus, info.gpus_unknown
        self.core = Core(self.state)
        self._perform(effects, beside, open_effects(self.state))
        for event in (*events, Go()):
            self.post(event)

    # Effects

    def _bring(self, payload: Mapping[str, Any] | None) -> None:
        """The payload of a playbook that joined the session is sent to hosts from now on."""
        path = snapshot_path(payload)
        if path is not None:
            self._launcher.add_payload(path)

    def _perform(self, effects: TaskGroup, beside: TaskGroup, changes: Iterable[Change]) -> None:
        """Start the effects that these committed changes call for; launches of one host go together."""
        launches: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        kills: dict[str, list[str]] = defaultdict(list)
        for change in changes:
            p = change.payload
            if change.kind == "job.submitted":
                launches[p["host"]][p["id"]] = p["spec"]
            elif change.kind == "job.cancel" and p["id"] in self.state.jobs:
                kills[self.state.jobs[p["id"]].host].append(p["id"])
            elif change.kind == "todo.status" and p["now"] == "in_progress" and p["id"] in self.state.tools:
                self._start_tool(effects, p["id"], p["attempt"])
            elif change.kind == "todo.status" and p["now"] == "cancelled":
                for scope in (scope for (todo, _), scope in self._tools.items() if todo == p["id"]):
                    scope.cancel()
            elif change.kind == "playbook.loaded":
                self._bring(p.get("payload"))
            elif change.kind == "approval.asked" and p["todo"] in self.state.questions:
                self.observer.asked(p["todo"], p["question"], p["default"])
        for host in {*launches, *kills} - self._listening:
            self._listening.add(host)
            beside.start_soon(self._listen, host)
        for host, jobs in launches.items():
            live = {id: spec for id, spec in jobs.items() if id in self.state.jobs}
            effects.start_soon(self._launcher.launch, host, live)
        for host, ids in kills.items():
            effects.start_soon(self._launcher.kill, host, ids)

    def _start_tool(self, effects: TaskGroup, todo: str, attempt: int) -> None:
        if attempt == self.state.todos[todo].attempts and (todo, attempt) not in self._tools:
            self._tools[todo, attempt] = anyio.CancelScope()
            effects.start_soon(self._run_tool, todo, attempt)

    async def _run_tool(self, todo: str, attempt: int) -> None:
        scope = self._tools[todo, attempt]

        def ended(ok: bool, result: Mapping[str, Any], **more: Any) -> None:
            if not scope.cancel_called:  # else it was given up, and the todo may have been begun anew
                self.post(ToolEnded(todo, ok, result, **more))

        try:
            with scope:
                ended(True, await self._result(todo))
        except TurnoutError as error:
            reason = error.message + (f" ({error.hint})" if error.hint else "")
            ended(False, {}, reason=reason, fallback=isinstance(error, ModelError))
        finally:
            del self._tools[todo, attempt]

    async def _result(self, todo: str) -> dict[str, Any]:
        """What a tool or a subagent answers."""
        info, body, context = self.state.todos[todo], self.state.body(todo), self.state.context(todo)
        if self.state.run_as(todo) == "think":
            assert self._think is not None, "only a session with a model thinks"
            prompt = body["prompt"] if body.get("literal") else render_tree(body["prompt"], context)
            return await self._think(todo, str(prompt), info.attempts)
        args: Mapping[str, Any] = {**render_tree(body.get("args", {}), context), **body.get("plain", {})}
        failpoint("tool.before")
        result = await TOOLS[body["tool"]](ToolCall(self.state.session, todo, args, self.hosts.get))
        failpoint("tool.after")
        return result

    async def _probe(self, name: str) -> None:
        """Find out which GPUs a host has, because a todo wants some and nobody has looked yet."""
        try:
            facts = await TOOLS["probe"](ToolCall(self.state.session, "", {"host": name}, self.hosts.get))
        except Unreachable as error:  # not known is not none: its todos wait, and it is asked again
            log.warning("cannot look for GPUs", host=name, error=error.message)
            await anyio.sleep(PROBE_AGAIN_S)
            self._probed.discard(name)
            self.post(Go())
            return
        except HostError as error:
            log.warning("probe failed", host=name, error=error.message)
            facts = {"gpu_error": error.message}
        else:
            probed = [c.host_probed(name, facts)]
            await self.db.awrite(lambda conn: append_system(conn, probed, time.time()))
        info = self.state.host(name)
        info.gpus = usable_gpus(facts)
        info.gpus_unknown = "" if info.gpus is not None else str(facts.get("gpu_error") or "its answer cannot be read")
        self.state.probes_wanted.discard(name)
        self._probed.discard(name)  # a todo that is tried again later may ask anew
        self.post(Go())

    # Listening

    async def _listen(self, name: str) -> None:
        host = await self.hosts.get(name)
        async for event in host.events():
            if isinstance(event, ContactEvent):
                self.observer.contact(event)
                if event.kind == "connected":
                    self._launcher.reached.add(name)
            elif event.kind in ("progress", "queued"):
                self._reports.saw(name, event.job)
                self.observer.progressed(event.job)
            else:
                if event.job.terminal:
                    await self._reports.end(event.job)
                self._saw(event.job)

    def _saw(self, state: JobState) -> None:
        event, known = job_seen(state), self.state.jobs.get(state.id)
        if event is None or known is None:
            return
        if state.terminal or state.node:
            self.observer.progressed(state)  # its last words, or where Slurm started it
        if state.state == "unknown" and known.state == "submitted":
            return  # the launch that is on its way will tell
        self.post(event)

    async def _heartbeat(self) -> None:
        """Keep the session ours, and look whether other sessions gave GPUs back while somebody waits for some."""
        me = await anyio.to_thread.run_sync(owner.this_process)
        beat = time.monotonic()
        while True:
            await anyio.sleep(FOREIGN_LEASES_EVERY_S)
            if time.monotonic() - beat >= owner.HEARTBEAT_S:
                beat = time.monotonic()
                await self.db.awrite(lambda conn: owner.heartbeat(conn, self.state.session, me, time.time()))
            if any("GPU" in what for _, what in self.state.waiting()):
                self.state.see_leases(await self.db.aread(_leases))
                self.post(Go())


def _leases(conn: Connection) -> list[tuple[str, int, str]]:
    leases = table(Lease)
    return [(r.host, r.gpu, r.job) for r in conn.execute(select(leases.c.host, leases.c.gpu, leases.c.job))]


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show: one that says what to do, rather than the cancellations around it."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [errors]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            leaves.append(error)
    return next((e for e in leaves if isinstance(e, TurnoutError)), leaves[0])
