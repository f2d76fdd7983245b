"""The todo graph as the model edits it: `todo`, `task`, `ask`, `playbook`.

Each call is one edit, whose outcome is stored with it. Commands within it are judged like those of `job`, and one
question to the operator stands before all that must be asked for.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from anyio import to_thread
from pydantic import Field

from agent.abilities.base import Ability, Input, Result, Use, _Answered, fenced, free_id, leave
from agent.abilities.commands import After, HostName, JobInput, edges, guarded, judge, spec_of
from agent.core_notice import LEAVE
from agent.events import Add, Alter, Cancel, Link, Op, Reset
from agent.joining import joining
from agent.playbook_find import catalogue
from agent.playbook_schema import RetryRule
from state.errors import ToolError
from state.specs import On, Priority, Retry, TodoSpec
from tools.base import TOOLS
from tools.permissions import Decision, decide_argv

READING_TOOLS = frozenset(
    {"probe", "diagnose", "translate", "evidence", "engine_find", "engine_health", "engine_metrics"}
)
READING_TOOLS |= {"gpus_free", "gpu_room", "engine_why", "engine_findings"}
NO_QUESTION = Decision("allow", "the graph is the model's to edit")
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class ToolStep(Input):
    name: str
    args: dict[str, Any] = Field(default_factory=dict)


class NewTodo(Input):
    """A todo; exactly one of job, tool, research, gate, ask, race and stop says what it does."""

    id: Id
    title: str = ""
    priority: Priority = "medium"
    after: list[After | str] = Field(default_factory=list)
    join: Literal["all", "any"] = "all"
    retry: RetryRule | None = None
    job: JobInput | None = None
    tool: Annotated[ToolStep | None, Field(description="One of Turnout's own tools.")] = None
    research: Annotated[str | None, Field(description="The whole prompt of a subagent that reads and reports.")] = None
    gate: Annotated[str | None, Field(description="An expression, such as `todos.bench.multiplier >= 1.0`.")] = None
    ask: Annotated[str | None, Field(description="A yes-or-no question to the operator.")] = None
    race: Annotated[list[str] | None, Field(description="Todos of which the first success wins.")] = None
    losers: Literal["cancel", "keep"] = "cancel"
    stop: Annotated[str | None, Field(description="A todo whose service or job is to be stopped.")] = None


class Changed(Input):
    id: str
    title: str | None = None
    priority: Priority | None = None
    gate: str | None = None


class Linked(Input):
    todo: str
    after: str
    on: On = "success"


class Cancelled(Input):
    id: str
    reason: str


class TodoInput(Input):
    add: list[NewTodo] = Field(default_factory=list)
    change: list[Changed] = Field(default_factory=list)
    link: list[Linked] = Field(default_factory=list)
    cancel: list[Cancelled] = Field(default_factory=list)
    retry: Annotated[list[str], Field(default_factory=list, description="Ended todos to try again.")]
    show: Annotated[list[str], Field(default_factory=list, description="Todos to see whole, with their results.")]


class TaskInput(Input):
    title: Annotated[str, Field(min_length=1)]
    prompt: Annotated[
        str, Field(min_length=20, description="Everything the subagent has to know; it sees nothing else.")
    ]
    id: Id | None = None
    after: list[After | str] = Field(default_factory=list)
    priority: Priority = "medium"


class AskInput(Input):
    question: Annotated[str, Field(min_length=3)]
    options: Annotated[
        list[str], Field(default_factory=list, description="Answers to choose from; others are allowed.")
    ]


class PlaybookInput(Input):
    name: Annotated[str, Field(description="A playbook's name, or the path of its file on the operator's machine.")]
    set: Annotated[dict[str, str | int | float | bool], Field(default_factory=dict, description="Its parameters.")]
    host: HostName | None = None
    after: Annotated[list[After | str], Field(default_factory=list, description="What its first todos wait for.")]


async def todo(use: Use, given: TodoInput) -> _Answered | Result:
    if given.show:
        return Result(fenced("\n".join(_shown(use, id) for id in given.show)))
    ops: list[Op] = guarded(use, [_new(use, new) for new in given.add])
    ops += [Link(link.after, link.todo, link.on) for link in given.link]
    for changed in given.change:
        body = {"if": changed.gate} if changed.gate else {}
        ops.append(Alter(changed.id, changed.title, changed.priority, body))
    ops += [Cancel(cancelled.id, cancelled.reason) for cancelled in given.cancel if _mine(use, cancelled.id)]
    ops += [Reset((id,)) for id in given.retry]
    if not ops:
        raise ToolError("the call changes nothing", hint="give `add`, `change`, `link`, `cancel`, `retry` or `show`")
    return await use.edit(ops)


def _mine(use: Use, id: str) -> bool:
    """Cancelling what has begun and is the operator's wants leave, which `kill` asks for."""
    state = use.graph.state
    live = id in state.graph and state.live_job(id) is not None
    if live and state.todos[id].spec.body.get("by") != "model":
        raise ToolError(f"`{id}` runs, and is the operator's", hint="the tool `kill` asks the operator for leave")
    return True


def _new(use: Use, new: NewTodo) -> tuple[Add, Decision]:
    kinds = [k for k in ("job", "tool", "research", "gate", "ask", "race", "stop") if getattr(new, k) is not None]
    if len(kinds) != 1:
        raise ToolError(
            f"todo `{new.id}` must have exactly one of job, tool, research, gate, ask, race, stop; it has {kinds}"
        )
    kind: Any = kinds[0]
    decision = NO_QUESTION
    after = edges(new.after)
    retry = Retry(new.retry.times, tuple(new.retry.on)) if new.retry else Retry()
    if new.job is not None:
        decision = judge(use, new.job.host, new.job.run, new.job.env, literal=not new.job.template)
        spec = spec_of(new.job, new.id)
        body, after = dict(spec.body), after or edges(new.job.after)
    else:
        body, decision = _body(use, new)
    join: Any = "any" if new.race is not None else new.join
    if new.race is not None:
        after = tuple((member, "success") for member in new.race)
    title = new.title or (new.job.title if new.job else "") or new.id
    return Add(TodoSpec(new.id, title, kind, {**body, "by": "model"}, new.priority, join, retry), after), decision


