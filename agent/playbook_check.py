"""What must hold before a playbook may start: every name in a template known, no cycle, no result read too early.

Works on the validated steps and on the graph made of them; reports every problem with its line and starts nothing.
The shape of the file is judged in `playbook_schema`, values of parameters in `playbook_params`.
"""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import jinja2

from agent.playbook_errors import MAX_PROBLEMS, did_you_mean, listed
from agent.playbook_graph import PlanGraph
from agent.playbook_schema import Playbook, Step
from agent.playbook_templates import references
from agent.playbook_yaml import Document, Loc
from agent.templates import BUILTINS, has_template
from state.errors import CycleError, PlaybookError

MAX_ALL_TEXT = 128 << 10  # characters of all templates: parsing that many takes about a second

When = Literal["load", "run"]


def check_templates(playbook: Playbook, document: Document) -> list[PlaybookError]:
    """Syntax and names of every template and gate, before any value is known."""
    problems: list[PlaybookError] = []
    length = 0
    known = frozenset(playbook.params) | {"params"}
    steps = [step.id for step in playbook.steps]
    for index, step in enumerate(playbook.steps):
        item = frozenset({step.for_each.item} if step.for_each else ())
        for loc, text, when in _texts(step, index):
            length += len(text)
            if length > MAX_ALL_TEXT:
                message = f"the templates up to here are longer than {MAX_ALL_TEXT >> 10} Ki characters"
                problems.append(document.error(loc, message, hint="long scripts belong in the payload folder"))
            if length > MAX_ALL_TEXT or len(problems) >= MAX_PROBLEMS:
                return problems
            here = BUILTINS.keys() | item if when == "run" else frozenset() if loc[2] == "for_each" else item
            problems += _names(document, loc, text, known | here, item, steps, playbook.params)
    for key, template in (("report", playbook.report), ("estimate", playbook.estimate)):
        if template:
            allowed = known | BUILTINS.keys()
            problems += _names(document, (key,), template, allowed, frozenset(), steps, playbook.params)
    return problems


def _texts(step: Step, index: int) -> Iterator[tuple[tuple[str | int, ...], str, When]]:
    """Every text of a step that is a template or a gate, with its place and when it will be rendered."""
    raw = step.model_dump(by_alias=True, exclude_unset=True)
    for loc, text in _leaves(raw, ("steps", index)):
        if has_template(text) or loc[2:] == ("gate",):
            early = loc[2] in ("title", "for_each", "after", "race", "stop") or loc[-1] in ("timeout", "grace")
            yield loc, text, "load" if early else "run"


