"""SSH connections to one host: found through `~/.ssh/config`, host keys always verified, few handshakes at a time.

`Links` opens channels and, when the server allows no more of them on one connection, further connections. Every jump
host is connected to explicitly, so its key is checked like any other. It does not know what runs in the channels.

    links = Links(HostSpec(name="gpu1"))
    session, freed = await links.open("uname -a", MySession)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import asyncssh
from anyio.lowlevel import RunVar
from asyncssh import public_key

from state.errors import HostError, HostKeyError, HostUnusable, Unreachable

CONNECT_S = 15.0
# OpenSSH allows 10 sessions a connection by default; 8 leaves room for somebody's multiplexed terminal.
_SESSIONS = 8
# OpenSSH's MaxStartups 10:30:100 starts to drop handshakes above 10; a jump host sees those of all hosts behind it.
_HANDSHAKES = 4
_KEEPALIVES = 3
_KNOWN_HOSTS = ["~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"]
S = TypeVar("S", bound=asyncssh.SSHClientSession[bytes])
_handshakes: RunVar[anyio.CapacityLimiter] = RunVar("turnout_handshakes")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """How to reach a host and what may be done there. What is left empty comes from `~/.ssh/config`.

    `host_key` pins the key: the line `ssh-ed25519 AAAA...` or a fingerprint `SHA256:...`; empty means the known_hosts
    files decide. `root` is the folder on the host that holds jobs; `python` an interpreter (3.8 or newer) to use there.
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


class _Client(asyncssh.SSHClient):
    """Keeps the key that the server showed, and accepts it only if its fingerprint is the pinned one."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.offered: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.offered = key
        return bool(self.fingerprint) and key.get_fingerprint() == self.fingerprint


class _Link:
    """One connection (with the hops below it) and how many channels are open on it."""

    def __init__(self, connection: asyncssh.SSHClientConnection, hops: list[asyncssh.SSHClientConnection]) -> None:
        self.connection = connection
        self.hops = hops
        self.sessions = 0
        self.limit = _SESSIONS

    def freed(self) -> None:
        self.sessions -= 1

    def close(self) -> None:
        for connection in (self.connection, *reversed(self.hops)):
            connection.close()

    async def gone(self) -> None:
        for connection in (self.connection, *reversed(self.hops)):
            await connection.wait_closed()


class Links:
    """The connections to one host."""

    def __init__(self, endpoint: Endpoint, name: str, *, keepalive_s: float = 5.0) -> None:
        self._endpoint = endpoint
        self._name = name
        self._keepalive_s = keepalive_s
        self._links: list[_Link] = []
        self._connecting = asyncio.Lock()
        self._limit = _SESSIONS

    async def open(self, command: str, factory: Callable[[], S]) -> tuple[S, Callable[[], None]]:
        """Run `command` in a channel of its own, bytes in and out; opens a further connection when one is full.

        Gives the session, and what to call when its channel has ended. Raises Unreachable, HostKeyError, HostUnusable.
        """
        async with self._connecting:
            while True:
                link = next((link for link in self._links if link.sessions < link.limit), None) or await self._connect()
                try:
                    _, session = await link.connection.create_session(
                        cast(Any, factory), command, encoding=None, request_pty=False, x11_forwarding=False
                    )
                except asyncssh.ChannelOpenError as error:
                    if link.connection.is_closed():
                        self._forget(link)
                        raise Unreachable(f"the connection to `{self._name}` broke: `{error.reason}`") from error
                    # The command never ran. The server allows fewer sessions than we thought: remember it.
                    if link.sessions == 0:
                        self._forget(link)
                        raise HostUnusable(
                            f"`{self._name}` opens no session: `{error.reason}`",
                            hint="look at `MaxSessions` and `ForceCommand` in the server's sshd_config",
                        ) from error
                    link.limit = self._limit = link.sessions
                except (asyncssh.Error, OSError) as error:
                    self._forget(link)
                    raise Unreachable(f"the connection to `{self._name}` broke: `{error}`") from error
                else:
                    link.sessions += 1
                    return cast(S, session), link.freed

    async def close(self) -> None:
        """Close all connections; waits until they are gone."""
        links, self._links = self._links, []
        for link in links:
            link.close()
        for link in links:
            await link.gone()

    def abort(self) -> None:
        """Drop all connections at once (they are thought dead)."""
        links, self._links = self._links, []
        for link in links:
            link.connection.abort()
            link.close()

    def _forget(self, link: _Link) -> None:
        if link in self._links:
            self._links.remove(link)
        link.close()

    async def _connect(self) -> _Link:
        self._links = [link for link in self._links if not link.connection.is_closed()]
        async with _limiter():
            link = await self._handshake()
        link.limit = self._limit
        self._links.append(link)
        return link

    async def _handshake(self) -> _Link:
        """Connect hop by hop, each with its own look at the configuration and its own check of the key."""
        hops: list[asyncssh.SSHClientConnection] = []
        try:
            known = await _Known.read(self._endpoint)
            for text in known.jumps:
                hop = Endpoint.hop(text)
                hops.append(await self._to(hop, await _Known.read(hop), hops))
            return _Link(await self._to(self._endpoint, known, hops), hops)
        except BaseException:
            for connection in reversed(hops):
                connection.close()
            raise

    async def _to(
        self, endpoint: Endpoint, known: _Known, hops: list[asyncssh.SSHClientConnection]
    ) -> asyncssh.SSHClientConnection:
        pinned = endpoint.host_key if endpoint.host_key.startswith("SHA256:") else ""
        client = _Client(pinned)
        keys = [endpoint.key] if endpoint.key else [endpoint.identity] if endpoint.identity else ()
        try:
            return await asyncssh.connect(
                endpoint.address, endpoint.port or (), username=endpoint.user or (), client_keys=keys,
                config=() if endpoint.use_config else None, known_hosts=known.trusted, client_factory=lambda: client,
                server_host_key_algs=known.algorithms(endpoint), tunnel=hops[-1] if hops else None,
                connect_timeout=CONNECT_S, keepalive_interval=self._keepalive_s, keepalive_count_max=_KEEPALIVES,
            )  # fmt: skip
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise _explained(error, endpoint, known, client.offered, self._name) from error
        except (asyncssh.KeyImportError, asyncssh.ConfigParseError) as error:
            message = f"cannot connect to `{self._name}`: `{error}`"
            raise HostUnusable(message, hint="use a key that ssh-agent holds") from error


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a server before connecting: trusted keys, where they are from, and its jump hosts."""

    trusted: Any
    source: str
    jumps: tuple[str, ...]

    @classmethod
    async def read(cls, endpoint: Endpoint) -> _Known:
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
        return cls(await anyio.to_thread.run_sync(_read_known_hosts, files), ", ".join(files) or "no file", jumps)

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


