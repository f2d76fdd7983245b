"""Who can do what: the planner all of it, a subagent what only reads; MCP servers and the endpoint add to both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.abilities import commands, files, graph, looking
from agent.abilities.base import Ability
from agent.config import ModelConfig

ALL: tuple[Ability, ...] = (
    graph.TODO, commands.JOB, commands.RUN, graph.TASK, graph.ASK, graph.PLAYBOOK, commands.LOGS, commands.KILL,
    files.READ, files.LIST, files.GREP, files.WRITE, files.PATCH, looking.PROBE, looking.TRANSLATE, looking.BENCH,
)  # fmt: skip
WEB_USES = 20
SERVER_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "web_search_20250305", "name": "web_search", "max_uses": WEB_USES},
    {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": WEB_USES},
)


def planner_abilities(more: Iterable[Ability] = ()) -> dict[str, Ability]:
    """By name, what the planner can do; `more` are those of MCP servers."""
    return {ability.name: ability for ability in (*ALL, *more)}


def subagent_abilities(more: Iterable[Ability] = ()) -> dict[str, Ability]:
    """By name, what a subagent can do: what only reads, and quick commands that its policy lets through."""
    reading = [ability for ability in (*ALL, *more) if ability.read_only]
    return {ability.name: ability for ability in (*reading, commands.RUN)}


def schemas(abilities: Mapping[str, Ability], model: ModelConfig) -> list[dict[str, Any]]:
    """The `tools` of a request, in a fixed order; the last one marks the end of the cached prefix."""
    tools = [ability.schema() for ability in abilities.values()]
    if model.searches:
        tools += [dict(tool) for tool in SERVER_TOOLS]
    if model.caches and tools:
        tools[-1] = {**tools[-1], "cache_control": {"type": "ephemeral"}}
    return tools
