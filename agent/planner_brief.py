"""How things stand now, as text for the model: rendered from the state with every request, never remembered.

Open todos only: finished work that is told again revives old plans. Bounded, so that ten thousand todos are a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agent.budget import Ledger
from agent.pace import clock
from agent.state import SessionState
from agent.transcript import defused
from state.specs import PRIORITIES, TERMINAL

MOST_TODOS = 60
MOST_HOSTS = 30
MAX_LINE = 240


def brief(state: SessionState, started: Mapping[str, float], ledger: Ledger, now: float, paused: bool = False) -> str:
    """The `<state>` block. `started` is when each running todo began, `now` the clock: seconds since the epoch."""
    lines = [f"time: {int(now)}; session running for {clock(max(0.0, now - ledger.started))}"]
    lines += _todos(state, started, now)
    lines += _questions(state)
    lines += _hosts(state)
    if (budget := _budget(ledger)) is not None:
        lines.append(budget)
    if paused:
        lines.append("The operator has paused the session: nothing new starts until it goes on.")
    text = "\n".join(defused(line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "...") for line in lines)
    return f"<state>\n{text}\n</state>"


def _todos(state: SessionState, started: Mapping[str, float], now: float) -> list[str]:
    counts = Counter(node.status for node in state.graph.nodes.values())
    told = ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "none"
    lines = [f"todos: {told}"]
    waiting = dict(state.waiting())
    open_ones = [node for node in state.graph.nodes.values() if node.status not in TERMINAL]
    open_ones.sort(key=lambda n: (n.status != "in_progress", PRIORITIES[n.priority], n.position))
    for node in open_ones[:MOST_TODOS]:
        info = state.todos[node.id]
        line = f"- {node.id} [{node.kind}, {node.status}, {node.priority}] {info.spec.title}"
        if node.status == "in_progress":
            job = state.live_job(node.id)
            where = f" as job {job.id} on {job.host}, {job.state}" if job else ""
            since = f" for {clock(max(0.0, now - started[node.id]))}" if node.id in started else ""
            line += f": runs{where}{since}"
        elif node.open:
            line += ": waits for " + ", ".join(f"{a.id} ({on})" for a, on in node.into if a.status not in TERMINAL)
        elif node.id in waiting:
            line += f": waits for {waiting[node.id]}"
        lines.append(line)
    if len(open_ones) > MOST_TODOS:
        lines.append(f"- and {len(open_ones) - MOST_TODOS} more open todos")
    services = [job for job in state.jobs.values() if state.graph[job.todo].status == "completed"]
    lines += [f"- service {job.todo} is up as job {job.id} on {job.host}" for job in services[:MOST_TODOS]]
    return lines


def _questions(state: SessionState) -> list[str]:
    return [f"open question to the operator, {todo}: {question}" for todo, question in state.questions.items()]


def _hosts(state: SessionState) -> list[str]:
    lines = []
    for name, host in list(state.hosts.items())[:MOST_HOSTS]:
        unknown = f"unknown ({host.gpus_unknown})" if host.gpus_unknown else "not looked at"
        gpus = unknown if host.gpus is None else str(len(host.gpus))
        leased = sum(1 for other, _ in state.leases if other == name)
        lines.append(f"host {name}: GPUs {gpus}, {leased} leased; at most {host.max_jobs} jobs")
    return lines


def _budget(ledger: Ledger) -> str | None:
    budget, spent = ledger.budget, ledger.spent
    parts = []
    if budget.money is not None:
        parts.append(f"{spent.cost:.2f} of {budget.money * ledger.raised:.2f} spent")
    if budget.tokens is not None:
        parts.append(f"{spent.tokens:,} of {int(budget.tokens * ledger.raised):,} tokens used")
    return "budget for model calls: " + ", ".join(parts) if parts else None