def _explained(
    error: Exception, endpoint: Endpoint, known: _Known, offered: asyncssh.SSHKey | None, name: str
) -> HostError:
    """The error in our terms: a wrong key is never "unreachable", and a refused login says what to do."""
    where = f"`{name}` (`{endpoint.address}`)" if endpoint.address != name else f"`{name}`"
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        seen = f"it shows `{offered.algorithm.decode()} {offered.get_fingerprint()}`" if offered else f"`{error}`"
        if endpoint.host_key or known.keys(endpoint):
            return HostKeyError(
                f"the host key of {where} has changed: {seen}, which is not what {known.source} says",
                hint="ask whoever runs the host whether it was reinstalled; then "
                f"`turnout hosts add {name} --replace`, with the fingerprint from its console; "
                "otherwise somebody may be in between",
            )
        return HostKeyError(
            f"the host key of {where} is not known: {seen}; looked in {known.source}",
            hint=f"compare the fingerprint with the host's console, then `turnout hosts add {name}`",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return Unreachable(
            f"{where} refuses the login: `{error.reason}`",
            hint=f"try `ssh {endpoint.address} true`; name a key with `turnout hosts add {name} --identity FILE`",
        )
    if isinstance(error, TimeoutError):
        seen = "no answer"
    elif isinstance(error, ConnectionRefusedError):
        seen = "connection refused: nobody listens there"
    else:
        seen = str(error) or type(error).__name__
    return Unreachable(f"cannot connect to {where}: `{seen}`", hint=f"try `ssh {endpoint.address} true`")


async def host_key(spec: HostSpec) -> asyncssh.SSHKey:
    """The key that the host shows now, unverified: for an operator to compare. Jump hosts are verified."""
    endpoint = Endpoint.of(spec)
    links = Links(endpoint, spec.name)
    hops: list[asyncssh.SSHClientConnection] = []
    try:
        for text in (await _Known.read(endpoint)).jumps:
            hop = Endpoint.hop(text)
            hops.append(await links._to(hop, await _Known.read(hop), hops))
        tunnel = hops[-1] if hops else None
        key = await asyncssh.get_server_host_key(endpoint.address, spec.port or (), tunnel=tunnel)
    except (asyncssh.Error, OSError) as error:
        raise Unreachable(f"cannot connect to `{spec.name}`: `{error}`") from error
    finally:
        for connection in reversed(hops):
            connection.close()
    if key is None:
        raise Unreachable(f"`{spec.name}` shows no host key")
    return key


def _limiter() -> anyio.CapacityLimiter:
    try:
        return _handshakes.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_HANDSHAKES)
        _handshakes.set(limiter)
        return limiter
