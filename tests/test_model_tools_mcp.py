"""MCP servers: their tools are the model's, behind a question unless they only read, and never called twice."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.config import McpServer
from agent.scripted import ScriptedModel
from tests.talking import Face, configured, play, talking

pytest.importorskip("mcp", reason="the `mcp` extra is not installed")

SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("counter")

@server.tool()
def add(amount: int) -> str:
    "Add to the counter."
    with open(sys.argv[1], "a") as file:
        file.write("x" * amount)
    return f"added {amount}"

server.run("stdio")
"""


def configuration(server: ScriptedModel, tmp_path: Path, **more: Any) -> Any:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, str(tmp_path / "server.py"), str(tmp_path / "counter")]
    config = configured(server)
    return dataclasses.replace(config, mcp={"count": McpServer(command=command, **more)})


def test_a_tool_that_may_change_something_asks_first_and_its_result_is_told(tmp_path: Path) -> None:
    """The call is a todo behind a question; after a yes it is made once."""
    turns = [
        {"when": "count", "tools": [{"name": "count_add", "input": {"amount": 3}}]},
        {"when": "in_progress", "say": "Asked."},
        {"when": "added 3", "say": "Added."},
    ]

    async def main(server: ScriptedModel) -> None:
        config = await anyio.to_thread.run_sync(lambda: configuration(server, tmp_path))
        async with talking(tmp_path, config, Face("yes")) as (talk, face):
            assert "count_add" in talk.planner.speaker.abilities  # type: ignore[union-attr]
            talk.hear("count")
            await face.until(lambda: "Added." in face.words())
            assert len(face.questions) == 1

    play(turns, main)
    assert (tmp_path / "counter").read_text() == "xxx"


def test_a_server_that_only_reads_answers_at_once_and_one_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    """`read_only` spares the question; a broken server costs its tools and nothing else."""
    turns = [
        {"when": "count", "tools": [{"name": "count_add", "input": {"amount": 2}}]},
        {"when": "added 2", "say": "So."},
    ]

    async def main(server: ScriptedModel) -> None:
        config = await anyio.to_thread.run_sync(lambda: configuration(server, tmp_path, read_only=True))
        broken = {**config.mcp, "gone": McpServer(command=[str(tmp_path / "nothing")])}
        async with talking(tmp_path, dataclasses.replace(config, mcp=broken)) as (talk, face):
            talk.hear("count")
            await face.until(lambda: "So." in face.words())
            assert face.questions == []
            (complaint,) = [h[1] for h in face.heard if h[0] == "complained"]
            assert complaint.startswith("the MCP server `gone` is left out: ")

    play(turns, main)
