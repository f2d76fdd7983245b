"""Adding, trusting, probing and removing hosts. A host's key is pinned when it is added, and verified ever after.

What is known of hosts belongs to no session: its changes are in the log of the session `system`.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import asyncssh
from sqlalchemy import Connection, select

from agent.cli_frame import confirm, say, say_json
from agent.hosts import spec_of, stored
from agent.look import fingerprint as fingerprint_of
from agent.runner import host_specs
from state import changes as c
from state.changes import Change
from state.db import Database
from state.errors import HostKeyError, NotFound, UsageError
from state.log import append_system
from state.models import Job, Session, table
from state.projection import JOB_ENDED
from tools.hostkeys import Endpoint
from tools.jobs import sbatch_options
from tools.probe import facts
from tools.ssh import Host, HostSpec, host_key

RESERVED = ("local",)


def spec_for(conn: Connection, name: str, session: str | None = None) -> HostSpec:
    """How to reach a host by its name: the operator's, or one that the session's playbook brought along."""
    sessions = table(Session)
    settings = conn.execute(select(sessions.c.settings).where(sessions.c.id == session)).scalar_one_or_none()
    return host_specs(conn, settings or {}).get(name) or spec_of(name, None)


def add(
    db: Database, name: str, address: str, settings: Mapping[str, Any], *, fingerprint: str | None, yes: bool
) -> int:
    """Show the host's key, pin it, and probe. Raises `HostKeyError` when it is not the expected one."""
    if name in RESERVED:
        raise UsageError(f"`{name}` is this machine and needs not be added", hint="choose another name")
    settings = {**settings, "identity": _key_file(settings.get("identity"))}
    sbatch_options(settings.get("sbatch") or "")
    if "/" in address or any(letter.isspace() for letter in address):
        raise UsageError(f"`{address}` is no address of a host", hint="write it as `[USER@]ADDRESS[:PORT]`")
    end = Endpoint.hop(address) if address else Endpoint("")
    known = db.read(lambda conn: stored(conn, name))
    given = {**settings, "user": end.user, "port": end.port or None}
    kept = {k: v for k, v in given.items() if v not in (None, "")}  # a 0 says something: no GPU is to be used
    row: dict[str, Any] = {"address": end.address, "settings": kept, "key": ""}
    spec = spec_of(name, row)
    key = _offered(spec)
    if known is not None and known["key"] and known["key"] != key.line:
        raise HostKeyError(
            f"`{name}` was added with another key: `{fingerprint_of(known['key'])}`; it now shows `{key.fingerprint}`",
            hint=f"`turnout hosts trust {name}` pins the new key, once you know why it changed",
        )
    if known is None or known["key"] != key.line:
        question = f"{_where(spec)} shows the key {key.kind} {key.fingerprint}\nIs that its key?"
        if not _agreed(question, key, fingerprint, name, yes=yes):
            return 1
    saved = c.host_saved(name, address=end.address, settings=kept, key=key.line)
    write(db, [saved])
    say(f"{name}: {'changed' if known else 'added'}, key pinned")
    probe(db, name, json=False)
    has_slurm = bool((db.read(lambda conn: stored(conn, name)) or {})["facts"].get("slurm"))
    if kept.get("slurm") and not has_slurm:
        raise NotFound(
            f"`{name}` is added as a login node of Slurm and has no `sbatch` on its PATH: no job can start there",
            hint="put it on the PATH of its login shell, or add the host again without `--slurm` and `--sbatch`",
        )
    if has_slurm and not kept.get("slurm"):
        say(f"{name} has Slurm: with `--slurm` its jobs go through it, else they run on this very machine")
    return 0


