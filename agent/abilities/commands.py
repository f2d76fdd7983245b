"""Commands on hosts: `job` (answered at once with a handle), `run` (waited for a little), `kill`, `logs`.

All of them are jobs of the graph, so a `run` that takes long is already what it has to become: a job that is told of
when it ends. A command that the policy does not simply allow waits behind a question to the operator.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator
from sqlalchemy import select

from agent.abilities.base import MAX_CHARS, Ability, Input, Result, Use, _Answered, fenced, free_id, leave
from agent.core_notice import LEAVE
from agent.events import Add, Cancel, Kill, Op
from agent.playbook_schema import Ready, RetryRule, seconds
from agent.templates import has_template
from state.errors import NotFound, ToolError
from state.models import Job, table
from state.specs import On, Priority, Retry, TodoSpec
from tools.permissions import Decision, decide
from tools.shell import clean_text
from tools.ssh import Host

LONGEST_WAIT_S = 60.0
TAIL_BYTES = 64 * 1024
HostName = Annotated[str, Field(description="A host's name; `local` is the operator's own machine.")]


class After(Input):
    todo: str
    on: On = "success"


class JobInput(Input):
    run: Annotated[str, Field(min_length=1, description="Bash text. Paths are the host's.")]
    host: HostName = "local"
    title: Annotated[str, Field(description="What it is for, in a few words; the operator reads it.")] = ""
    id: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = None
    after: list[After | str] = Field(default_factory=list)
    join: Literal["all", "any"] = "all"
    priority: Priority = "medium"
    gpus: Annotated[int | Literal["all"], Field(description="GPUs to lease; CUDA_VISIBLE_DEVICES is set.")] = 0
    timeout: Annotated[float | str | None, Field(description='Such as "90s" or "6h".')] = None
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    ready: Annotated[
        dict[str, str] | None, Field(description='For a service: {"log": regex}, {"http": url} or {"file": path}')
    ] = None
    keep: Annotated[bool, Field(description="A service that outlives the session.")] = False
    retry: RetryRule | None = None
    template: Annotated[bool, Field(description="Fill in `{{ todos.ID.KEY }}` when it starts.")] = False

    @field_validator("timeout")
    @classmethod
    def _timeout(cls, value: float | str | None) -> float | None:
        return None if value is None else seconds(value)

    @field_validator("ready")
    @classmethod
    def _ready(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        return None if value is None else Ready.model_validate(value).model_dump(exclude_none=True)


class RunInput(Input):
    command: Annotated[str, Field(min_length=1, description="Bash text.")]
    host: HostName = "local"
    wait_s: Annotated[float, Field(gt=0, le=LONGEST_WAIT_S, description="After this it goes on as a job.")] = 10.0
    timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    cwd: str | None = None


class KillInput(Input):
    todo: str
    reason: Annotated[str, Field(min_length=3)]


class LogsInput(Input):
    todo: Annotated[str, Field(description="A todo's id, or a job's.")]
    tail: Annotated[int | None, Field(ge=1, le=2000, description="Only the last lines.")] = None
    offset: Annotated[int | None, Field(ge=0, description="From this byte of the log on.")] = None
    grep: Annotated[str | None, Field(description="Only lines that fit this extended regular expression.")] = None


def judge(use: Use, host: str, command: str, env: Mapping[str, str] | None = None, *, literal: bool = True) -> Decision:
    """May it run? What is only known once a template is filled in is asked about. Raises `ToolError` if it may not."""
    text = command
    if env:
        sets = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        text = f"{sets} bash -c {shlex.quote(command)}"
    decision = decide(use.desk.policy, host, text)
    if decision.verdict == "allow" and not literal and has_template(text):
        decision = Decision("ask", "it holds a template, so what will run is not known yet", "template")
    if decision.verdict == "deny":
        raise ToolError(
            f"not allowed on `{host}`: {decision.why}", hint="find another way, or leave it to the operator"
        )
    return decision


def spec_of(given: JobInput, id: str) -> TodoSpec:
    """The todo of a job."""
    body = {
        "host": given.host, "run": given.run, "gpus": given.gpus, "timeout_s": given.timeout, "grace_s": 10.0,
        "env": given.env, "cwd": given.cwd, "ready": given.ready, "keep": given.keep, "by": "model",
        "literal": not given.template,
    }  # fmt: skip
    retry = Retry(given.retry.times, tuple(given.retry.on)) if given.retry else Retry()
    title = given.title or first_line(given.run)
    return TodoSpec(id, title, "job", body, given.priority, given.join, retry)


def first_line(command: str) -> str:
    """What stands for a command where there is little room."""
    return command.strip().partition("\n")[0][:80]


def edges(after: list[After | str]) -> tuple[tuple[str, On], ...]:
    return tuple((edge, "success") if isinstance(edge, str) else (edge.todo, edge.on) for edge in after)


def guarded(use: Use, adds: list[tuple[Add, Decision]]) -> list[Op]:
    """The ops that add todos, those that must be asked for behind one question."""
    asked = [(add, decision) for add, decision in adds if decision.verdict == "ask"]
    if not asked:
        return [add for add, _ in adds]
    first, decision = asked[0]
    commands = "\n".join(str(add.spec.body.get("run", "")) for add, _ in asked)
    hosts = ", ".join(dict.fromkeys(str(add.spec.body.get("host", "local")) for add, _ in asked))
    what = f"run on `{hosts}`: {commands}"
    question = leave(use, what, decision, host=str(first.spec.body.get("host", "local")), command=commands)
    door: tuple[str, On] = (question.spec.id, "success")
    behind = [Add(add.spec, (*add.after, door)) if decision.verdict == "ask" else add for add, decision in adds]
    return [question, *behind]


async def job(use: Use, given: JobInput) -> _Answered:
    decision = judge(use, given.host, given.run, given.env, literal=not given.template)
    id = given.id or free_id(use.graph.state, "job")
    return await use.edit(guarded(use, [(Add(spec_of(given, id), edges(given.after)), decision)]))


async def run(use: Use, given: RunInput) -> Result:
    decision = judge(use, given.host, given.command)
    if use.desk.graph is None:
        return await _quick(use, given)
    id = free_id(use.graph.state, "run")
    body = {"host": given.host, "run": given.command, "timeout_s": given.timeout_s, "grace_s": 10.0}
    body |= {"cwd": given.cwd, "by": "model", "call": use.id, "literal": True}
    spec = TodoSpec(id, first_line(given.command), "job", body, priority="high")
    outcomes = await use.quiet_edit(guarded(use, [(Add(spec), decision)]))
    if "error" in outcomes[-1]:
        raise ToolError(outcomes[-1]["error"])
    if await use.graph.ended(id, given.wait_s):
        return await outcome_of(use, id)
    node = use.graph.state.graph[id]
    asks = decision.verdict == "ask" and node.status == "pending"
    why = (
        "waits for the operator's leave"
        if asks
        else "goes on"
        if node.status == "in_progress"
        else "waits for its turn"
    )
    return Result(f"`{id}` {why} as a todo of the graph. A notice tells when it has ended; `logs` shows what it says.")


async def _quick(use: Use, given: RunInput) -> Result:
    """A subagent's command: it only reads, and is bounded in time and output."""
    host = await use.desk.host(given.host)
    done = await host.run(
        given.command, timeout_s=min(given.timeout_s, LONGEST_WAIT_S), max_output=MAX_CHARS, cwd=given.cwd
    )
    text = clean_text(done.stdout) + (f"\n[stderr]\n{clean_text(done.stderr)}" if done.stderr else "")
    end = "timed out" if done.timed_out else done.signal or f"exit code {done.rc}"
    notes = "".join(f"\n{note}" for note in done.notes)
    size = done.stdout_bytes + done.stderr_bytes
    return Result(f"{end}, {size:,} bytes of output{notes}\n{fenced(text)}", is_error=not done.ok)


