"""The logs of a recording's jobs, as far as their hosts can be reached: head and tail, with exact counts.

    found = fetch(db, recording)        # {"abcd2345.train.1": {"text": "...", "note": "..."}}

A log stays on its host and may be of any size, so little of each is read. A host that is away costs a few seconds and
is told; nothing fails because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from agent.host_actions import spec_for
from agent.replay import Recording
from agent.replay_spans import Span, Spans
from state.db import Database
from state.errors import TurnoutError
from tools.shell import clean_text
from tools.ssh import Host, HostSpec

HEAD_BYTES = 4 << 10
TAIL_BYTES = 12 << 10
PATIENCE_S = 5.0
MAX_JOBS = 200
"""More logs than this are not read: those of the newest jobs are."""

Found = dict[str, dict[str, str]]


def fetch(db: Database, recording: Recording, note: Callable[[str], None]) -> Found:
    """Read them, host by host at the same time. What could not be read is told to `note`, and is not in the answer."""
    jobs = [job for job in Spans(recording.entries).jobs.values() if job.status != "refused"][-MAX_JOBS:]
    by_host: dict[str, list[Span]] = {}
    for job in jobs:
        by_host.setdefault(str(job.more["host"]), []).append(job)
    specs: dict[str, HostSpec] = {}
    for name in by_host:
        try:
            specs[name] = db.read(lambda conn, name=name: spec_for(conn, name, recording.facts.id))  # type: ignore[misc]
        except TurnoutError as error:
            note(f"the logs of jobs on `{name}` are left out: {error.message}")
    found: Found = {}

    async def read_all() -> None:
        async with anyio.create_task_group() as group:
            for name, spec in specs.items():
                group.start_soon(_read_host, spec, by_host[name], found, note)

    anyio.run(read_all)
    return found


async def _read_host(spec: HostSpec, jobs: Sequence[Span], found: Found, note: Callable[[str], None]) -> None:
    try:
        async with Host(spec, patience_s=PATIENCE_S) as host:
            for job in jobs:
                found[job.id] = await _read(host, job.id)
    except TurnoutError as error:
        note(f"logs of jobs on `{spec.name}` are left out: {error.message}")


async def _read(host: Host, job: str) -> dict[str, str]:
    head = await host.read_log(job, 0, HEAD_BYTES + TAIL_BYTES)
    if head.size <= HEAD_BYTES + TAIL_BYTES:
        return {"text": clean_text(head.data), "note": f"{head.size:,} bytes"}
    tail = await host.read_log(job, head.size - TAIL_BYTES, TAIL_BYTES)
    start = tail.data.find(b"\n") + 1
    first = head.data[: head.data.rfind(b"\n", 0, HEAD_BYTES) + 1 or HEAD_BYTES]
    left_out = tail.size - len(first) - (len(tail.data) - start)
    text = f"{clean_text(first)}\n… {left_out:,} bytes are left out here …\n{clean_text(tail.data[start:])}"
    return {"text": text, "note": f"{left_out:,} of {tail.size:,} bytes are not shown: `turnout logs {job}` reads all"}