def _body(use: Use, new: NewTodo) -> tuple[dict[str, Any], Decision]:
    if new.tool is not None:
        if new.tool.name not in TOOLS:
            raise ToolError(f"there is no tool `{new.tool.name}`", hint="there are: " + ", ".join(sorted(TOOLS)))
        decision = NO_QUESTION
        if new.tool.name not in READING_TOOLS:
            host = str(new.tool.args.get("host", "local"))
            decision = decide_argv(use.desk.policy, host, (f"turnout:{new.tool.name}",))
        return {
            "tool": new.tool.name,
            "args": new.tool.args,
            "run": f"{new.tool.name} {json.dumps(new.tool.args)}",
        }, decision
    if new.research is not None:
        return {"prompt": new.research, "literal": True, "fallback": None}, NO_QUESTION
    if new.gate is not None:
        return {"if": new.gate}, NO_QUESTION
    if new.ask is not None:
        return {"question": new.ask, "default": "no", "literal": True}, NO_QUESTION
    if new.race is not None:
        return {"losers": new.losers}, NO_QUESTION
    return _stop(use, str(new.stop))


def _stop(use: Use, of: str) -> tuple[dict[str, Any], Decision]:
    state = use.graph.state
    mine = of not in state.graph or state.todos[of].spec.body.get("by") == "model"
    decision = NO_QUESTION if mine else Decision("ask", f"`{of}` was started by the operator or a playbook", "stop")
    return {"todo": of, "run": f"stop {of}"}, decision


def _shown(use: Use, id: str) -> str:
    state = use.graph.state
    node, info = state.graph[id], state.todos[id]
    told: dict[str, Any] = {
        "id": id,
        "title": info.spec.title,
        "kind": node.kind,
        "status": node.status,
        "priority": node.priority,
    }
    told |= {"after": [f"{a.id} ({on})" for a, on in node.into], "before": [b.id for b, _ in node.out]}
    told |= {"body": dict(info.spec.body), "attempts": info.attempts, "reason": info.reason, "result": info.result}
    return json.dumps(told, ensure_ascii=False, indent=1)


async def task(use: Use, given: TaskInput) -> _Answered:
    if not use.graph.state.thinks:
        raise ToolError("no model is configured for subagents")
    body = {"prompt": given.prompt, "literal": True, "fallback": None, "by": "model"}
    id = given.id or free_id(use.graph.state, "task")
    return await use.edit([Add(TodoSpec(id, given.title, "research", body, given.priority), edges(given.after))])


async def ask(use: Use, given: AskInput) -> _Answered:
    body = {"question": given.question, "free": True, "options": given.options, "literal": True, "by": "model"}
    spec = TodoSpec(
        free_id(use.graph.state, "ask"), given.question[:120], "ask", {**body, "default": "no"}, priority="high"
    )
    return await use.edit([Add(spec)])


async def bring(use: Use, given: PlaybookInput) -> _Answered:
    sets = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.set.items()}
    ops = await joining(use.graph.state, given.name, sets, given.host)
    decision = decide_argv(use.desk.policy, given.host or "local", ("turnout:playbook", given.name))
    if decision.verdict == "allow" and given.name not in await to_thread.run_sync(_named):
        decision = Decision("ask", "it is a file and no playbook that is known by name", "playbook")
    if decision.verdict == "deny":
        raise ToolError(f"the playbook `{given.name}` may not be run: {decision.why}")
    first = list(edges(given.after))
    if decision.verdict == "ask":
        words = " ".join([f"turnout run {given.name}", *(f"--set {k}={v}" for k, v in sets.items())])
        question = leave(use, f"run the playbook `{given.name}`", decision, host=given.host or "local", command=words)
        ops = [question, *ops]
        first.append((question.spec.id, "success"))
    inner = {op.spec.id for op in ops if isinstance(op, Add)}
    return await use.edit([_behind(op, first, inner) for op in ops])


def _named() -> set[str]:
    return {name for name, _, _ in catalogue()}


def _behind(op: Op, first: list[tuple[str, On]], inner: set[str]) -> Op:
    """A todo of the playbook that waits for nothing within it waits for what stands before the playbook."""
    if not isinstance(op, Add) or op.spec.id.startswith(LEAVE) or any(src in inner for src, _ in op.after):
        return op
    return Add(op.spec, (*op.after, *first))


TODO = Ability(
    "todo",
    "Edit the todo graph, which the scheduler executes: a todo starts the moment that what it waits for allows it,"
    " and todos that do not wait for each other run at the same time. Results are seen as `todos.ID.KEY`."
    " Answered with what became of each edit.",
    TodoInput,
    todo,
)
TASK = Ability(
    "task",
    "Start a subagent that reads, researches and reports. Answered at once; its report comes as a notice.",
    TaskInput,
    task,
)
ASK = Ability("ask", "Ask the operator. Answered at once; the operator's answer comes as a notice.", AskInput, ask)
PLAYBOOK = Ability(
    "playbook",
    "Bring a playbook into the graph: its todos run beside everything else.",
    PlaybookInput,
    bring,
    deadline_s=120,
)
