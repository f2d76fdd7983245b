"""Turns the steps of a playbook into todos and edges: `for_each` unrolled, references resolved, shorthands filled in.

A step with `for_each` becomes one todo for each value, named `step@value`; naming the step in `after`, `race` or a
template then means all of them. Whether the graph makes sense (cycles, results that are read too early) is judged in
`playbook_check`; nothing is stored or run here.

    graph, problems = build(playbook, document, params)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agent.playbook_errors import MAX_PROBLEMS, did_you_mean, from_pydantic, listed
from agent.playbook_schema import Job, Playbook, Step, Tool, seconds
from agent.playbook_templates import bind, bind_expression
from agent.playbook_yaml import Document, Loc
from agent.templates import render_tree
from state.errors import PlaybookError, TurnoutError
from state.specs import EdgeSpec, On, Retry, TodoSpec

MAX_TODOS = 5_000
MAX_EDGES = 100_000
MAX_VALUE = 80  # characters of a value within an id, which is also a folder's name on the host


@dataclass(frozen=True, slots=True)
class Member:
    """A todo to be: the step it comes from (by index), with the `for_each` item filled in."""

    id: str
    index: int
    step: Step
    group: str | None = None


@dataclass(slots=True)
class PlanGraph:
    """Todos and edges. `names` gives the todos behind each name that a playbook may use: ids and groups."""

    members: dict[str, Member] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    todos: list[TodoSpec] = field(default_factory=list)
    edges: dict[EdgeSpec, None] = field(default_factory=dict)


def build(playbook: Playbook, document: Document, params: Mapping[str, Any]) -> tuple[PlanGraph, list[PlaybookError]]:
    """The graph of `playbook` and what is wrong with its ids, lists and references."""
    builder = _Builder(document, {**params, "params": params})
    for index, step in enumerate(playbook.steps):
        builder.add_step(index, step)
    for member in builder.graph.members.values():
        builder.add_todo(member)
    return builder.graph, builder.problems


class _Builder:
    def __init__(self, document: Document, context: Mapping[str, Any]) -> None:
        self.document = document
        self.context = context  # what is known before anything runs: the parameters
        self.graph = PlanGraph()
        self.problems: list[PlaybookError] = []

    def problem(self, loc: Loc, message: str, *, hint: str | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self.document.error(loc, message, hint=hint))

    # Steps into members

    def add_step(self, index: int, step: Step) -> None:
        if step.id in self.graph.names:
            self.problem(("steps", index, "id"), f"two steps have the id `{step.id}`", hint="rename one of them")
            return
        members = self._expanded(index, step) if step.for_each else [Member(step.id, index, step)]
        self.graph.members |= {member.id: member for member in members}
        self.graph.names |= {member.id: (member.id,) for member in members}
        self.graph.names[step.id] = tuple(member.id for member in members)

    def _expanded(self, index: int, step: Step) -> list[Member]:
        assert step.for_each is not None
        loc = ("steps", index, "for_each")
        values = self._load(step.for_each.over, loc)
        if not isinstance(values, list) or not (values or step.for_each.optional):
            self.problem(loc, f"`for_each` of step `{step.id}` goes over `{values}`, which is no list with values")
            return []
        if len(self.graph.members) + len(values) > MAX_TODOS:
            self.problem(loc, f"`for_each` of step `{step.id}` makes more than {MAX_TODOS} todos")
            return []
        raw = step.model_dump(by_alias=True, exclude_unset=True, exclude={"for_each"})
        members: dict[str, Member] = {}
        for position, value in enumerate(values):
            key = _key(value, position)
            if key in members:
                first = members[key].id
                self.problem(loc, f"`{value}` would be the second todo `{first}`", hint="values must differ")
                continue
            filled = bind(raw, step.for_each.item, value)
            if step.gate:
                filled["gate"] = bind_expression(step.gate, step.for_each.item, value)
            if step.title and filled["title"] == step.title:
                filled["title"] = f"{step.title} ({key})"
            try:
                member = Step.model_validate(filled)
            except ValidationError as error:
                self.problems += from_pydantic(error, self.document, Step, ("steps", index))
                return []
            members[key] = Member(f"{step.id}@{key}", index, member, step.id)
        return list(members.values())

    # Members into todos and edges

    def add_todo(self, member: Member) -> None:
        step, loc = member.step, ("steps", member.index)
        for number, edge in enumerate(step.after):
            self._edges(edge.todo, member, edge.on, (*loc, "after", number))
        for number, name in enumerate(step.race or ()):
            self._edges(name, member, "success", (*loc, "race", number))
        rule = step.retry
        title = self._load(step.title, (*loc, "title")) if step.title else member.id
        self.graph.todos.append(
            TodoSpec(
                id=member.id,
                title=str(title),
                kind=step.kind,
                body=self._body(member),
                priority=step.priority,
                join="any" if step.race else step.join,
                retry=Retry(rule.times, tuple(rule.on)) if rule else Retry(),
                group=member.group,
            )
        )

    def _edges(self, name: str, member: Member, on: On, loc: Loc) -> None:
        for source in self._resolve(name, loc):
            self.graph.edges[EdgeSpec(source, member.id, on)] = None
        if len(self.graph.edges) > MAX_EDGES:
            raise self.document.error(loc, f"more than {MAX_EDGES} edges", hint="put a `gate` between the two groups")

    def _resolve(self, name: str, loc: Loc) -> tuple[str, ...]:
        """The todos that a name in `after`, `race` or `stop` stands for."""
        name = str(self._load(name, loc))
        step, at, value = name.partition("@")
        known = self.graph.names.get(f"{step}@{_key(value, 0)}" if at else name)
        if known is None:
            steps = [other for other in self.graph.names if "@" not in other or at]
            guess = did_you_mean(name, steps) if len(self.problems) < MAX_PROBLEMS else ""
            self.problem(loc, f"no step has the id `{name}`{guess}", hint=f"steps: {listed(steps)}")
        return known or ()

    def _body(self, member: Member) -> dict[str, Any]:
        step, loc = member.step, ("steps", member.index)
        if step.job:
            return self._job(step.job, (*loc, "job"))
        if step.tool:
            return {"tool": step.tool.name, "args": step.args or step.tool.args}
        if step.research:
            back = step.research.fallback
            fallback = None
            if back:
                fallback = _tool(back.tool) if back.tool else back.job and self._job(back.job, (*loc, "research"))
            return {"prompt": step.research.prompt, "fallback": fallback}
        if step.gate:
            return {"if": step.gate}
        if step.ask:
            return {"question": step.ask.question, "default": step.ask.default}
        if step.race:
            return {"losers": step.losers}
        return {"todo": self._stopped(step, (*loc, "stop"))}

    def _job(self, job: Job, loc: Loc) -> dict[str, Any]:
        return {
            "host": job.host,
            "run": job.run,
            "gpus": job.gpus,
            "timeout_s": None if job.timeout is None else self._seconds(job.timeout, (*loc, "timeout")),
            "grace_s": self._seconds(job.grace, (*loc, "grace")),
            "env": dict(job.env),
            "cwd": job.cwd,
            "ready": job.ready.model_dump(exclude_none=True) if job.ready else None,
            "keep": job.keep,
            **({"sbatch": job.sbatch} if job.sbatch else {}),
        }

    def _stopped(self, step: Step, loc: Loc) -> str | None:
        known = self._resolve(step.stop or "", loc)
        if len(known) > 1:
            self.problem(loc, f"`stop: {step.stop}` names {len(known)} todos", hint="give this step a `for_each` too")
        elif known and self.graph.members[known[0]].step.kind != "job":
            self.problem(loc, f"`stop: {step.stop}` names a step that is no `job`: there is nothing to stop")
        return known[0] if known else None

    # Values that are known before anything runs

    def _load(self, value: Any, loc: Loc) -> Any:
        try:
            return render_tree(value, self.context, what=f"`{loc[-1]}`")
        except TurnoutError as error:
            self.problem(loc, error.message, hint=error.hint)
            return None

    def _seconds(self, value: float | str, loc: Loc) -> float | None:
        try:
            return seconds(self._load(value, loc))
        except ValueError as error:
            self.problem(loc, f"`{loc[-1]}`: {error}")
            return None


def _tool(tool: Tool) -> dict[str, Any]:
    return {"tool": tool.name, "args": tool.args}


def _key(value: Any, position: int) -> str:
    """What stands for a value in an id and in `todos.<step>[<value>]`: itself, with `-` for what an id may not hold."""
    if isinstance(value, dict):
        value = value.get("name", position)
    elif isinstance(value, list) or value is None:
        value = position
    elif isinstance(value, bool):
        value = str(value).lower()
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", str(value))[:MAX_VALUE].strip("-") or str(position)
