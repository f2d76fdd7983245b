"""A session in memory: the graph, what is running, who waits for what, and the limits.

`SessionState` is what `agent/core.py` steps; `agent/load.py` builds it from the tables. It answers questions (which
todo is next, which GPUs are free, what a template may see) and keeps books; it decides nothing and does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from agent.infos import HostInfo, JobInfo, TodoInfo
from agent.templates import render_tree
from state.changes import Change
from state.errors import TurnoutError, UsageError
from state.graph import Graph, Node
from state.specs import TERMINAL, TodoSpec
from tools.remote.files import folder_of

MAX_TOOLS = 8
"""Tools that run at once in one session. They run in this process; jobs are limited per host."""

Queue = tuple[str, str]
"""What a ready todo waits for: ("now", ""), ("tool", ""), ("think", ""), ("cpu", host) or ("gpu", host)."""


@dataclass
class SessionState:
    """One session. See the module's text for who writes it."""

    session: str
    settings: Mapping[str, Any]
    status: str = "running"
    reason: str | None = None
    graph: Graph = field(default_factory=Graph)
    todos: dict[str, TodoInfo] = field(default_factory=dict)
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    hosts: dict[str, HostInfo] = field(default_factory=dict)
    leases: dict[tuple[str, int], str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    tools: set[str] = field(default_factory=set)
    stops: dict[str, list[str]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    probes_wanted: set[str] = field(default_factory=set)
    stopping: bool = False
    paused: bool = False
    thinks: bool = False
    max_children: int = 20
    notices: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    open_todos: int = 0
    results: dict[str, Any] = field(default_factory=dict)
    _job_of: dict[str, str] = field(default_factory=dict)
    _load: Counter[str] = field(default_factory=Counter)
    _queues: dict[Queue, list[tuple[tuple[int, int], str]]] = field(default_factory=dict)
    _queued: set[str] = field(default_factory=set)

    @property
    def stays(self) -> bool:
        """Whether the session goes on when nothing is left to do: somebody talks to it."""
        return bool(self.settings.get("stay"))

    @property
    def told(self) -> bool:
        """Whether a model is to hear how todos end."""
        return bool(self.settings.get("told"))

    def run_as(self, todo: str) -> str:
        """The kind to run a todo as: research is `think` where a model is configured, else its fallback."""
        info = self.todos[todo]
        return "think" if self.thinks and info.spec.kind == "research" and not info.fell_back else info.run_as

    def body(self, todo: str) -> Mapping[str, Any]:
        """The body that goes with `run_as`."""
        info = self.todos[todo]
        return info.spec.body if self.run_as(todo) == "think" else info.body

    # Books

    def add(self, spec: TodoSpec, position: int) -> Node:
        """A new todo, in the graph and in the books."""
        node = Node(spec.id, position, kind=spec.kind, priority=spec.priority, join=spec.join)
        self.graph.add(node)
        self.todos[spec.id] = TodoInfo(spec)
        self.open_todos += 1
        return node

    def count(self, change: Change) -> None:
        """Keep the number of open todos right."""
        if change.kind == "todo.status":
            was, now = change.payload["was"] in TERMINAL, change.payload["now"] in TERMINAL
            self.open_todos += was - now

    def take(self, job: JobInfo, *, keep: bool = False) -> None:
        """A job now exists: book its place on the host and its GPUs. `keep` lets it outlive the session."""
        self.jobs[job.id] = job
        self._job_of[job.todo] = job.id
        self._load[job.host] += 1
        for gpu in job.gpus:
            self.leases[job.host, gpu] = job.id
        if keep:
            self.kept.add(job.id)

    def release(self, job: JobInfo) -> None:
        """The job has ended: give back what it held."""
        del self.jobs[job.id]
        self._load[job.host] -= 1
        self.kept.discard(job.id)
        for gpu in job.gpus:
            self.leases.pop((job.host, gpu), None)

    def live_job(self, todo: str) -> JobInfo | None:
        return self.jobs.get(self._job_of.get(todo, ""))

    def last_job(self, todo: str) -> str | None:
        """The id of the newest job of a todo, whether it still runs or not, as far as this process has seen it."""
        return self._job_of.get(todo)

    def load_scope(self, loaded: Mapping[str, Any]) -> None:
        """A playbook joined the session: its parameters, payload and hosts are known from now on."""
        scopes = {**self.settings.get("scopes", {}), loaded["scope"]: dict(loaded)}
        hosts = {**self.settings.get("hosts", {}), **loaded.get("hosts", {})}
        self.settings = {**self.settings, "scopes": scopes, "hosts": hosts}

    def scope(self, todo: str) -> Mapping[str, Any]:
        """The playbook that a todo came with: `prefix`, `params`, `payload`; the session's own where it names none."""
        name = self.todos[todo].spec.body.get("scope")
        found: Mapping[str, Any] = self.settings.get("scopes", {}).get(name, self.settings)
        return found

    def note_result(self, todo: str) -> None:
        """Make a todo's result visible to templates; a member of a group is seen under its value."""
        info = self.todos[todo]
        if info.result is None:
            return
        if info.spec.group:
            self.results.setdefault(info.spec.group, {})[todo.partition("@")[2]] = info.result
        else:
            self.results[todo] = info.result

    def forget_result(self, todo: str) -> None:
        """A todo that is to run again has no result."""
        group = self.todos[todo].spec.group
        (self.results.get(group, {}) if group else self.results).pop(todo.partition("@")[2] if group else todo, None)

    def unhandled_failures(self) -> list[str]:
        """Failed todos whose failure nothing in the graph answers: no failure edge, no race or hedge that was won."""
        return [
            node.id
            for node in self.graph.nodes.values()
            if node.status == "failed"
            and not any(
                on == "failure" or (after.join == "any" and after.status == "completed") for after, on in node.out
            )
        ]

    # Waiting

    def enqueue(self, node: Node) -> None:
        """Put a ready todo where it waits for its turn; not before the job of an earlier attempt has ended."""
        if node.id in self._queued or self.live_job(node.id) is not None:
            return
        self._queued.add(node.id)
        heappush(self._queues.setdefault(self._queue_of(node.id), []), (node.rank, node.id))

    def requeue(self, node: Node) -> None:
        """A waiting todo's priority or body has changed: look again where it waits."""
        if node.id in self._queued:
            for queue, heap in self._queues.items():
                self._queues[queue] = [entry for entry in heap if entry[1] != node.id]
                heapify(self._queues[queue])
            self._queued.discard(node.id)
        if node.is_ready:
            self.enqueue(node)

    def _queue_of(self, todo: str) -> Queue:
        info, kind = self.todos[todo], self.run_as(todo)
        if kind in ("tool", "think"):
            return kind, ""
        if kind != "job":
            return "now", ""
        try:
            return ("gpu" if self.place(todo) else "cpu"), str(info.host)
        except TurnoutError:
            info.host = None
            return "now", ""  # starting it meets the same error and fails the todo with it

    def place(self, todo: str) -> int | str:
        """Render on which host a job is to run and how many GPUs it wants; returns these. Raises `TurnoutError`."""
        info, context = self.todos[todo], self.context(todo)
        host = str(render_tree(info.body["host"], context))
        gpus = render_tree(info.body.get("gpus") or 0, context) or 0
        self._wanted(host, gpus, [])
        info.host, info.gpus = host, gpus
        return info.gpus

    def next_ready(self) -> str | None:
        """Take the todo that should start next, or `None` when all that is ready must wait for a limit."""
        best: tuple[tuple[int, int], Queue] | None = None
        for queue, heap in self._queues.items():
            while heap and not self.graph[heap[0][1]].is_ready:
                self._queued.discard(heappop(heap)[1])  # cancelled while it waited
            if heap and (best is None or heap[0][0] < best[0]) and self._has_room(queue, heap[0][1]):
                best = heap[0][0], queue
        if best is None:
            return None
        todo = heappop(self._queues[best[1]])[1]
        self._queued.discard(todo)
        return todo

    def _has_room(self, queue: Queue, todo: str) -> bool:
        kind, host = queue
        if kind == "now":
            return True
        if kind in ("tool", "think"):
            running = sum(self.run_as(other) == kind for other in self.tools)
            return running < (MAX_TOOLS if kind == "tool" else self.max_children)
        if self._load[host] >= self.host(host).max_jobs:
            return False
        # No smaller GPU job passes the one at the head: it would starve.
        return kind == "cpu" or self._gpus_free(host, todo)

    def waiting(self) -> list[tuple[str, str]]:
        """The todos that are ready and must wait, each with what for."""
        said = {"tool": "a tool's turn", "think": "a subagent's turn", "cpu": "a place on `{}`", "gpu": "GPUs on `{}`"}
        return [
            (todo, said[kind].format(host))
            for (kind, host), heap in self._queues.items()
            if kind in said
            for _, todo in sorted(heap)
            if self.graph[todo].is_ready
        ]

    # Hosts and GPUs

    def host(self, name: str) -> HostInfo:
        """A host's limits; a name nobody added is an SSH destination with the defaults."""
        return self.hosts.setdefault(name, HostInfo(name))

    def see_leases(self, rows: Iterable[tuple[str, int, str]]) -> None:
        """Take over what the table says: other sessions' leases come and go behind our back."""
        self.leases = {(host, gpu): job for host, gpu, job in rows}

    def _gpus_free(self, host: str, todo: str) -> bool:
        if self.host(host).slurm:
            return True  # its queue decides
        known = self.host(host).gpus
        if known is None:
            if not self.host(host).gpus_unknown:
                self.probes_wanted.add(host)
            return bool(self.host(host).gpus_unknown)  # starting it says why it cannot
        want = self._wanted(host, self.todos[todo].gpus, known)
        return want > len(known) or want <= sum((host, gpu) not in self.leases for gpu in known)

    def choose_gpus(self, host: str, want: int | str) -> list[int]:
        """The GPUs for a job, lowest index first. Raises `UsageError` when the host could never give as many."""
        if not want or self.host(host).slurm:
            return []
        known = self.host(host).gpus
        if known is None:
            raise UsageError(
                f"GPUs are asked for and nobody can tell which host `{host}` has: {self.host(host).gpus_unknown}",
                hint=f"`turnout hosts probe {host}` looks again; then retry the todo",
            )
        number = self._wanted(host, want, known)
        if number > len(known):
            raise UsageError(
                f"`{number}` GPUs are asked for and host `{host}` has `{len(known)}` that can be used",
                hint=f"`turnout hosts probe {host}` shows its GPUs and what is wrong with them",
            )
        return [gpu for gpu in known if (host, gpu) not in self.leases][:number]

    @staticmethod
    def _wanted(host: str, want: int | str, known: list[int]) -> int:
        if want == "all":
            return max(1, len(known))
        if isinstance(want, bool) or not str(want).isdecimal() or len(str(want)) > 4:
            raise UsageError(
                f"`gpus: {str(want)[:40]}` on host `{host}` is no number of GPUs",
                hint="give a whole number, or `all` for every GPU of the host",
            )
        return int(want)

    # What a job and a template see

    def context(self, todo: str) -> dict[str, Any]:
        """The names a template of this todo may use (documented in docs/playbooks.md)."""
        info, scope = self.todos[todo], self.scope(todo)
        params = dict(scope.get("params", {}))
        host = info.host or params.get("host", "local")
        prefix = scope.get("prefix", "")
        seen = self.results
        if prefix:
            seen = {id.removeprefix(prefix): result for id, result in self.results.items() if id.startswith(prefix)}
        return {
            "host": host,
            **params,
            "params": params,
            "todos": seen,
            "session": self.session,
            "python": self.host(host).python,
            "workdir": self.workdir(todo),
            "attempt": info.attempts + 1,
            "playbook": scope.get("playbook") or "",
        }

    def workdir(self, todo: str) -> str:
        """Where the todo's jobs run, below the host's root: a folder of the session, and of a playbook loaded twice."""
        prefix = self.scope(todo).get("prefix", "")
        return f"work/{self.session}" + (f"/{prefix.rstrip('.')}" if prefix else "")

    def prelude(self, todo: str, *, stay: bool = False) -> str:
        """Shell lines before every job: into its own folder (unless it is to `stay`), the payload on the path."""
        folder = f"$TURNOUT_ROOT/{self.workdir(todo)}"
        # The test is bash's own; `mkdir` is a process, and the folder is there for every job but the first.
        lines = [f'[ -d "{folder}" ] || mkdir -p "{folder}" || exit 125']
        if not stay:
            lines.append(f'cd "{folder}" || exit 125')
        payload = self.scope(todo).get("payload")
        if payload:
            folder = folder_of("$TURNOUT_ROOT", payload["hash"])
            lines.append(f'export PYTHONPATH="{folder}${{PYTHONPATH:+:$PYTHONPATH}}"')
        return "\n".join(lines) + "\n"
