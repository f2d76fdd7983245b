"""Loads a playbook: YAML in, a validated `state.specs.Plan` out, or an error that names the line and what was meant.

    plan = load(find("eagle3"), {"preset": "smoke"}, host="gpu1")
    problems = check(find("examples/hedge.yaml"))        # everything that is wrong, without values for parameters

Nothing is started, stored or sent here, and a playbook's own code is never imported. The parts: `playbook_yaml` (text
to data with lines), `playbook_schema` (the keys), `playbook_params` (values of parameters), `playbook_graph` (todos and
edges), `playbook_check` (names, cycles, results), `playbook_find` (where playbooks are). docs/playbooks.md is the
author's page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from agent.playbook_check import check_graph, check_templates
from agent.playbook_errors import together
from agent.playbook_find import catalogue, find
from agent.playbook_graph import build
from agent.playbook_params import resolve
from agent.playbook_schema import Playbook, parse
from agent.playbook_yaml import Document, read
from state.errors import PlaybookError
from state.specs import Plan

__all__ = ["catalogue", "check", "find", "load"]

DEFAULT_PAYLOAD = "payload"


def load(
    path: str | Path, sets: Mapping[str, str], *, host: str | None = None, tools: Collection[str] | None = None
) -> Plan:
    """The plan of the playbook in the file `path`, with parameters set from `sets` (texts, as typed).

    `host` sets the parameter `host`. `tools` are the names that `tool` steps may use; `None` leaves them unchecked.
    Raises `PlaybookError`: the first problem of the file, with the others in its hint.
    """
    plan, problems = _compile(Path(path), sets, host=host, tools=tools)
    if plan is None:
        raise together(problems)
    return plan


def check(path: str | Path, *, tools: Collection[str] | None = None) -> list[PlaybookError]:
    """Everything that is wrong with a playbook, in the order of the file. Required parameters get invented values."""
    try:
        _, problems = _compile(Path(path), {}, host=None, tools=tools, placeholders=True)
    except PlaybookError as error:
        return [error]
    return sorted(problems, key=lambda problem: problem.line or 0)


def _compile(
    path: Path,
    sets: Mapping[str, str],
    *,
    host: str | None,
    tools: Collection[str] | None,
    placeholders: bool = False,
) -> tuple[Plan | None, list[PlaybookError]]:
    """The plan, or the problems of the first stage that found any: later stages need what the earlier ones made."""
    document = read(path)
    playbook, problems = parse(document)
    if playbook is None:
        return None, problems
    params, problems = resolve(playbook, document, sets, host=host, placeholders=placeholders)
    problems += check_templates(playbook, document)
    if problems:
        return None, problems
    graph, problems = build(playbook, document, params)
    if not problems:
        problems = check_graph(playbook, document, graph, tools)
    payload = _payload(playbook, document, path, problems)
    if problems:
        return None, problems
    plan = Plan(
        name=playbook.name,
        title=playbook.title or playbook.name,
        params=params,
        todos=tuple(graph.todos),
        edges=tuple(graph.edges),
        source=str(path.resolve()),
        payload=str(payload) if payload else None,
        package=(playbook.package or playbook.name.replace("-", "_")) if payload else None,
        hosts={name: spec.model_dump() for name, spec in playbook.hosts.items()},
        report=playbook.report,
        estimate=playbook.estimate,
    )
    return plan, []


def _payload(playbook: Playbook, document: Document, path: Path, problems: list[PlaybookError]) -> Path | None:
    """The payload folder: the one named, else `payload` where there is one. It lies within the playbook's folder."""
    folder = path.resolve().parent
    payload = (folder / (playbook.payload or DEFAULT_PAYLOAD)).resolve()
    if playbook.payload and (not payload.is_dir() or folder not in payload.parents):
        message = f"`payload: {playbook.payload}` is no folder beside the playbook"
        problems.append(document.error(("payload",), message, hint=f"looked for `{payload}`"))
    return payload if payload.is_dir() else None