def _leaves(value: Any, loc: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield loc, value
    elif isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(part, (*loc, key))


def _names(
    document: Document,
    loc: Loc,
    text: str,
    allowed: Collection[str],
    item: Collection[str],
    steps: Collection[str],
    params: Collection[str],
) -> Iterator[PlaybookError]:
    try:
        used = references(text, expression=loc[-1] == "gate")
    except jinja2.TemplateSyntaxError as error:
        hint = "write `{% raw %}...{% endraw %}` around braces that are no template" if "{%" in text else None
        message = f"the template in `{loc[-1]}` has an error: {error.message}"
        yield document.error(loc, message, hint=hint, text_line=error.lineno)
        return
    for name in sorted(used.names - set(allowed)):
        if name in steps:
            guess = f"; did you mean `todos.{name}`?"
        elif name in BUILTINS:
            guess = ": it is known only when the todo starts, and this is rendered before"
        else:
            guess = did_you_mean(name, allowed)
        yield document.error(loc, f"`{name}` is not defined{guess}", hint=f"names here: {listed(sorted(allowed))}")
    for name in sorted(used.params - set(params)):
        yield document.error(loc, f"`params.{name}` does not exist{did_you_mean(name, params)}")
    for name in sorted(used.loops & set(item)):
        yield document.error(loc, f"`{name}` is the item of `for_each`", hint="name the variable of the loop otherwise")


def check_graph(
    playbook: Playbook, document: Document, graph: PlanGraph, tools: Collection[str] | None
) -> list[PlaybookError]:
    """Cycles, tools that do not exist (unless `tools` is `None`), and results that are read too early or never made."""
    problems = list(_tools(playbook, document, tools)) if tools is not None else []
    try:
        bit, above = _ancestors(graph)
    except CycleError as error:
        start = ("steps", graph.members[error.path[0]].index)
        return [*problems, document.error(start, error.message, hint=error.hint)]
    reported: set[tuple[int, str]] = set()
    for member in graph.members.values():
        for loc, text, when in _texts(member.step, member.index):
            for name in _results_read(text, loc) if when == "run" else ():
                if len(problems) >= MAX_PROBLEMS:
                    return problems
                if (member.index, name) in reported:
                    continue
                step, at, _ = name.partition("@")
                wanted = graph.names.get(name if name in graph.names else step, ())
                if not wanted or not all(above[member.id] & bit[todo] for todo in wanted):
                    name = step if at and name not in graph.names else name
                    reported.add((member.index, name))
                    problems.append(_unreadable(document, loc, graph, name, member.step.id))
    if playbook.report:
        for name in _results_read(playbook.report, ("report",)):
            if (name := name.partition("@")[0]) not in graph.names:
                problems.append(_unreadable(document, ("report",), graph, name, "report"))
    return problems


def _results_read(text: str, loc: Loc) -> list[str]:
    """The names after `todos.`, with the key that is read of each as `name@key`, which may be a member of a group.

    The word is looked for first, since parsing thousands of templates takes seconds.
    """
    if "todos" not in text:
        return []
    used = references(text, expression=loc[-1] == "gate")
    keyed = {f"{todo}@{key}" for todo, key in used.members if todo not in used.wholes}
    return sorted(keyed | used.wholes)


def _unreadable(document: Document, loc: Loc, graph: PlanGraph, name: str, reader: str) -> PlaybookError:
    if name in graph.names:
        message = f"`todos.{name}` is read here, but `{reader}` does not wait for `{name}`"
        hint = f"add `{name}` to the `after` of `{reader}`, or of a step that it waits for"
        return document.error(loc, message, hint=hint)
    steps = [step for step in graph.names if "@" not in step]
    hint = f'steps: {listed(steps)}; an id with `-` or `.` is read as `todos["{steps[0]}"]`'
    return document.error(loc, f"`todos.{name}` names no step{did_you_mean(name, steps)}", hint=hint)


def _ancestors(graph: PlanGraph) -> tuple[dict[str, int], dict[str, int]]:
    """A bit for each todo, and for each the bits of those that it waits for. Raises `CycleError`."""
    blockers: dict[str, set[str]] = {todo: set() for todo in graph.members}
    for edge in graph.edges:
        blockers[edge.dst].add(edge.src)
    try:
        order = list(graphlib.TopologicalSorter(blockers).static_order())
    except graphlib.CycleError as error:
        raise CycleError(error.args[1]) from error
    # Bits, since thousands of todos that wait for thousands would fill the memory with sets.
    bit = {todo: 1 << number for number, todo in enumerate(order)}
    above: dict[str, int] = {}
    for todo in order:
        above[todo] = 0
        for blocker in blockers[todo]:
            above[todo] |= above[blocker] | bit[blocker]
    return bit, above


def _tools(playbook: Playbook, document: Document, tools: Collection[str]) -> Iterator[PlaybookError]:
    for index, step in enumerate(playbook.steps):
        fallback = step.research.fallback if step.research else None
        tool = step.tool or (fallback.tool if fallback else None)
        if tool and tool.name not in tools:
            loc = ("steps", index, "tool" if step.tool else "research", "fallback", "tool")
            message = f"no tool is named `{tool.name}`{did_you_mean(tool.name, tools)}"
            yield document.error(loc, message, hint=f"tools: {listed(sorted(tools))}")
