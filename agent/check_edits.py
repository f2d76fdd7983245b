"""A model's recorded tool call through today's tools: which edit of the graph it asks for.

    ops = Edits(state_of).ops(name, tool_use_id, given, recorded)

Only calls whose edit follows from the call and the graph alone are made again: `todo`, `task`, `ask`, `job`, `run`.
What the operator's policy said at that time is the recording's: a question for leave stands in it, or it does not. The
tool gets a desk with a graph that takes the edit down and does nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from agent.abilities.base import Use
from agent.abilities.catalogue import planner_abilities
from agent.config import Config
from agent.events import Add, Op
from agent.state import SessionState
from state.errors import ToolError
from tools.permissions import Policy, Verdict

MADE_AGAIN = frozenset({"todo", "task", "ask", "job", "run"})
_QUESTION = "call:"
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+)")


class _Taken(Exception):
    """No error: the way out of a tool that has said what it wants."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = tuple(ops)


@dataclass
class _Graph:
    """A graph as tools reach it. An edit ends the tool."""

    state: SessionState

    async def edit(self, id: str, ops: Sequence[Op], **told: Any) -> NoReturn:
        raise _Taken(ops)

    async def ended(self, todo: str, seconds: float) -> bool:
        return False

    def notice_of(self, todo: str) -> tuple[str, ...]:
        return ()


@dataclass
class _Desk:
    """What a tool works with here: nothing but the graph and a policy that says one thing."""

    session: str
    policy: Policy
    graph: _Graph
    db: Any = None
    config: Config = field(default_factory=Config)

    async def host(self, name: str) -> NoReturn:
        raise ToolError("a check reaches no host")


class Edits:
    """Makes calls again. `state` gives the graph at the moment of the call."""

    def __init__(self, state: Callable[[], SessionState]) -> None:
        self._state = state
        self._abilities = planner_abilities()
        self._loop: asyncio.AbstractEventLoop | None = None

    def ops(self, name: str, id: str, given: Mapping[str, Any], recorded: Sequence[Op]) -> tuple[Op, ...] | None:
        """The ops that today's tool asks for; `None` for a tool that is not made again here.

        `recorded` are the ops as read back from the log: a question for leave is taken from them. Raises `ToolError`
        where today's tool refuses the call.
        """
        if name not in MADE_AGAIN or name not in self._abilities:
            return None
        asked = {op.spec.id: op for op in recorded if isinstance(op, Add) and op.spec.id.startswith(_QUESTION)}
        verdicts: tuple[Verdict, Verdict] = ("ask", "allow") if asked else ("allow", "ask")
        likely, other = verdicts
        made = self._made(name, id, given, Policy((), likely), recorded)
        if made is None:
            return None
        if _names(made) != _names(recorded):
            otherwise = self._made(name, id, given, Policy((), other), recorded)
            made = otherwise if otherwise is not None and _names(otherwise) == _names(recorded) else made
        behind = {op.spec.id: {src for src, _ in op.after} for op in recorded if isinstance(op, Add)}
        return tuple(_with_leave(op, asked, behind) if isinstance(op, Add) else op for op in made)

    def _made(
        self, name: str, id: str, given: Mapping[str, Any], policy: Policy, recorded: Sequence[Op]
    ) -> tuple[Op, ...] | None:
        ability = self._abilities[name]
        checked = ability.check(given)
        state = self._state()
        for todo in reversed(_names(recorded)):  # numbers are given out in the order of calls, which is not in the log
            if numbered := _NUMBERED.fullmatch(todo):
                state.numbers[numbered["stem"]] = int(numbered["number"]) - 1
        desk = _Desk(state.session, policy, _Graph(state))
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(ability.run(Use(desk, "", id, name), checked))
        except _Taken as taken:
            return taken.ops
        return None

    def close(self) -> None:
        """Nothing more is made."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None


def _with_leave(op: Add, asked: Mapping[str, Add], behind: Mapping[str, set[str]]) -> Add:
    """The op with the leave that it had to wait for in the recording, and no other."""
    if op.spec.id in asked:
        return asked[op.spec.id]
    doors = behind.get(op.spec.id, set())
    after = tuple((src, on) for src, on in op.after if not src.startswith(_QUESTION) or src in doors)
    return replace(op, after=after)


def _names(ops: Sequence[Op]) -> list[str]:
    return [op.spec.id for op in ops if isinstance(op, Add)]
