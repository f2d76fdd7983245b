"""The tools a playbook step or a model may call, by name.

A tool is an async function of a `ToolCall` that returns JSON. It may run twice, if the driver died while it ran, so it
only reads, or does the same thing again. Raising `ToolError` (or any `TurnoutError`) fails the todo with that message;
anything else is a bug and ends the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from state.errors import ToolError
from tools.ssh import Host


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a tool gets: its rendered arguments and a way to reach hosts by name."""

    session: str
    todo: str
    args: Mapping[str, Any]
    host: Callable[[str], Awaitable[Host]]

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument. Raises `ToolError` when it is missing and has no default."""
        value = self.args.get(name, default)
        if value is None:
            raise ToolError(f"tool of `{self.todo}`: argument `{name}` is missing", hint=f"add `{name}:` under `args:`")
        return value


Tool = Callable[[ToolCall], Awaitable[dict[str, Any]]]
TOOLS: dict[str, Tool] = {}
ONCE: set[str] = set()
"""Tools that must not run a second time by themselves: interrupted by a crash, they have failed as not known."""


def tool(function: Tool) -> Tool:
    """Register a function under its own name."""
    TOOLS[function.__name__] = function
    return function
