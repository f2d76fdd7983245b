"""A playbook joins a session that goes on: its todos and edges as edits of the graph.

Ids stay as they are where none is taken; otherwise all of them get a prefix, and templates of the playbook see results
without it. The playbook's own parameters, payload and hosts are kept under a scope that its todos name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyio import to_thread

from agent import playbook
from agent.events import Add, Load, Op
from agent.host_names import check_hosts
from agent.payload import snapshot
from agent.state import SessionState
from state.specs import On, Plan
from tools import builtin  # noqa: F401 - registers the tools
from tools.base import TOOLS


async def joining(state: SessionState, name: str, sets: Mapping[str, str], host: str | None = None) -> list[Op]:
    """The edits that bring a playbook in. Raises `PlaybookError`, `UsageError`, or `NotFound` for an unknown host."""
    plan, payload = await to_thread.run_sync(_prepared, name, dict(sets), host, set(state.hosts))
    return edits(state, plan, payload)


def _prepared(name: str, sets: dict[str, str], host: str | None, known: set[str]) -> tuple[Plan, dict[str, str] | None]:
    plan = playbook.load(playbook.find(name), sets, host=host, tools=TOOLS)
    check_hosts(plan, known)
    if plan.payload is None:
        return plan, None
    return plan, snapshot(Path(plan.payload), plan.package or plan.name)


def edits(state: SessionState, plan: Plan, payload: Mapping[str, str] | None) -> list[Op]:
    """`plan` as edits of this session: `Load` first, then its todos in an order in which their edges can be made."""
    loaded = state.settings.get("scopes", {})
    scope = _free(plan.name, loaded)
    taken = any(spec.id in state.graph or (spec.group or spec.id) in state.results for spec in plan.todos)
    prefix = f"{scope}." if taken else ""
    into: dict[str, list[tuple[str, On]]] = defaultdict(list)
    for edge in plan.edges:
        into[edge.dst].append((prefix + edge.src, edge.on))
    hosts = {name: dict(spec) for name, spec in plan.hosts.items()}
    ops: list[Op] = [Load(scope, plan.name, prefix, dict(plan.params), payload, hosts or None, plan.report)]
    for spec in _sorted(plan):
        body: dict[str, Any] = {**spec.body, "scope": scope}
        if spec.kind == "stop":
            body["todo"] = prefix + body["todo"]
        group = prefix + spec.group if spec.group else None
        ops.append(Add(replace(spec, id=prefix + spec.id, body=body, group=group), tuple(into[spec.id])))
    return ops


def _free(name: str, loaded: Mapping[str, Any]) -> str:
    numbers = range(2, len(loaded) + 3)
    return next(scope for scope in (name, *(f"{name}-{n}" for n in numbers)) if scope not in loaded)


def _sorted(plan: Plan) -> list[Any]:
    """The todos, each behind those that it waits for; otherwise in the order of the playbook."""
    waits: dict[str, set[str]] = defaultdict(set)
    for edge in plan.edges:
        waits[edge.dst].add(edge.src)
    left, done = list(plan.todos), set[str]()
    made: list[Any] = []
    while left:
        ready = [spec for spec in left if waits[spec.id] <= done]
        made += ready
        done |= {spec.id for spec in ready}
        left = [spec for spec in left if spec.id not in done]
    return made
