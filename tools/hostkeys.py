"""Where a server is, which keys are known for it, and what a failed connection means.

Keys come from the pin in our own record of the host, or from the known_hosts files that `~/.ssh/config` names. No
setting turns verification off. Nothing here connects; `tools.connect` does.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from anyio import to_thread
from asyncssh import public_key

from state.errors import HostError, HostKeyError, Unreachable

_KNOWN_HOSTS = ["~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """How to reach a host and what may be done there. What is left empty comes from `~/.ssh/config`.

    `host_key` pins the key: the line `ssh-ed25519 AAAA...` or a fingerprint `SHA256:...`; empty means the known_hosts
    files decide. `root` is the folder on the host that holds jobs; `python` an interpreter (3.8 or newer) to use there.
    `slurm` are options for `sbatch`, for a login node whose jobs Slurm runs; None: the host runs them itself.
    `embedded` is this machine through a server inside this process; so is a spec named `local` without an address.
    """

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
    embedded: bool = False
    slurm: tuple[str, ...] | None = None

    @property
    def is_local(self) -> bool:
        """Whether this machine itself is meant."""
        return self.embedded or (self.name == "local" and not self.address)


@dataclass(slots=True)
class Endpoint:
    """One server to connect to: a host or a hop. `key` is a client key in memory (for the embedded server)."""

    address: str
    port: int = 0
    user: str = ""
    host_key: str = ""
    identity: str = ""
    key: asyncssh.SSHKey | None = None
    use_config: bool = True

    @classmethod
    def of(cls, spec: HostSpec) -> Endpoint:
        return cls(spec.address or spec.name, spec.port, spec.user, spec.host_key, spec.identity)

    @classmethod
    def hop(cls, text: str) -> Endpoint:
        """From an entry of ProxyJump: `[user@]host[:port]`."""
        user, _, rest = text.strip().rpartition("@")
        host, colon, port = rest.rpartition(":")
        if colon and port.isdigit() and (":" not in host or host.startswith("[")):
            return cls(host.strip("[]"), int(port), user)
        return cls(rest.strip("[]"), 0, user)

    @property
    def ssh(self) -> str:
        """The command that reaches it by hand."""
        port = f"-p {self.port} " if self.port else ""
        return f"ssh {port}{self.user + '@' if self.user else ''}{self.address}"


@dataclass(frozen=True, slots=True)
class KnownHost:
    """What is known of a server before connecting: trusted keys, where they are from, and its jump hosts."""

    trusted: Any
    source: str
    jumps: tuple[str, ...]

    @classmethod
    async def read(cls, endpoint: Endpoint) -> KnownHost:
        """From the pinned key, or the known_hosts files that the configuration names. Files are read in a thread."""
        if not endpoint.use_config:
            return cls(([asyncssh.import_public_key(endpoint.host_key)], [], []), "the pinned key", ())
        options = await asyncssh.SSHClientConnectionOptions.construct(
            host=endpoint.address, port=endpoint.port or (), username=endpoint.user or (), config=()
        )
        jump = options.tunnel if isinstance(options.tunnel, str) and options.tunnel.lower() != "none" else ""
        jumps = tuple(entry for entry in jump.split(",") if entry.strip())
        if endpoint.host_key.startswith("SHA256:"):
            return cls(asyncssh.import_known_hosts(""), "the pinned fingerprint", jumps)
        if endpoint.host_key:
            return cls(([asyncssh.import_public_key(endpoint.host_key)], [], []), "the pinned key", jumps)
        # asyncssh reads `UserKnownHostsFile none` as "verify nothing"; here it means that no key is known.
        files = [] if options.known_hosts is None else [str(file) for file in options.known_hosts] or _KNOWN_HOSTS
        return cls(await to_thread.run_sync(_read_known_hosts, files), ", ".join(files) or "no file", jumps)

    def keys(self, endpoint: Endpoint) -> list[asyncssh.SSHKey]:
        """The keys that are known for this server; none for a pinned fingerprint."""
        if isinstance(self.trusted, tuple):
            return list(self.trusted[0])
        return list(self.trusted.match(endpoint.address, "", endpoint.port or None)[0])

    def algorithms(self, endpoint: Endpoint) -> list[str] | tuple[()]:
        """Kinds of host keys to ask for: the known ones first, then all others, so that a changed key is always shown.

        Left to itself asyncssh asks for the known kinds only, and a server without them just closes the connection.
        """
        known = [algorithm.decode() for key in self.keys(endpoint) for algorithm in key.sig_algorithms]
        others = [algorithm.decode() for algorithm in public_key.get_default_public_key_algs()]
        return list(dict.fromkeys(known + others)) if known else ()


def _read_known_hosts(files: list[str]) -> asyncssh.SSHKnownHosts:
    paths = [Path(file).expanduser() for file in files]
    texts = [path.read_text("utf-8", "replace") for path in paths if path.is_file()]
    return asyncssh.import_known_hosts("\n".join(texts))


def explained(
    error: Exception, endpoint: Endpoint, known: KnownHost, offered: asyncssh.SSHKey | None, name: str
) -> HostError:
    """The error in our terms: a wrong key is never "unreachable", and a refused login says what to do."""
    where = f"`{name}` (`{endpoint.address}`)" if endpoint.address != name else f"`{name}`"
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        seen = f"it shows `{offered.algorithm.decode()} {offered.get_fingerprint()}`" if offered else f"`{error}`"
        if endpoint.host_key or known.keys(endpoint):
            return HostKeyError(
                f"the host key of {where} has changed: {seen}, which is not what {known.source} says",
                hint="ask whoever runs the host whether it was reinstalled; then "
                f"`turnout hosts trust {name}`, with the fingerprint from its console; "
                "otherwise somebody may be in between",
            )
        return HostKeyError(
            f"the host key of {where} is not known: {seen}; looked in {known.source}",
            hint=f"compare the fingerprint with the host's console, then `turnout hosts add {name}`",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return Unreachable(
            f"{where} refuses the login: `{error.reason}`",
            hint=f"try `{endpoint.ssh} true`; name a key with `turnout hosts add {name} --identity FILE`",
        )
    if isinstance(error, socket.gaierror):
        return Unreachable(
            f"{where} leads to no address: `{error.strerror}`",
            hint=f"`turnout hosts list` shows the known ones; `turnout hosts add {name} [USER@]ADDRESS` adds one",
        )
    if isinstance(error, TimeoutError):
        seen = "no answer"
    elif isinstance(error, ConnectionRefusedError):
        seen = "connection refused: nobody listens there"
    else:
        seen = str(error) or type(error).__name__
    return Unreachable(f"cannot connect to {where}: `{seen}`", hint=f"try `{endpoint.ssh} true`")
