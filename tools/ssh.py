"""A host: where it is, how its key is known, and everything that can be asked of it.

    async with Host(HostSpec(name="gpu1")) as host:
        await host.launch([JobSpec(id="j-1", run="python train.py")])
        async for event in host.events(): ...

(Signatures first; the bodies follow.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.jobs import ContactEvent, JobEvent, JobSpec, JobState, LogPiece


@dataclass(frozen=True, slots=True)
class HostSpec:
    """How to reach a host. Empty fields come from `~/.ssh/config`; a spec named `local` without address is embedded."""

    name: str
    address: str = ""
    port: int = 0
    user: str = ""
    host_key: str = ""
    identity: str = ""
    root: str = "~/.turnout"
    python: str = ""
    max_jobs: int = 1000
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a quick command. `rc` or `signal`; stdout and stderr are head + tail, `*_bytes` the exact counts."""

    rc: int | None
    signal: str | None
    timed_out: bool
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    duration: float
    held_by: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """What the host said when contact was made. `clock_offset` seconds are to be added to our clock to get its own."""

    root: str
    home: str
    shell: str
    uid: int
    boot_id: str
    python: str
    clock_offset: float


class Host:
    def __init__(self, spec: HostSpec, *, patience_s: float = 30.0, keepalive_s: float = 5.0) -> None: ...
    async def __aenter__(self) -> Self: raise NotImplementedError
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    async def start(self) -> None:
        """Begin connecting in the background and return: for a host that may be down (its events say so)."""
    async def close(self) -> None: ...
    async def hello(self) -> Hello: raise NotImplementedError
    async def launch(self, specs: Sequence[JobSpec], *, watch: bool = True) -> list[JobState]: raise NotImplementedError
    async def status(self, ids: Sequence[str]) -> list[JobState]: raise NotImplementedError
    async def watch(self, ids: Sequence[str]) -> None: ...
    async def unwatch(self, ids: Sequence[str]) -> None: ...
    def events(self) -> AsyncIterator[JobEvent | ContactEvent]: raise NotImplementedError
    async def kill(self, ids: Sequence[str], grace_s: float | None = None) -> list[JobState]: raise NotImplementedError
    async def read_log(self, job_id: str, offset: int = 0, limit: int = 65536) -> LogPiece: raise NotImplementedError
    def follow(self, job_id: str, offset: int = 0) -> AsyncIterator[LogPiece]: raise NotImplementedError
    async def run(self, command: str, *, timeout_s: float = 30.0, stdin: bytes | None = None, max_output: int = 65536,
                  cwd: str | None = None, env: Mapping[str, str] | None = None) -> CommandResult: raise NotImplementedError
    async def put_tree(self, folder: Path) -> str: raise NotImplementedError
    async def put_file(self, local: Path | bytes, remote: str, *, mode: int = 0o644) -> None: ...
    async def get_tree(self, remote: str, local: Path, *, max_bytes: int = 1 << 30) -> int: raise NotImplementedError
    async def list_jobs(self) -> list[JobState]: raise NotImplementedError
    async def clean(self, ids: Sequence[str]) -> None: ...
    async def probe(self) -> dict[str, Any]: raise NotImplementedError
