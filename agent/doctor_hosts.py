"""The doctor's checks of hosts: this machine through the embedded server, `~/.ssh/config`, and those added."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import asyncssh
from sqlalchemy import select

from agent.hosts import spec_of, stored
from state.db import Database
from state.errors import HostError, JobError, TurnoutError
from state.models import Host as HostRow
from state.models import table
from tools.jobs import JobEvent, JobSpec, JobState, describe_end
from tools.ssh import Host, HostSpec

LIMIT_S = 30.0
HOST_PATIENCE_S = 10.0
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `todo` says what to do about it."""

    check: str
    state: Literal["ok", "warn", "fail"]
    said: str
    todo: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"check": self.check, "state": self.state, "said": self.said, "todo": self.todo}


def ssh_config() -> Finding:
    """Whether OpenSSH's client configuration can be read; hosts need not have any."""
    path = Path("~/.ssh/config").expanduser()
    if not path.exists():
        return Finding("ssh", "ok", f"no {path}: hosts are reached by what `turnout hosts add` was told")
    try:
        asyncssh.SSHClientConnectionOptions(config=[str(path)], host="turnout-doctor")
    except (OSError, asyncssh.Error, ValueError) as error:
        return Finding("ssh", "fail", f"{path} cannot be read: {error}", f"try `ssh -G somehost`, and mend `{path}`")
    return Finding("ssh", "ok", f"{path} can be read")


def local_host() -> Finding:
    """A quick command and a job from launch to end on this machine, the way every host is used."""
    began = time.monotonic()
    try:
        state = anyio.run(_try, spec_of("local", None))
    except TurnoutError as error:
        return Finding("local", "fail", error.message, error.hint)
    except TimeoutError:
        return Finding(
            "local", "fail", f"a job of one command did not end in {LIMIT_S:g} s", "look at the load of this machine"
        )
    took = time.monotonic() - began
    if not state.ok:
        return Finding("local", "fail", f"a job that runs `true` ended with {describe_end(state)}")
    return Finding("local", "ok", f"a command and a job ran to their end in {took:.1f} s")


async def _try(spec: HostSpec) -> JobState:
    job = JobSpec(id=f"doctor.{secrets.token_hex(4)}", run="true")
    with anyio.fail_after(LIMIT_S):
        async with Host(spec) as host:
            answer = await host.run("echo hello")
            if answer.stdout.strip() != b"hello":
                raise JobError(f"`echo hello` on `local` gave `{answer.stdout!r}` and `{answer.stderr!r}`")
            events = host.events()
            await host.launch([job])
            async for event in events:
                if isinstance(event, JobEvent) and event.job.id == job.id and event.job.terminal:
                    await host.clean([job.id])
                    return event.job
    raise HostError("the embedded server ended before the job did")


def known_hosts(db: Database) -> Iterator[Finding]:
    """Whether each host that was added can be reached; several at once."""
    hosts = table(HostRow)
    names = db.read(lambda conn: list(conn.execute(select(hosts.c.name).order_by(hosts.c.name)).scalars()))
    specs = db.read(lambda conn: [spec_of(name, stored(conn, name)) for name in names])
    findings: dict[str, Finding] = {}

    async def reach_all() -> None:
        limit = anyio.CapacityLimiter(AT_ONCE)

        async def one(spec: HostSpec) -> None:
            async with limit:
                findings[spec.name] = await _reach(spec)

        async with anyio.create_task_group() as group:
            for spec in specs:
                group.start_soon(one, spec)

    anyio.run(reach_all)
    for name in names:
        yield findings[name]


async def _reach(spec: HostSpec) -> Finding:
    began = time.monotonic()
    try:
        async with Host(spec, patience_s=HOST_PATIENCE_S) as host:
            hello = await host.hello()
    except TurnoutError as error:
        return Finding("host", "fail", error.message, error.hint)
    took = time.monotonic() - began
    said = f"{spec.name}: reached in {took:.1f} s, {hello.user}@{hello.hostname}, Python {hello.python}"
    if abs(hello.clock_offset) > 60:
        return Finding("host", "warn", f"{said}; its clock is off by {hello.clock_offset:.0f} s", "set its clock")
    return Finding("host", "ok", said)
