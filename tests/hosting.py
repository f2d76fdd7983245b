"""Helpers for tests against real hosts: an OpenSSH server of one's own, and waiting for what a host tells."""

from __future__ import annotations

import getpass
import os
import select
import shutil
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from anyio import to_thread

from tools.hostkeys import HostSpec
from tools.jobs import JobEvent, JobSpec, JobState
from tools.remote import linux, proc
from tools.ssh import Host

SSHD = "/usr/sbin/sshd"
_READY = b"Server listening on"


@dataclass
class OpenSSH:
    """One sshd with keys and a configuration of its own, on a free port of the loopback."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it listens."""
        for name in ("host", "client"):
            if not (self.folder / name).exists():
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
                subprocess.run(command, check=True)
        self.port = self.port or free_port()
        settings = {
            "Port": str(self.port), "ListenAddress": "127.0.0.1", "HostKey": str(self.folder / "host"),
            "AuthorizedKeysFile": str(self.folder / "client.pub"), "StrictModes": "no", "UsePAM": "no",
            "PermitRootLogin": "yes", "PidFile": "none", "LogLevel": "INFO", **self.settings,
        }  # fmt: skip
        (self.folder / "config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it for privilege separation
        self._process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.folder / "config")], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if _READY in line:
                return
        raise RuntimeError("sshd did not start")

    def stop(self) -> None:
        """Stop listening; connections that are open stay."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None

    async def connections(self) -> list[int]:
        """The pids of the processes that serve connections of this sshd."""
        assert self._process is not None
        return await children(self._process.pid)

    def new_host_key(self) -> None:
        """As if the machine were installed anew: the next start shows another key."""
        for name in ("host", "host.pub"):
            (self.folder / name).unlink()

    def spec(self, root: Path, name: str = "lo") -> HostSpec:
        """How to reach it, its key pinned."""
        return HostSpec(
            name=name, address="127.0.0.1", port=self.port, user=getpass.getuser(),
            host_key=" ".join((self.folder / "host.pub").read_text().split()[:2]),
            identity=str(self.folder / "client"), root=str(root),
        )  # fmt: skip


def free_port() -> int:
    """A port of the loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def living(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that are processes, and no zombies."""
    table = await to_thread.run_sync(proc.everyone)
    return [pid for pid in pids if pid in table]


async def children(parent: int) -> list[int]:
    """The pids of the living children of a process."""
    return [p.pid for p in (await to_thread.run_sync(proc.everyone)).values() if p.parent == parent]


async def gone(pid: int) -> bool:
    """Whether a process has ended, or does within ten seconds (told by the kernel, not by looking again and again)."""
    try:
        pidfd = linux.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool((await to_thread.run_sync(select.select, [pidfd], [], [], 10.0))[0])
    finally:
        os.close(pidfd)


async def end_jobs(host: Host) -> None:
    """Kill whatever runs below the host's root, and hold the host to it."""
    ids = [job.id for job in await host.list_jobs() if not job.terminal or job.leftovers]
    left = [job for job in await host.kill(ids, grace_s=0) if job.leftovers]
    assert not left, f"processes outlived their kill: {left}"


async def ended(host: Host, ids: Iterable[str]) -> dict[str, JobState]:
    """The states of these jobs, once all of them have ended."""
    waiting, states = set(ids), {}
    events = host.events()
    await host.watch(list(waiting))
    while waiting:
        event = await anext(events)
        if isinstance(event, JobEvent) and event.kind in ("exit", "lost") and event.job.id in waiting:
            waiting.discard(event.job.id)
            states[event.job.id] = event.job
    return states


async def told(host: Host, job: str, kind: str) -> JobState:
    """The state that comes with the next event of this kind for this job."""
    events = host.events()
    await host.watch([job])
    async for event in events:
        if isinstance(event, JobEvent) and (event.job.id, event.kind) == (job, kind):
            return event.job
    raise AssertionError("the host was closed")


def record(host: Host, job: str, name: str) -> Path:
    return Path(host.spec.root) / "jobs" / job / name


async def started(host: Host, spec: JobSpec) -> JobState:
    """Launch a job whose script says `::progress 1` once it is under way, and wait for that."""
    await host.launch([spec])
    return await told(host, spec.id, "progress")


def oldest_python() -> str:
    """The oldest Python here that the remote half must run on (3.8 or newer)."""
    places = [Path.home() / ".pyenv" / "versions"]
    found = [p for place in places if place.is_dir() for p in place.glob("3.[89]*/bin/python3")]
    if found:
        return str(sorted(found)[0])
    for name in ("python3.8", "python3.9", "python3.10"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Python older than 3.11 here")
