"""Tools of MCP servers as abilities: `NAME_tool` for each tool of each server that the configuration names.

    async with open_servers(config.mcp, complain) as abilities: ...

A server that is not there is told and left out. Tools of a server that is marked `read_only` answer at once, also to
subagents; those of others are todos of the graph behind a question to the operator, and are never called twice by
themselves: one that a crash interrupted has failed as not known. Wants the `mcp` extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict

from agent.abilities.base import Ability, Result, Use, _Answered, fenced, free_id, leave
from agent.config import McpServer
from agent.events import Add
from state.errors import ToolError, TurnoutError
from state.specs import TodoSpec
from tools.base import ONCE, TOOLS, ToolCall
from tools.permissions import Decision

CONNECT_S = 30.0
CLOSE_S = 10.0
MAX_NAME = 64
_clients: dict[str, tuple[Any, McpServer]] = {}


class Anything(BaseModel):
    """The server checks its input itself."""

    model_config = ConfigDict(extra="allow", frozen=True)


def _sdk() -> Any:
    """The SDK, with what it would import in the middle of a call. Blocks. Raises `ImportError`."""
    import_module("jsonschema")
    return import_module("mcp.client.client")


@dataclass
class _Line:
    """A connection, held open by a task of its own until it is told to end."""

    name: str
    server: McpServer
    tried: anyio.Event = field(default_factory=anyio.Event)
    end: anyio.Event = field(default_factory=anyio.Event)
    tools: list[Any] = field(default_factory=list)
    wrong: str | None = None

    async def hold(self) -> None:
        try:
            async with await _client(self.name, self.server) as client:
                self.tools = (await client.list_tools()).tools
                _clients[self.name] = client, self.server
                self.tried.set()
                await self.end.wait()
        except (OSError, TurnoutError, ExceptionGroup) as error:
            self.wrong = str(error)
        except Exception as error:
            if not isinstance(error, _errors()):
                raise
            self.wrong = str(error)
        finally:
            _clients.pop(self.name, None)
            self.tried.set()


@asynccontextmanager
async def open_servers(
    servers: Mapping[str, McpServer], complain: Callable[[str], None]
) -> AsyncIterator[dict[str, Ability]]:
    """Connect to the servers; their tools by the name that the model calls them by."""
    if not servers:
        yield {}
        return
    lines = [_Line(name, server) for name, server in servers.items()]
    async with anyio.create_task_group() as group:
        for line in lines:
            group.start_soon(line.hold)
        with anyio.move_on_after(CONNECT_S):
            for line in lines:
                await line.tried.wait()
        abilities: dict[str, Ability] = {}
        for line in lines:
            if not line.tools:
                why = line.wrong or (None if line.tried.is_set() else f"no answer within {CONNECT_S:.0f} s")
                complain(f"the MCP server `{line.name}` is left out: {why or 'it has no tools'}")
            abilities |= {ability.name: ability for ability in (_ability(line, tool) for tool in line.tools)}
        try:
            yield abilities
        finally:
            for line in lines:
                line.end.set()
            group.cancel_scope.deadline = anyio.current_time() + CLOSE_S


def _errors() -> type[Exception]:
    """What the SDK raises of its own."""
    error: type[Exception] = import_module("mcp.shared.exceptions").MCPError
    return error


async def _client(name: str, server: McpServer) -> Any:
    try:
        sdk = await to_thread.run_sync(_sdk)
    except ImportError as error:
        raise ToolError("the package `mcp` is not installed", hint="pip install 'turnout[mcp]'") from error
    if server.url:
        return sdk.Client(server.url, read_timeout_seconds=server.timeout_s)
    command = server.command or [""]
    parameters = sdk.StdioServerParameters(command=command[0], args=command[1:], env=dict(server.env) or None)
    return sdk.Client(parameters, read_timeout_seconds=server.timeout_s)


def _ability(line: _Line, tool: Any) -> Ability:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{line.name}_{tool.name}")[:MAX_NAME]
    reads = line.server.read_only

    async def run(use: Use, given: Anything) -> Result | _Answered:
        arguments = given.model_dump()
        if reads:
            return _result(await _call(line.name, tool.name, arguments))
        return await _asked(use, line.name, tool.name, arguments)

    description = (tool.description or tool.name)[:2000]
    deadline = line.server.timeout_s + 5
    return Ability(name, description, Anything, run, reads, deadline, input_schema=tool.input_schema)


async def _asked(use: Use, server: str, tool: str, arguments: dict[str, Any]) -> _Answered:
    """The call as a todo behind a question."""
    body = {"tool": "mcp_call", "plain": {"server": server, "tool": tool, "arguments": arguments}, "by": "model"}
    what = f"call `{tool}` of the MCP server `{server}`"
    question = leave(
        use, what, Decision("ask", "it may change something", "mcp"), host="local", command=json.dumps(arguments)
    )
    spec = TodoSpec(free_id(use.graph.state, "mcp"), what[:1].upper() + what[1:], "tool", body)
    return await use.edit([question, Add(spec, ((question.spec.id, "success"),))])


async def mcp_call(call: ToolCall) -> dict[str, Any]:
    """Call `tool` of the MCP server `server` with `arguments`: `text`. Never made twice by itself."""
    told = _result(await _call(str(call.arg("server")), str(call.arg("tool")), dict(call.args.get("arguments") or {})))
    if told.is_error:
        raise ToolError(told.text)
    return {"text": told.text}


TOOLS["mcp_call"] = mcp_call
ONCE.add("mcp_call")


async def _call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    if server not in _clients:
        raise ToolError(f"the MCP server `{server}` is not connected", hint="is it in the configuration, and up?")
    client, config = _clients[server]
    try:
        with anyio.fail_after(config.timeout_s):
            return await client.call_tool(tool, arguments)
    except TimeoutError:
        raise ToolError(f"`{tool}` of `{server}` did not answer within {config.timeout_s:.0f} s") from None
    except _errors() as error:
        raise ToolError(f"`{tool}` of `{server}`: {error}") from error


def _result(told: Any) -> Result:
    """The text of a result; what is no text is named by its type."""
    parts = [str(getattr(part, "text", "")) or f"[{part.type}]" for part in told.content]
    return Result(fenced("\n".join(parts)), is_error=bool(told.is_error))
