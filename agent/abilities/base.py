"""The parts of an ability: its words for the model, the checked input, the desk it works at, and bounded results.

    class Given(Input): path: str = Field(description="...")

    async def read(use: Use, given: Given) -> Result: ...

    READ = Ability("read", "Read a file on a host.", Given, read, read_only=True)

An ability raises `ToolError` (or any `TurnoutError`) for what the model may correct; anything else is a bug.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import Connection

from agent.config import Config
from agent.core_notice import LEAVE
from agent.events import Add, Op
from agent.model import UNREADABLE
from agent.state import SessionState
from agent.transcript import defused
from state.db import Database
from state.errors import ToolError
from state.specs import TodoSpec
from tools.permissions import Decision, Policy
from tools.ssh import Host

MAX_CHARS = 24_000
"""Characters of a result that a model is given; the rest is where `whole` says."""


class Input(BaseModel):
    """What a model gives to a tool. Unknown keys are refused, so that a typing error is not passed over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answers: text for the model; `whole` says how much there was and where the rest is."""

    text: str
    is_error: bool = False
    whole: Mapping[str, Any] | None = None
    notices: tuple[str, ...] = ()
    """Notices that this result makes needless, because it tells the same."""


class _Answered:
    """The result was stored together with the edit that it tells of."""


ANSWERED = _Answered()


class Desk(Protocol):
    """What abilities work with: the planner's desk has a graph, a subagent's (`graph` is `None`) has none."""

    db: Database
    session: str
    config: Config
    policy: Policy

    @property
    def graph(self) -> Graph | None: ...

    async def host(self, name: str) -> Host: ...


class Graph(Protocol):
    """The graph as the planner's abilities reach it."""

    @property
    def state(self) -> SessionState: ...

    async def edit(
        self, id: str, ops: Sequence[Op], *, actor: str = ..., answers: tuple[str, str] | None = ...
    ) -> list[dict[str, Any]]: ...

    async def ended(self, todo: str, seconds: float) -> bool:
        """Whether the todo has ended, waiting so long for it."""

    def notice_of(self, todo: str) -> tuple[str, ...]:
        """The undelivered notices about a todo."""


@dataclass(slots=True)
class Use:
    """One tool call: `id` is the `tool_use_id`, `call` the model call that made it."""

    desk: Desk
    call: str
    id: str
    name: str

    @property
    def graph(self) -> Graph:
        if self.desk.graph is None:
            raise ToolError("a subagent has no todo graph", hint="put what should be done into your report")
        return self.desk.graph

    async def edit(self, ops: Sequence[Op]) -> _Answered:
        """Change the graph; what became of it is the result of this call, stored in the same commit."""
        # Shielded: an edit on its way is stored with its result, which must then be the only one.
        with anyio.CancelScope(shield=True):
            await self.graph.edit(self.id, ops, actor="model", answers=(self.call, self.name))
        return ANSWERED

    async def quiet_edit(self, ops: Sequence[Op]) -> list[dict[str, Any]]:
        """Change the graph, and go on to say more about it."""
        with anyio.CancelScope(shield=True):
            outcomes = await self.graph.edit(self.id, ops, actor="model")
        return outcomes

    async def read(self, work: Callable[[Connection], Any]) -> Any:
        return await self.desk.db.aread(work)


Run = Callable[[Use, Any], Awaitable[Result | str | _Answered]]


@dataclass(frozen=True, slots=True)
class Ability:
    """A tool of the model. `deadline_s` is held from outside: a hung tool is answered for."""

    name: str
    description: str
    given: type[BaseModel]
    run: Run = field(repr=False)
    read_only: bool = False
    deadline_s: float = 60.0
    input_schema: Mapping[str, Any] | None = None

    def schema(self) -> dict[str, Any]:
        """The tool as the Messages API wants it."""
        schema = dict(self.input_schema) if self.input_schema is not None else slim(self.given.model_json_schema())
        return {"name": self.name, "description": self.description, "input_schema": schema}

    def check(self, given: Mapping[str, Any]) -> Any:
        """The checked input. Raises `ToolError` that says what is wrong and gives the schema."""
        if UNREADABLE in given:
            raise ToolError(
                f"the input of `{self.name}` is no JSON object: {str(given[UNREADABLE])[:500]}", hint=self._wanted()
            )
        try:
            return self.given.model_validate(dict(given))
        except ValidationError as error:
            wrong = "; ".join(f"`{'.'.join(map(str, e['loc'])) or '(all)'}`: {e['msg']}" for e in error.errors()[:8])
            raise ToolError(f"the input of `{self.name}` is not right: {wrong}", hint=self._wanted()) from error

    def _wanted(self) -> str:
        return f"call it again with input of this schema: {json.dumps(self.schema()['input_schema'])}"


def slim(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema without pydantic's titles, which cost tokens and say nothing."""

    def walk(value: Any, names: bool = False) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if names or k != "title" or not isinstance(v, str)}
            return {k: walk(v, names=k in ("properties", "$defs") and not names) for k, v in kept.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    slimmed: dict[str, Any] = walk(schema)
    return slimmed


def fenced(text: str, limit: int = MAX_CHARS) -> str:
    """Text from a host as data in a marked block: head and tail, with exact counts of what is left out."""
    return f"<output>\n{defused(head_tail(text, limit))}\n</output>"


def head_tail(text: str, limit: int = MAX_CHARS) -> str:
    """The head and the tail of a text, cut at line ends where there are any near, with what is left out counted."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit // 2) :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    out = len(text) - len(head) - len(tail)
    lines = text.count("\n") - head.count("\n") - tail.count("\n")
    return f"{head}[... {out:,} characters, {lines:,} lines left out ...]\n{tail}"


def free_id(state: SessionState, stem: str) -> str:
    """An id that no todo has: `run-1`, `run-2`, ..."""
    numbers = itertools.count(state.numbers.get(stem, 0) + 1)
    number = next(n for n in numbers if f"{stem}-{n}" not in state.graph)
    state.numbers[stem] = number
    return f"{stem}-{number}"


def leave(use: Use, what: str, decision: Decision, *, host: str, command: str) -> Add:
    """A question for the operator's leave, as a todo that the work is to wait for."""
    body: dict[str, Any] = {"question": what, "default": "no", "host": host, "command": command, "why": decision.why}
    body |= {"rule": decision.rule, "by": "model", "literal": True}
    body["lasting"] = [rule.as_json() for rule in decision.lasting]
    return Add(TodoSpec(f"{LEAVE}{use.id}", f"May I? {what}"[:120], "ask", body, priority="high"))
