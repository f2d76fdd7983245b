"""A session that is talked to: dispatcher, planner and subagents of one session, driven together.

    session = create_chat(db, title="...")
    async with open_talk(db, session, face, config) as talk:
        status = await talk.run()              # until `talk.stop()`; jobs go on

The face is a dispatcher's `Observer`, with any of the further methods that docs/agent.md lists. This module only puts
the parts together; what is said on the way in and out is the face's.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio import to_thread
from sqlalchemy import Connection, select

from agent.abilities.base import Ability
from agent.abilities.catalogue import planner_abilities
from agent.abilities.mcp import open_servers
from agent.budget import Ledger, Spent, spent_by
from agent.children import settle_children
from agent.config import Config, ModelConfig
from agent.desk import PlannerDesk
from agent.dispatcher import Dispatcher, Observer, first_error
from agent.events import Op
from agent.hosts import Hosts, open_hosts
from agent.joining import joining
from agent.launcher import CONNECT_PATIENCE_S
from agent.load import load, new_id
from agent.model import Model
from agent.model_calls import Caller, Limiter, Patience
from agent.payload import snapshot_path
from agent.planner import Planner
from agent.planner_brief import brief
from agent.planner_prompt import PLANNER
from agent.runner import host_specs
from agent.scribe import Scribe
from agent.speaker import Speaker
from agent.state import SessionState
from agent.subagent import Subagents
from agent.tell import Tell
from agent.transcript import Block
from agent.transcript_load import read_transcript
from state import changes as c
from state import owner
from state.changes import Change
from state.db import Database
from state.errors import ModelError, UsageError
from state.log import append
from state.models import Session, Todo, table
from tools.jobs import ContactEvent, JobState
from tools.permissions import Policy, default_policy


def create_chat(db: Database, *, title: str, yes: bool = False) -> str:
    """Store a new session to talk in, owned by this process. Returns its id. Blocks."""
    session = new_id()
    settings = {"stay": True, "told": True, "params": {}, "hosts": {}, "yes": yes, "playbook": None}
    created = c.session_created(kind="chat", title=title, playbook=None, source=None, parent=None, settings=settings)

    def store(conn: Connection) -> None:
        append(conn, session, [created], time.time())
        owner.acquire(conn, session, owner.this_process(), time.time())

    db.write(store)
    return session


class Talk:
    """See the module's text. Made by `open_talk`; all methods but `run` return at once and belong on the event loop."""

    def __init__(
        self,
        db: Database,
        session: str,
        face: Observer,
        config: Config,
        stored: _Stored,
        hosts: Hosts,
        policy: Policy,
        mcp: Mapping[str, Ability],
    ) -> None:
        self.config = config
        self.hosts = hosts
        self.face = face
        self.tell = Tell(face)
        self.transcript = stored.transcript
        self.scribe = Scribe(db, session)
        self.scribe.listen(self.transcript.take_all)
        self.scribe.listen(face.changed)
        self.limiter = Limiter()
        self.ledger = Ledger(config.budget, stored.created, stored.spent)
        self.policy = policy
        self.mcp = mcp
        self.patience: Patience | None = None
        self._models: dict[str, Model] = {}
        self._started = dict(stored.started)
        self._group: anyio.abc.TaskGroup | None = None
        patience = float(os.environ.get("TURNOUT_CONNECT_TIMEOUT") or CONNECT_PATIENCE_S)
        self.dispatcher = Dispatcher(
            db,
            stored.state,
            hosts,
            self,
            payload=snapshot_path(stored.state.settings.get("payload")),
            connect_patience_s=patience,
            think=self._think,
        )
        self.desk = PlannerDesk(db, session, config, policy, hosts, self.dispatcher, self.transcript)
        self.planner = Planner(
            self.scribe, self.transcript, self.ledger, self._speaker(config.model), self.tell, self.dispatcher.edit
        )
        if self.planner.speaker is not None:
            self._wire(self.planner.speaker)

    # What the operator does

    def hear(self, text: str) -> None:
        """Prose. Heard in the model's next turn; stored at once."""
        self.planner.hear(text)

    def interrupt(self) -> None:
        """End the model's turn and nothing else."""
        self.planner.interrupt()

    def pause(self) -> None:
        """Start nothing new and ask the model nothing; what runs goes on."""
        self.dispatcher.pause(True)
        self.planner.pause(True)

    def go(self) -> None:
        """Go on after `pause`."""
        self.dispatcher.pause(False)
        self.planner.pause(False)

    def stop(self) -> None:
        """Leave; jobs go on."""
        self.dispatcher.stop()

    def answer(self, todo: str, answer: str, reason: str | None = None, by: str = "operator") -> None:
        """Answer a question."""
        self.dispatcher.answer(todo, answer, by, reason)

    async def compact(self) -> None:
        """Have the conversation summarised."""
        await self.planner.compact()

    def use_model(self, name: str | None) -> None:
        """From now on the model of this name, at the same endpoint; `None` for none. Raises `UsageError`."""
        config = self.config.model
        if name is not None and config is None:
            raise UsageError("no model is configured", hint="\n".join(self.config.setup_hint))
        chosen = None if name is None or config is None else config.model_copy(update={"name": name, "prices": None})
        self._use(chosen)

    def use_policy(self, policy: Policy) -> None:
        """The operator's lasting decisions have changed."""
        self.policy = self.desk.policy = policy

    async def load_playbook(self, name: str, sets: Mapping[str, str], host: str | None = None) -> list[str]:
        """Bring a playbook into the graph; the ids of its todos. Raises `PlaybookError` or `UsageError`."""
        ops = await joining(self.state, name, sets, host)
        outcomes = await self.edit(ops)
        return [outcome["id"] for outcome in outcomes if outcome["op"] == "add" and "error" not in outcome]

    async def edit(self, ops: Sequence[Op]) -> list[dict[str, Any]]:
        """Change the graph as the operator; what became of each op."""
        return await self.dispatcher.edit(f"operator-{new_id()}", ops)

    # What is seen

    @property
    def state(self) -> SessionState:
        return self.dispatcher.state

    @property
    def spent(self) -> Spent:
        """What model calls used, with those of subagents."""
        return self.ledger.spent

    @property
    def context(self) -> tuple[int, int]:
        """Tokens of the newest request with its answer, and those that may be used."""
        speaker = self.planner.speaker
        return self.transcript.context, speaker.model.window if speaker is not None else 0

    @property
    def doing(self) -> str:
        return self.planner.doing

    # Living

    async def run(self) -> str:
        """Drive it until it is stopped. Returns its status. Raises as `Dispatcher.run` does."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self.planner.run)
                status = await self.dispatcher.run()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._group = None
        return status

    async def close(self) -> None:
        """Let go of the connections to models, and hear nothing more."""
        self.planner.close()
        for model in self._models.values():
            await model.close()

    # The dispatcher's observer

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        for change in changes:
            p = change.payload
            if change.kind == "todo.status":
                if p["now"] == "in_progress":
                    self._started[p["id"]] = time.time()
                else:
                    self._started.pop(p["id"], None)
            elif change.kind == "child.reported" and p["status"] == "cancelled" and self._group is not None:
                self._group.start_soon(self._subagents().give_up, p["child"])
            elif change.kind == "tool.answered":
                told = (p["call"], p["tool_use_id"], p["name"], p["content"], bool(p.get("is_error")))
                self.tell("tool_answered", *told)
        self.scribe.stored(changes, seqs)
        self.desk.changed(changes)

    def progressed(self, job: JobState) -> None:
        self.face.progressed(job)

    def contact(self, event: ContactEvent) -> None:
        self.face.contact(event)

    def asked(self, todo: str, question: str, default: str) -> None:
        self.face.asked(todo, question, default)

    # Parts

    def _model(self, config: ModelConfig) -> Model:
        if config.name not in self._models:
            self._models[config.name] = Model(config)
        return self._models[config.name]

    def _speaker(self, config: ModelConfig | None) -> Speaker | None:
        if config is None:
            return None
        patience = self.patience or Patience(config.patience_s)
        caller = Caller(self.scribe, self._model(config), self.limiter, self.ledger, patience, waiting=self._waits)
        abilities = planner_abilities(self.mcp.values())
        return Speaker(
            self.scribe, self.transcript, caller, abilities, self.desk, PLANNER, "turn", self.tell, self._tail
        )

    def _wire(self, speaker: Speaker) -> None:
        speaker.doing = self.planner.at

    def _use(self, config: ModelConfig | None) -> None:
        speaker = self._speaker(config)
        if speaker is not None:
            self._wire(speaker)
        self.planner.use(speaker)
        self.state.thinks = speaker is not None

    def _waits(self, call: str, error: ModelError, pause: float | None) -> None:
        if pause is not None:
            self.planner.at("waiting")
            self.tell("turn_failed", call, error.kind, error.message, pause)

    def _tail(self, now: float) -> list[Block]:
        text = brief(self.state, self._started, self.ledger, now, paused=self.planner.paused)
        return [{"type": "text", "text": text}]

    def _subagents(self) -> Subagents:
        chosen = self.config.subagent_model()
        if chosen is None:
            raise ModelError("no model is configured", kind="down")
        model = self._model(chosen)
        patience = self.patience or Patience(chosen.patience_s)
        return Subagents(
            self.scribe.db,
            self.scribe.session,
            self.config,
            model,
            self.limiter,
            self.ledger,
            self.hosts,
            self.tell,
            patience,
            {name: ability for name, ability in self.mcp.items() if ability.read_only},
        )

    async def _think(self, todo: str, prompt: str, attempt: int) -> dict[str, Any]:
        return await self._subagents().think(todo, prompt, attempt)


class _Stored:
    """What a session that is talked to begins with, read from the database in one go."""

    def __init__(self, conn: Connection, session: str, *, thinks: bool) -> None:
        self.state = load(conn, session, thinks=thinks)
        self.spent = spent_by(conn, session)
        sessions = table(Session).c
        self.created: float = conn.execute(select(sessions.created).where(sessions.id == session)).scalar_one()
        self.transcript = read_transcript(conn, session)
        self.started = {row.id: row.started for row in conn.execute(_started(session)) if row.started is not None}


def _started(session: str) -> Any:
    todos = table(Todo).c
    return select(todos.id, todos.started).where((todos.session == session) & (todos.status == "in_progress"))


@asynccontextmanager
async def open_talk(db: Database, session: str, face: Observer, config: Config) -> AsyncIterator[Talk]:
    """A session that this process owns, ready to be driven. Gives neither the session nor the database back."""

    def prepare(conn: Connection) -> _Stored:
        settle_children(conn, session)
        return _Stored(conn, session, thinks=config.model is not None)

    stored = await db.awrite(prepare)
    stored.state.max_children = config.subagents.limit
    specs = await db.aread(lambda conn: host_specs(conn, stored.state.settings))
    policy = await to_thread.run_sync(default_policy)
    tell = Tell(face)
    servers = config.mcp if config.model is not None else {}
    async with open_hosts(specs) as hosts, open_servers(servers, lambda what: tell("complained", what)) as mcp:
        talk = Talk(db, session, face, config, stored, hosts, policy, mcp)
        try:
            yield talk
        finally:
            with anyio.CancelScope(shield=True):
                await talk.close()
