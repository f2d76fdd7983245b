"""The planner's desk: what its abilities reach, and who waits there for a todo to end.

It looks at what is committed; it changes nothing but through the dispatcher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import anyio

from agent.abilities.base import Graph
from agent.config import Config
from agent.dispatcher import Dispatcher
from agent.events import Op
from agent.hosts import Hosts
from agent.state import SessionState
from agent.transcript import Transcript
from state.changes import Change
from state.db import Database
from state.specs import TERMINAL
from tools.permissions import Policy
from tools.ssh import Host


class PlannerDesk:
    """Desk and graph in one: see `agent/abilities/base.py`."""

    def __init__(
        self,
        db: Database,
        session: str,
        config: Config,
        policy: Policy,
        hosts: Hosts,
        dispatcher: Dispatcher,
        transcript: Transcript,
    ) -> None:
        self.db = db
        self.session = session
        self.config = config
        self.policy = policy
        self._hosts = hosts
        self._dispatcher = dispatcher
        self._transcript = transcript
        self._waiting: dict[str, list[anyio.Event]] = defaultdict(list)

    @property
    def graph(self) -> Graph | None:
        return self

    @property
    def state(self) -> SessionState:
        """The dispatcher's, which it may replace by a fresh one."""
        return self._dispatcher.state

    async def host(self, name: str) -> Host:
        return await self._hosts.get(name)

    async def edit(
        self, id: str, ops: Sequence[Op], *, actor: str = "model", answers: tuple[str, str] | None = None
    ) -> list[dict[str, Any]]:
        return await self._dispatcher.edit(id, ops, actor=actor, answers=answers)

    async def ended(self, todo: str, seconds: float) -> bool:
        """Whether the todo has ended, waiting so long for it."""
        if self.state.graph[todo].status not in TERMINAL:
            event = anyio.Event()
            self._waiting[todo].append(event)
            with anyio.move_on_after(seconds):
                await event.wait()
        return self.state.graph[todo].status in TERMINAL

    def notice_of(self, todo: str) -> tuple[str, ...]:
        """The undelivered notices about a todo."""
        return tuple(id for id, p in self._transcript.notices.items() if p["about"].get("todo") == todo)

    def changed(self, changes: Sequence[Change]) -> None:
        """These are stored: whoever waits for one of their todos is told."""
        for change in changes:
            if change.kind == "todo.status" and change.payload["now"] in TERMINAL:
                for event in self._waiting.pop(change.payload["id"], ()):
                    event.set()