def _key_file(identity: str | None) -> str:
    """The private key's path as it is found from any folder, or nothing.

    Raises `UsageError` for one that could not be used to log in: no file, no private key, or one that others may read,
    which OpenSSH refuses too.
    """
    if not identity:
        return ""
    path = Path(identity).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"there is no private key `{path}`", hint="`--identity FILE` names a file on this machine")
    try:
        asyncssh.read_private_key(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UsageError(
            f"the private key `{path}` cannot be read: {error.strerror}", hint="check its owner"
        ) from error
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise UsageError(
            f"`{path}` is no private key that can be used: `{error}`",
            hint="name the key and not its `.pub`; give one with a passphrase to `ssh-add`, and leave `--identity` out",
        ) from error
    if mode & 0o077:
        raise UsageError(f"others may read the private key `{path}`: mode {mode:04o}", hint=f"`chmod 600 {path}`")
    return str(path)


def trust(db: Database, name: str, *, fingerprint: str | None, yes: bool) -> int:
    """Pin the key that the host shows now."""
    row = _known(db, name)
    key = _offered(spec_of(name, {**row, "key": ""}))
    if row["key"] == key.line:
        say(f"{name}: the key has not changed ({key.fingerprint})")
        return 0
    before = fingerprint_of(row["key"]) if row["key"] else "none"
    question = (
        f"{name} was known by   {before}\n{' ' * len(name)} now shows      {key.fingerprint} ({key.kind})\n"
        "Was it reinstalled, and is this the fingerprint on its console? Else somebody may be in between."
    )
    if not _agreed(question, key, fingerprint, name, yes=yes):
        return 1
    write(db, [c.host_saved(name, address=row["address"], settings=row["settings"], key=key.line)])
    say(f"{name}: the new key is pinned")
    return 0


def probe(db: Database, name: str, *, json: bool) -> int:
    """Look at a host, keep what was seen, and show it."""
    from agent import host_picture

    spec = db.read(lambda conn: spec_for(conn, name))

    async def look() -> dict[str, Any]:
        async with Host(spec) as host:
            return await host.probe()

    seen = facts(anyio.run(look))
    if db.read(lambda conn: stored(conn, name)) is not None:
        write(db, [c.host_probed(name, seen)])
    if json:
        say_json({"host": name, **seen})
    else:
        host_picture.picture(name, seen)
    return 0


def remove(db: Database, name: str, *, yes: bool) -> int:
    """Forget a host. Raises `UsageError` while jobs run there."""
    _known(db, name)
    jobs = table(Job)
    live = select(jobs.c.id).where((jobs.c.host == name) & jobs.c.state.not_in(JOB_ENDED))
    running = db.read(lambda conn: list(conn.execute(live).scalars()))
    if running:
        some = ", ".join(f"`{id}`" for id in running[:5]) + (" ..." if len(running) > 5 else "")
        raise UsageError(
            f"{len(running)} jobs still run on `{name}`: {some}", hint=f"`turnout kill {running[0]}` ends one"
        )
    if not confirm(f"Forget host `{name}`? What lies on it stays.", yes=yes):
        return 1
    write(db, [c.host_removed(name)])
    say(f"{name}: forgotten")
    return 0


def write(db: Database, changes: Sequence[Change]) -> None:
    """Append to the log of hosts."""
    db.write(lambda conn: append_system(conn, changes, time.time()))


@dataclass(frozen=True, slots=True)
class _Key:
    """A host key: its line in OpenSSH's form, its algorithm and its SHA-256 fingerprint."""

    line: str
    kind: str
    fingerprint: str


def _offered(spec: HostSpec) -> _Key:
    key = anyio.run(host_key, replace(spec, host_key=""))
    line = " ".join(key.export_public_key().decode("ascii").split()[:2])
    return _Key(line, key.algorithm.decode("ascii"), key.get_fingerprint())


def _agreed(question: str, key: _Key, fingerprint: str | None, name: str, *, yes: bool) -> bool:
    """Whether this key may be pinned: it is the expected one, or the operator says so."""
    if fingerprint is None:
        return confirm(question, yes=yes)
    if fingerprint.removeprefix("SHA256:") != key.fingerprint.removeprefix("SHA256:"):
        raise HostKeyError(
            f"`{name}` shows the key `{key.fingerprint}` and not the expected `{fingerprint}`",
            hint="find out which is right before going on: somebody may be in between",
        )
    return True


def _known(db: Database, name: str) -> Mapping[str, Any]:
    row = db.read(lambda conn: stored(conn, name))
    if row is None:
        raise NotFound(f"no host `{name}`", hint="`turnout hosts list` shows them, `turnout hosts add` adds one")
    return row


def _where(spec: HostSpec) -> str:
    return f"{spec.name} ({spec.address})" if spec.address and spec.address != spec.name else spec.name
