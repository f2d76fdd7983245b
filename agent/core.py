"""What to do next: a pure function of state and event.

    changes = Core(state).step(event)

`step` applies what follows from an event to `state` (in memory) and returns it as changes for the log. It reads no
clock, no file and no network: live running, crash recovery, replay and tests feed the same core from different sources.
The dispatcher commits the changes and only then performs the effects they call for (`agent/dispatcher.py`); after a
crash the open effects are derived again from the stored state (`open_effects`).

What it decides: which todos start, in order of priority and within the limits of hosts, GPUs and tools; what a job's
end means for its todo (completed, failed, tried again); which race is decided and who loses; when the session is over.
It does not know how a job runs or what a model says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agent import core_edit, core_notice, core_start
from agent.attempt import job_id
from agent.events import Answered, Cancel, Edit, Event, Go, JobSeen, Pause, Reset, Stop, ToolEnded
from agent.infos import JobInfo
from agent.state import SessionState
from state import changes as c
from state import conversation as talk
from state.changes import Change
from state.errors import GraphError, TurnoutError
from state.graph import Node, Transition
from state.specs import TERMINAL, FailureKind, Status

_PAST: dict[str, str] = {"skipped": "was skipped", "cancelled": "was cancelled"}


class Core:
    """Steps one session's state. Holds nothing but the state and the changes of the current step."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.outcomes: dict[str, list[dict[str, Any]]] = {}
        self._changes: list[Change] = []

    def step(self, event: Event) -> list[Change]:
        """Apply one event. Returns the changes that follow, in causal order; none if it was already known."""
        self._changes = []
        match event:
            case Go():
                self._go()
            case JobSeen():
                self._job_seen(event)
            case ToolEnded():
                self._tool_ended(event)
            case Answered():
                self.answered(event)
            case Cancel():
                self.cancel(event.todo, event.reason)
            case Reset():
                self.reset(event.todos)
            case Edit():
                self.outcomes[event.id] = core_edit.apply(self, event)
            case Pause():
                self.state.paused = event.on
            case Stop():
                self.state.stopping = True
                if self.state.status == "running":
                    self._session("paused", "stopped by the operator")
        self._dispatch()
        self._maybe_finish()
        if isinstance(event, Edit):
            self._tell_outcomes(event)
        return [replace(change, follows=place or None) for place, change in enumerate(self._changes)]

    # Events

    def _go(self) -> None:
        state = self.state
        if state.stopping:
            return  # told to stop before it had begun
        if state.status != "running":
            self._session("running", None)
        for node in state.graph.nodes.values():
            if node.status == "in_progress" and node.kind == "research" and not self._is_looked_into(node.id):
                self._again(node.id, "nobody works on it any more")
            self.look_at(node)

    def _job_seen(self, seen: JobSeen) -> None:
        job = self.state.jobs.get(seen.id)
        if job is None or (seen.state == job.state and seen.state != "exited"):
            return  # told twice, or of a job that has ended for us
        if seen.state == "exited" and job.state == "submitted" and seen.started is not None:
            # It started and ended between two looks; the log tells both.
            self.emit(c.job_state(job.id, job.host, "running", started=seen.started))
        job.state = seen.state
        told = {k: getattr(seen, k) for k in ("rc", "signal", "reason", "started", "ended")}
        told = {k: v for k, v in told.items() if v is not None}
        self.emit(c.job_state(job.id, job.host, seen.state, **told))
        if seen.state == "ready":
            self._service_ready(job, seen)
        if seen.state in ("exited", "lost", "refused"):
            self.state.release(job)
            self._job_ended(job, seen)
            self.look_at(self.state.graph[job.todo])  # it may have waited for this attempt to be gone

    def _service_ready(self, job: JobInfo, seen: JobSeen) -> None:
        if self._is_tried_by(job):
            result = {**(seen.output or {}), "job": job.id, "host": job.host}
            self.end(job.todo, "completed", result=result)

    def _job_ended(self, job: JobInfo, seen: JobSeen) -> None:
        for waiting in self.state.stops.pop(job.id, ()):
            if self._is_running(waiting):
                self.end(waiting, "completed", result={"job": job.id, "ended": seen.state})
        if not self._is_tried_by(job):
            return  # cancelled before, perhaps begun anew since, or a service that had become ready
        if seen.failure is None and job.is_service:
            self._fail(job.todo, "failed", f"ended before it was ready: {seen.reason}", seen.output)
        elif seen.failure is None:
            self.end(job.todo, "completed", result=dict(seen.output or {}))
        else:
            self._fail(job.todo, seen.failure, seen.reason or seen.failure, seen.output)

    def _tool_ended(self, event: ToolEnded) -> None:
        self.state.tools.discard(event.todo)
        if not self._is_running(event.todo):
            return
        if self.state.run_as(event.todo) == "think":
            report = event.result if event.ok else {"reason": event.reason}
            self.emit(talk.child_reported(self.child(event.todo), "completed" if event.ok else "failed", report))
        if event.ok:
            self.end(event.todo, "completed", result=event.result)
        elif event.fallback and self.state.todos[event.todo].body:
            self.state.todos[event.todo].fell_back = True
            if self._again(event.todo, f"{event.reason}; its fallback takes over"):
                self.state.enqueue(self.state.graph[event.todo])
        else:
            self._fail(event.todo, "failed", event.reason or "the tool failed", event.result)

    def answered(self, event: Answered) -> None:
        """A question has its answer: the todo ends with it."""
        if event.todo not in self.state.questions:
            return
        del self.state.questions[event.todo]
        self.emit(c.approval_answered(event.todo, event.answer, event.by, event.reason))
        if self._is_running(event.todo):
            free = bool(self.state.todos[event.todo].body.get("free"))
            status: Status = "completed" if free or event.answer == "yes" else "failed"
            why = f": {event.reason}" if event.reason else ""
            reason = None if status == "completed" else f"answered `{event.answer}` by {event.by}{why}"
            result = {"answer": event.answer, "by": event.by, **({"reason": event.reason} if event.reason else {})}
            self.end(event.todo, status, result=result, reason=reason)

    def _tell_outcomes(self, edit: Edit) -> None:
        """Say how each todo of the edit now stands; to a model, in the same commit as what was done."""
        outcomes = self.outcomes[edit.id]
        for outcome in outcomes:
            if outcome["op"] in ("add", "link", "retry", "change") and (
                node := self.state.graph.nodes.get(outcome["id"])
            ):
                outcome["status"] = node.status
                if node.status == "pending" and node.open:
                    outcome["waits_for"] = [a.id for a, _ in node.into if a.status not in TERMINAL]
                elif reason := self.state.todos[node.id].reason:
                    outcome["reason"] = reason
        if edit.answers is not None:
            self.emit(core_notice.edit_answered(edit, outcomes))

    def cancel(self, todo: str, reason: str) -> None:
        """Give up a todo that has not ended; its job is killed."""
        if self.state.graph[todo].status in TERMINAL:
            return
        self.state.questions.pop(todo, None)
        if todo in self.state.tools and self.state.run_as(todo) == "think":
            self.emit(talk.child_reported(self.child(todo), "cancelled", {"reason": reason}))
        self.state.tools.discard(todo)
        for waiting in self.state.stops.values():
            if todo in waiting:
                waiting.remove(todo)
        self.kill(todo, reason)
        self.end(todo, "cancelled", reason=reason)

    def reset(self, todos: Iterable[str]) -> None:
        """Open ended todos again, and what was skipped because of them."""
        waiting = [t for t in todos if self.state.graph[t].status in TERMINAL]
        while waiting:
            # One that still depends on another failure is refused until that one is open again.
            refused = [todo for todo in waiting if not self._reopen(todo)]
            if len(refused) == len(waiting):
                break
            waiting = refused
        self._go()

    def _reopen(self, todo: str) -> bool:
        if self.state.graph[todo].status not in TERMINAL:
            return True
        try:
            transitions = self.state.graph.reset(todo)
        except GraphError:
            return False
        self.kill(todo, "to be tried again")
        for t in transitions:
            info = self.state.todos[t.id]
            if info.host:
                self.state.host(info.host).gpus_unknown = ""  # somebody may have mended what was in the way
            info.attempts_before, info.result, info.reason = info.attempts, None, None
            self.state.forget_result(t.id)
            self.emit(c.todo_status(t.id, t.was, t.now, reason="to be tried again", actor="operator"))
        return True

    # Endings

    def _fail(self, todo: str, kind: FailureKind, reason: str, output: Mapping[str, Any] | None) -> None:
        """A failed attempt: another one if the todo's retry rule says so, else the todo has failed."""
        info = self.state.todos[todo]
        info.failure = kind
        retry = info.spec.retry
        tried_again = kind in retry.on and info.attempts - info.attempts_before <= retry.times
        if not tried_again or not self.state.graph[todo].may_run:
            self.end(todo, "failed", result={**(output or {}), "failure": kind}, reason=reason)
        elif self._again(todo, f"{reason}; try {info.attempts + 1}"):
            self.state.enqueue(self.state.graph[todo])

    def _again(self, todo: str, reason: str) -> bool:
        """Back into the queue; or cancelled, where what it waited for was reset meanwhile and has ended otherwise."""
        if not self.state.graph[todo].may_run:
            self.end(todo, "cancelled", reason=f"{reason}; and what it waits for has ended otherwise meanwhile")
            return False
        t = self.state.graph.requeue(todo)
        self.emit(c.todo_status(todo, t.was, t.now, reason=reason))
        return True

    def end(
        self, todo: str, status: Status, *, result: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> None:
        """End a todo, pass on what that decides, and queue what it releases."""
        info = self.state.todos[todo]
        info.result = dict(result) if result is not None else None
        info.reason = reason
        self.state.note_result(todo)
        first, *skips = self.state.graph.end(todo, status)
        self.emit(c.todo_status(todo, first.was, status, result=info.result, reason=reason))
        if self.state.told and (notice := core_notice.ended(self.state, todo)):
            self.emit(notice)
        self.follow(skips, because=first)
        if self.state.graph[todo].kind == "race" and status == "completed":
            self._drop_losers(todo)

    def follow(self, skips: Iterable[Transition], *, because: Transition | None = None) -> None:
        """Report skips, and queue what they and their cause release."""
        skips = list(skips)
        for skip in skips:
            self._skipped(skip)
        for transition in (*([because] if because else []), *skips):
            self._released_by(transition)

    def look_at(self, node: Node) -> None:
        """Queue a todo if it may start now."""
        if node.is_ready:
            self.state.enqueue(node)
        elif node.kind == "race" and node.is_impossible:
            self._race_lost(node.id)

    def _skipped(self, skip: Transition) -> None:
        source = self.state.graph[skip.because] if skip.because else None
        reason = f"`{source.id}` {_PAST.get(source.status, source.status)}" if source else None
        self.state.todos[skip.id].reason = reason
        self.emit(c.todo_status(skip.id, skip.was, skip.now, reason=reason))

    def _released_by(self, transition: Transition) -> None:
        for after, _ in self.state.graph[transition.id].out:
            self.look_at(after)

    def _race_lost(self, race: str) -> None:
        members = [n for n, _ in self.state.graph[race].into]
        if all(n.status == "skipped" for n in members):
            self.end(race, "skipped", reason="all its members were skipped")
        else:
            told = ", ".join(f"`{n.id}` {_PAST.get(n.status, n.status)}" for n in members)
            self.end(race, "failed", reason=f"no member succeeded: {told}")

    def _drop_losers(self, race: str) -> None:
        if self.state.todos[race].spec.body.get("losers", "cancel") == "keep":
            return
        for loser in self.state.graph.losers(race):
            self.cancel(loser, f"lost the race `{race}`")

    def kill(self, todo: str, reason: str) -> None:
        """Intend to end the todo's job, if it has one that runs."""
        job = self.state.live_job(todo)
        if job is not None and job.cancel is None:
            job.cancel = reason
            self.emit(c.job_cancel(job.id, reason))

    # Starting

    def _dispatch(self) -> None:
        """Start everything that may start now."""
        halted = self.state.stopping or self.state.paused
        while not halted and (todo := self.state.next_ready()) is not None:
            try:
                core_start.start(self, todo)
            except TurnoutError as error:
                self.end(todo, "failed", reason=error.message, result={"failure": "failed"})

    # The end

    def _maybe_finish(self) -> None:
        state = self.state
        if state.status != "running" or state.open_todos or state.stopping or state.stays:
            return
        for job in [j for j in state.jobs.values() if j.cancel is None and j.id not in state.kept]:
            self.kill(job.todo, "the session is over")
        if any(j.id not in state.kept for j in state.jobs.values()):
            return
        failed = state.unhandled_failures()
        if failed:
            self._session("failed", "failed: " + ", ".join(f"`{t}`" for t in failed))
        else:
            self._session("completed", None)

    def child(self, todo: str) -> str:
        """The id of the subagent's session: one for each attempt, like that of a job."""
        return job_id(self.state.session, todo, self.state.todos[todo].attempts)

    def _is_looked_into(self, research: str) -> bool:
        """Not so after a resume with another configuration: the subagent's model is gone, or has come."""
        return research in self.state.tools or self.state.live_job(research) is not None

    def _is_running(self, todo: str) -> bool:
        return self.state.graph[todo].status == "in_progress"

    def _is_tried_by(self, job: JobInfo) -> bool:
        """Whether the todo runs, and this job is its present attempt: an older one may be long in ending."""
        attempts = self.state.todos[job.todo].attempts
        return self._is_running(job.todo) and job.id == job_id(self.state.session, job.todo, attempts)

    def _session(self, status: str, reason: str | None) -> None:
        self.state.status, self.state.reason = status, reason
        self.emit(c.session_status(status, reason))

    def emit(self, change: Change) -> None:
        self._changes.append(change)
        self.state.count(change)


def open_effects(state: SessionState) -> list[Change]:
    """The intents that are stored and may not have been carried out: what a resumed dispatcher begins with.

    Launching and killing again is harmless: the host accepts the same intent twice without doing it twice.
    """
    effects: list[Change] = []
    for job in state.jobs.values():
        spec = job.spec
        attempt = state.todos[job.todo].attempts
        effects.append(c.job_submitted(job.id, todo=job.todo, attempt=attempt, host=job.host, spec=spec, gpus=job.gpus))
        if job.cancel is not None:
            effects.append(c.job_cancel(job.id, job.cancel))
    for todo, info in state.todos.items():
        if state.graph[todo].status == "in_progress" and todo in state.tools:
            effects.append(c.todo_status(todo, "pending", "in_progress", attempt=info.attempts))
    for todo, question in state.questions.items():
        effects.append(c.approval_asked(todo, question, state.todos[todo].body.get("default", "no")))
    return effects
