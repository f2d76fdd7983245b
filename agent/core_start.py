"""How a todo starts: what each kind of it means, and what of it is stored before anything is done.

    start(core, todo)          # raises TurnoutError: then it has not begun, and fails with that reason

A gate and a race are decided here and now; a job, a tool, a question, a subagent begin, and an event tells how they
end. Part of `agent/core.py`, and as pure: the changes go through the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.attempt import job_id, job_spec
from agent.events import Answered
from agent.infos import JobInfo, TodoInfo
from agent.templates import evaluate, render_tree
from state import changes as c
from state import conversation as talk
from state.errors import UsageError

if TYPE_CHECKING:
    from agent.core import Core

_NO_MODEL = "give the step a `fallback`: a tool or a job that writes the same result"


def start(core: Core, todo: str) -> None:
    """Start a todo that is ready. Raises `TurnoutError` when it cannot; then it has not begun."""
    info = core.state.todos[todo]
    body, context = core.state.body(todo), core.state.context(todo)
    match core.state.run_as(todo):
        case "gate":
            value = evaluate(body["if"], context)
            reason = None if value else f"`{body['if']}` does not hold"
            core.end(todo, "completed" if value else "failed", result={"value": bool(value)}, reason=reason)
        case "race":
            core.end(todo, "completed", result=_winner(core, todo))
        case "ask":
            _begin(core, todo)
            question = body["question"] if body.get("literal") else render_tree(body["question"], context)
            _ask(core, todo, str(question), body.get("default", "no"))
        case "stop":
            _begin(core, todo)
            _stop_job(core, todo, body["todo"])
        case "tool":
            render_tree(body.get("args", {}), context)  # what cannot be rendered fails before it begins
            core.state.tools.add(todo)
            _begin(core, todo)
        case "think":
            prompt = body["prompt"] if body.get("literal") else render_tree(body["prompt"], context)
            core.state.tools.add(todo)
            _begin(core, todo)
            core.emit(talk.child_started(core.child(todo), title=info.spec.title, prompt=str(prompt), todo=todo))
        case "research":
            raise UsageError("no model is configured and the step has no `fallback`", hint=_NO_MODEL)
        case _:
            _submit(core, todo, info, context)


def _begin(core: Core, todo: str, host: str | None = None) -> None:
    info = core.state.todos[todo]
    info.attempts += 1
    t = core.state.graph.start(todo)
    core.emit(c.todo_status(todo, t.was, t.now, attempt=info.attempts, host=host))


def _submit(core: Core, todo: str, info: TodoInfo, context: Mapping[str, Any]) -> None:
    if info.host is None:
        core.state.place(todo)  # it could not be placed when it was queued, and this says why
    host = str(info.host)
    gpus = core.state.choose_gpus(host, info.gpus)
    spec = job_spec(todo, info.body, {**context, "attempt": info.attempts + 1}, core.state, gpus)
    id = job_id(core.state.session, todo, info.attempts + 1)
    _begin(core, todo, host)
    job = JobInfo(
        id=id, todo=todo, host=host, spec=spec, gpus=gpus, state="submitted", is_service=bool(spec.get("ready"))
    )
    core.state.take(job, keep=bool(info.body.get("keep")))
    core.emit(c.job_submitted(id, todo=todo, attempt=info.attempts, host=host, spec=spec, gpus=gpus))


def _ask(core: Core, todo: str, question: str, default: str) -> None:
    core.state.questions[todo] = question
    core.emit(c.approval_asked(todo, question, default))
    if core.state.settings.get("yes"):
        core.answered(Answered(todo, "yes", "--yes"))


def _stop_job(core: Core, todo: str, of: str) -> None:
    job = core.state.live_job(of)
    if job is None:
        core.end(todo, "completed", result={"job": None, "ended": "had ended before"})
        return
    core.state.stops.setdefault(job.id, []).append(todo)
    core.kill(of, f"stopped by `{todo}`")


def _winner(core: Core, race: str) -> dict[str, Any]:
    first = next((n for n, _ in core.state.graph[race].into if n.status == "completed"), None)
    if first is None:
        raise UsageError(f"race `{race}` has no members", hint="name the todos that race: `race: [a, b]`")
    return {**(core.state.todos[first.id].result or {}), "winner": first.id}