async def outcome_of(use: Use, id: str) -> Result:
    """The result of a `run` whose job has ended: how, and what it wrote."""
    state = use.graph.state
    node, info = state.graph[id], state.todos[id]
    told = use.graph.notice_of(id)
    job = state.last_job(id)
    if job is None:
        door = next((a for a, _ in node.into if a.id.startswith(LEAVE)), None)
        why = state.todos[door.id].reason if door else info.reason
        told += use.graph.notice_of(door.id) if door else ()
        return Result(f"not run: {why or node.status}", is_error=True, notices=told)
    host = await use.desk.host(str(info.body["host"]))
    text, size = await tail_of(host, job, TAIL_BYTES)
    end = "exit code 0" if node.status == "completed" else info.reason or node.status
    whole = {"bytes": size, "where": f"log of job {job} on {info.body['host']}"} if size > TAIL_BYTES else None
    return Result(
        f"{end}, {size:,} bytes of output (job `{job}`)\n{fenced(text)}",
        node.status != "completed",
        whole,
        notices=told,
    )


async def tail_of(host: Host, job: str, limit: int) -> tuple[str, int]:
    """The head and tail of a log as text, and its size in bytes."""
    tail = await host.read_log(job, -limit, limit)
    if tail.size <= limit:
        return clean_text(tail.data), tail.size
    head = await host.read_log(job, 0, limit // 4)
    out = tail.size - len(head.data) - len(tail.data)
    return f"{clean_text(head.data)}\n[... {out:,} bytes left out ...]\n{clean_text(tail.data)}", tail.size


async def kill(use: Use, given: KillInput) -> _Answered | Result:
    state = use.graph.state
    node = state.graph[given.todo]
    body = state.todos[given.todo].spec.body
    live = state.live_job(given.todo)
    if body.get("by") == "model" or live is None:
        op: Op = Kill(given.todo, given.reason) if node.status == "completed" else Cancel(given.todo, given.reason)
        return await use.edit([op])
    host = str(state.live_job(given.todo).host)  # type: ignore[union-attr]
    what = f"stop `{given.todo}` on `{host}`: {given.reason}"
    question = leave(
        use, what, Decision("ask", "it was started by the operator"), host=host, command=f"stop {given.todo}"
    )
    stop = TodoSpec(free_id(state, "stop"), f"Stop {given.todo}", "stop", {"todo": given.todo, "by": "model"})
    return await use.edit([question, Add(stop, ((question.spec.id, "success"),))])


async def find_job(use: Use, name: str) -> tuple[str, str]:
    """The newest job of a todo, or the job of that id; with its host. Raises `NotFound`."""
    jobs = table(Job).c
    mine = jobs.session == use.desk.session
    query = select(jobs.id, jobs.host).where((mine & (jobs.todo == name)) | (jobs.id == name))
    row = await use.read(lambda conn: conn.execute(query.order_by(jobs.submitted.desc()).limit(1)).one_or_none())
    if row is None:
        raise NotFound(f"no job of a todo `{name}`", hint="the todo may not have started yet")
    return row.id, row.host


async def logs(use: Use, given: LogsInput) -> Result:
    job, where = await find_job(use, given.todo)
    host = await use.desk.host(where)
    if given.grep is not None:
        return await _grep(host, job, given.grep)
    if given.offset is not None:
        piece = await host.read_log(job, given.offset, MAX_CHARS)
        rest = f"; {piece.size - piece.end:,} bytes follow from offset {piece.end}" if piece.end < piece.size else ""
        return Result(
            f"bytes {piece.offset:,} to {piece.end:,} of {piece.size:,}{rest}\n{fenced(clean_text(piece.data))}"
        )
    text, size = await tail_of(host, job, TAIL_BYTES)
    if given.tail is not None:
        text = "\n".join(text.splitlines()[-given.tail :])
    return Result(f"log of job `{job}` on `{where}`, {size:,} bytes\n{fenced(text)}")


async def _grep(host: Host, job: str, pattern: str) -> Result:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ToolError(f"`{pattern}` is no regular expression: {error}") from error
    path = f"{(await host.hello()).root}/jobs/{job}/log"
    search = f"-a -E -e {shlex.quote(pattern)} {shlex.quote(path)}"
    done = await host.run(f"grep -c {search}; grep -n {search}", timeout_s=60.0, max_output=MAX_CHARS)
    count, _, found = clean_text(done.stdout).partition("\n")
    return Result(f"{count.strip() or 0} lines fit\n{fenced(found)}")


JOB = Ability(
    "job",
    "Start a command on a host as a job: answered at once with its todo; a notice tells when it has ended."
    " Use it for what takes longer than some seconds, and for services (`ready`). Jobs run at the same time.",
    JobInput,
    job,
)
RUN = Ability(
    "run",
    "Run a quick command on a host and see its output. What takes longer than `wait_s` goes on as a job by itself.",
    RunInput,
    run,
    deadline_s=LONGEST_WAIT_S + 30,
)
KILL = Ability("kill", "End the job of a todo, with all its processes.", KillInput, kill)
LOGS = Ability(
    "logs", "Read the log of a job: its end, a part of it, or the lines that fit.", LogsInput, logs, read_only=True
)
