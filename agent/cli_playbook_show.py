"""What a playbook is, what is wrong with it, and what a run of it would do. Nothing is stored and no host is asked."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from agent import playbook
from agent.board import PLANNED, Board, BoardTodo
from agent.cli_frame import database, say, say_json
from agent.host_names import added, unknown_hosts
from agent.load import creation
from agent.painter import to_ascii
from agent.picture import draw
from agent.playbook_errors import together
from agent.playbook_estimate import estimate
from agent.playbook_params import type_of
from agent.playbook_schema import Param, Playbook, Step, parse
from agent.playbook_unknown import Unknown, unknown_to_a_dry_run
from agent.playbook_yaml import read
from agent.screen import screen
from agent.tables import columns
from agent.templates import render, render_tree
from state.db import Database
from state.errors import PlaybookError, TurnoutError
from state.specs import Plan
from tools import builtin  # noqa: F401 - registers the tools
from tools.base import TOOLS

_EXPRESSION = re.compile(r"\{\{.*?\}\}", re.DOTALL)


def catalogue(*, json: bool) -> None:
    """Names, titles and files."""
    found = playbook.catalogue()
    if json:
        say_json([{"name": name, "title": title, "file": str(path)} for name, title, path in found])
    elif found:
        columns(["playbook", "title", "file"], [[name, title, str(path)] for name, title, path in found], screen())
    else:
        say("no playbook has a name; `turnout run FILE.yaml` takes a path")


def check(name: str, *, json: bool) -> int:
    """All problems, or how much there is. Returns the exit code."""
    path = playbook.find(name)
    problems = playbook.check(path, tools=TOOLS)
    if json:
        told = [{"file": p.file, "line": p.line, "error": p.message, "hint": p.hint} for p in problems]
        say_json({"file": str(path), "ok": not problems, "problems": told})
    elif problems:
        for problem in problems:
            say(problem.message + "".join(f"\n    {line}" for line in (problem.hint or "").splitlines()))
        say(f"{len(problems)} problem{'s' * (len(problems) > 1)}")
    else:
        steps = _parsed(name)[0].steps
        todos = f"{len(steps)} steps" + (", some of them for each of several values" * any(s.for_each for s in steps))
        say(f"{path}: OK, {todos}")
    return PlaybookError.exit_code if problems else 0


def show(name: str, *, json: bool) -> None:
    """Parameters and the graph of steps. Raises `PlaybookError`."""
    found, path = _parsed(name)
    if json:
        shown = found.model_dump(mode="json", by_alias=True, exclude_none=True)
        say_json({"file": path, **shown})
        return
    console = screen()
    console.print(Text.assemble((found.name, "bold"), f"  {found.title or ''}"), soft_wrap=True)
    console.print(Text(path, "dim"), soft_wrap=True)
    if found.description:
        console.print(found.description.strip(), soft_wrap=True)
    if found.params:
        console.print("\nparameters", style="bold")
        columns(
            ["name", "type", "default", ""],
            [[n, type_of(p), _default(p), _about(p)] for n, p in found.params.items()],
            console,
        )
    console.print("\nsteps", style="bold")
    _print(_board(found), console)


def dry_run(name: str, sets: Mapping[str, str], *, host: str | None, db: str | None, json: bool) -> int:
    """What `turnout run` would run: the todos in order, with commands as far as they are known. Returns 0."""
    plan = playbook.load(playbook.find(name), sets, host=host, tools=TOOLS)
    board = Board(session="", title=plan.title, playbook=plan.name, params=plan.params)
    for change in creation(plan, {"params": dict(plan.params)}):
        board.apply(change.kind, change.payload, 0.0)
    todos = [_would(board, todo, plan) for todo in board.todos.values()]
    unknown = unknown_hosts(plan, _added_hosts(db))
    if json:
        told = {"playbook": plan.name, "title": plan.title, "source": plan.source, "params": plan.params}
        say_json({**told, "todos": todos, "estimate": estimate(plan), "unknown_hosts": list(unknown)})
        return 0
    console = screen()
    console.print(Text.assemble((plan.title, "bold"), f"  {plan.name}"), soft_wrap=True)
    for key, value in plan.params.items():
        console.print(Text(f"  {key} = {_shown(value)}".rstrip()), soft_wrap=True)
    board.status = PLANNED
    console.print()
    _print(board, console)
    for told in todos:
        _print_would(told, console)
    if estimated := estimate(plan):
        console.print("\nestimate", style="bold")
        console.print(Text(estimated), soft_wrap=True)
    for missing, why in unknown.items():
        console.print(Text(f"\n! there is no host `{missing}`: {why}", "bold yellow"), soft_wrap=True)
        console.print(Text(f"  `turnout hosts add {missing} [USER@]ADDRESS` adds one", "green"), soft_wrap=True)
    console.print("\nnothing was run: leave `--dry-run` out to run it")
    return 0


def _added_hosts(url: str | None) -> set[str]:
    """The hosts that were added; none where there is no database, which a dry run does not make."""
    if not Database.exists(url):
        return set()
    with database(url) as db:
        return db.read(added)


def _would(board: Board, todo: BoardTodo, plan: Plan) -> dict[str, Any]:
    """A todo as it would run; a text that names a result is left as it is written."""
    context = {**plan.params, "params": plan.params, "playbook": plan.name, "todos": {}, "attempt": 1}

    def known(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: known(item) for key, item in value.items()}
        try:
            return render_tree(value, context)
        except TurnoutError:
            if not isinstance(value, str):
                return value
            return branch(value) if "{%" in value else _EXPRESSION.sub(one, value)

    def branch(text: str) -> str:
        try:
            return render(text, {**unknown_to_a_dry_run(), **context, "todos": Unknown("todos")})
        except TurnoutError:
            return text

    def one(expression: re.Match[str]) -> str:
        try:
            return render(expression[0], context)
        except TurnoutError:
            return expression[0]

    after = [{"todo": src, "on": on} for src, on in todo.after]
    host = board.host_of(todo) if todo.work.get("host") else None
    body = known(todo.body)
    return {
        "id": todo.id,
        "title": todo.title,
        "kind": todo.kind,
        "host": host,
        "after": after,
        "join": todo.join,
        "body": body,
    }


def _print_would(told: Mapping[str, Any], console: Console) -> None:
    where = f" on {told['host']}" if told["host"] else ""
    console.print(Text.assemble("\n", (told["id"], "bold"), f"  {told['kind']}{where}"), soft_wrap=True)
    if told["after"]:
        edges = [edge["todo"] + ("" if edge["on"] == "success" else f" (on {edge['on']})") for edge in told["after"]]
        console.print(
            f"  after {'any' if told['join'] == 'any' else 'all'} of: {', '.join(edges)}", style="dim", soft_wrap=True
        )
    for key, value in told["body"].items():
        if key == "host" or value in (None, "", 0, {}, False):
            continue
        text = str(value).rstrip()
        console.print(Text(f"  {key}: {text}" if "\n" not in text else f"  {key}:"), soft_wrap=True)
        if "\n" in text:
            console.print(Text("\n".join(f"    {line}" for line in text.splitlines())), soft_wrap=True)


def _parsed(name: str) -> tuple[Playbook, str]:
    path = playbook.find(name)
    found, problems = parse(read(path))
    if found is None:
        raise together(problems)
    return found, str(path)


def _default(param: Param) -> str:
    if isinstance(param.default, list):
        return ",".join(map(str, param.default))
    return "(must be set)" if param.required else "" if param.default is None else str(param.default)


def _shown(value: object) -> str:
    """A parameter's value in the words of `--set`; nothing for one that is not set."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return "" if value is None else str(value)


def _about(param: Param) -> str:
    choices = f"one of {', '.join(map(str, param.enum))}" if param.enum else ""
    return "; ".join(part for part in (choices, param.help or "") if part)


def _board(found: Playbook) -> Board:
    """The steps as todos that have not begun; a step with `for_each` is one of them."""
    board = Board(session="", title=found.title or found.name, status=PLANNED)
    for place, step in enumerate(found.steps):
        title = (step.title or "") + (" (for each)" if step.for_each else "")
        board.todos[step.id] = BoardTodo(
            step.id, title.strip(), step.kind, place, join="any" if step.race else step.join
        )
    for step in found.steps:
        board.todos[step.id].after = [edge for edge in _edges(step) if edge[0] in board.todos]
    return board


def _edges(step: Step) -> list[tuple[str, str]]:
    named = [(edge.todo, edge.on) for edge in step.after] + [(member, "success") for member in step.race or ()]
    return [(todo.partition("@")[0], on) for todo, on in named]


def _print(board: Board, console: Console) -> None:
    for line in draw(board, width=console.width, height=None, now=time.time()):
        console.print(to_ascii(line) if console.options.ascii_only else line, soft_wrap=True)
