"""The hosts of a run: from a name to a connected `tools.ssh.Host`, each made once.

A name is looked up in the playbook's own hosts, then among those the operator added (`turnout hosts add`), and is
otherwise an SSH destination (`user@address`, or a name from `~/.ssh/config`) whose key must be known already.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from sqlalchemy import Connection, select

from state.models import Host as HostRow
from state.models import table
from tools.jobs import sbatch_options
from tools.ssh import Host, HostSpec

REQUEST_PATIENCE_S = 30.0


def local_root() -> str:
    """Where `local` keeps its jobs: `TURNOUT_ROOT`, by default `~/.turnout` like every host."""
    return os.environ.get("TURNOUT_ROOT") or "~/.turnout"


def spec_of(name: str, row: Mapping[str, Any] | None, brought: Mapping[str, Any] | None = None) -> HostSpec:
    """How to reach a host. `row` is what the operator stored, `brought` what the playbook brings along."""
    if brought is not None:
        return HostSpec(name=name, embedded=True, root=f"{local_root()}/hosts/{name}")
    if name == "local":
        return HostSpec(name=name, root=local_root())
    if row is None:
        user, _, address = name.rpartition("@")
        return HostSpec(name=name, address=address, user=user)
    settings = row["settings"]
    return HostSpec(
        name=name,
        address=row["address"],
        port=int(settings.get("port") or 0),
        user=settings.get("user") or "",
        host_key=row["key"] or "",
        identity=settings.get("identity") or "",
        root=settings.get("root") or "~/.turnout",
        python=settings.get("python") or "",
        slurm=sbatch_options(settings.get("sbatch") or "") if settings.get("slurm") else None,
    )


def stored(conn: Connection, name: str) -> Mapping[str, Any] | None:
    """The operator's record of a host."""
    hosts = table(HostRow)
    row = conn.execute(select(hosts).where(hosts.c.name == name)).mappings().one_or_none()
    return dict(row) if row is not None else None


class Hosts:
    """Connected hosts by name, until the run ends. Use `open_hosts`."""

    def __init__(self, specs: Mapping[str, HostSpec], stack: AsyncExitStack, patience_s: float) -> None:
        self._specs = dict(specs)
        self._patience_s = patience_s
        self._stack = stack
        self._hosts: dict[str, Host] = {}
        self._lock = anyio.Lock()

    @property
    def known(self) -> Collection[str]:
        """The hosts that were added or brought along, and this machine. Any other name is OpenSSH's to find."""
        return {"local", *self._specs}

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    async def get(self, name: str) -> Host:
        """The host, connecting in the background if this is the first time it is asked for."""
        async with self._lock:
            if name not in self._hosts:
                host = Host(self._specs.get(name) or spec_of(name, None), patience_s=self._patience_s)
                await host.start()
                self._stack.push_async_callback(host.close)
                self._hosts[name] = host
            return self._hosts[name]


@asynccontextmanager
async def open_hosts(specs: Mapping[str, HostSpec], *, patience_s: float = REQUEST_PATIENCE_S) -> AsyncIterator[Hosts]:
    """Hosts that are closed at the end; what runs on them goes on. A request waits `patience_s` without contact."""
    async with AsyncExitStack() as stack:
        yield Hosts(specs, stack, patience_s)
