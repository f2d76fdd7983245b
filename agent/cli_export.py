"""`turnout export`: a session as a file, to be shared, read by other programs, or resumed on another machine.

What it needs elsewhere goes with it: how its hosts are reached and their keys, and the payload that its jobs import.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from agent.cli_frame import note, target
from agent.look import find_session
from state import changes as c
from state import export
from state.db import Database, state_dir
from state.errors import StateError, UsageError
from state.export_claude import records
from state.log import append_system, read
from state.models import Host, Job, Session, table
from state.redact import Redactor
from tools import transfer

FORMATS = ("turnout", "claude-code")
_hosts, _jobs, _sessions = table(Host), table(Job), table(Session)


def export_(
    db: Database,
    wanted: str | None,
    *,
    format: str,
    out: str | None,
    redact: bool,
    redact_hosts: bool,
    redact_paths: bool,
    yes: bool,
) -> int:
    """Write the session. Raises `UsageError` for a format that is unknown and a file that is there already."""
    if format not in FORMATS:
        raise UsageError(f"there is no format `{format}`", hint=f"known are {', '.join(f'`{f}`' for f in FORMATS)}")
    session = db.read(lambda conn: find_session(conn, wanted))
    hidden = [n for n, on in (("secrets", True), ("hosts", redact_hosts), ("paths", redact_paths)) if on]
    redactor = None
    if redact or redact_hosts or redact_paths:
        names = db.read(lambda conn: host_names(conn, session)) if redact_hosts else None
        redactor = Redactor(hosts=names, paths=redact_paths)

    def work(conn: Connection) -> int:
        if format == "claude-code":
            return _write(out, yes, _claude(conn, session, redactor, out))
        hosts = [] if redact_hosts else _host_lines(conn, session)
        payloads = [] if redactor else _payload_lines(conn, session)  # code that nobody looked through
        extras = [*hosts, *payloads]
        told = hidden if redactor else ()
        return _write(out, yes, export.lines(conn, session, extras=extras, change=redactor, redacted=told))

    count = db.read(work)
    if out is not None:
        replaced = f", {redactor.count} places redacted" if redactor else ""
        note(f"session {session}: {count} lines in {out}{replaced}")
        if redactor is not None:
            note("look through it before you share it: rules find what looks like a secret, not every secret")
    return 0


def _write(out: str | None, yes: bool, lines: Iterable[str]) -> int:
    """To the file, whole or not at all, or to stdout. Returns the number of lines."""
    count = 0
    if out is None:
        for line in lines:
            sys.stdout.write(line)
            count += 1
        return count
    path = target("--out", out)
    if path.exists() and not yes:
        raise UsageError(f"`{path}` is there already", hint="give another name, or `--yes` to replace it")
    try:
        descriptor, staging = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {error.strerror}", hint="choose another folder") from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(line)
                count += 1
        os.replace(staging, path)
    except BaseException:
        Path(staging).unlink(missing_ok=True)
        raise
    return count


def _claude(conn: Connection, session: str, redactor: Redactor | None, out: str | None) -> Iterator[str]:
    """The session's own records; its subagents' go into files beside it, where Claude Code has them."""
    folder = str(Path.cwd()) if redactor is None else "/"
    children = export.family(conn, session)[1:]
    for record in records(session, read(conn, session), folder=folder):
        yield _line(record, redactor)
    if out is None and children:
        note(f"{len(children)} subagents are left out: give `--out FILE`, and they are written beside it")
        return
    for child in children:
        place = Path(str(out)).expanduser().with_suffix("") / "subagents" / f"agent-{child}.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        told = records(child, read(conn, child), folder=folder, agent=True)
        _write(str(place), True, (_line({**record, "sessionId": session}, redactor) for record in told))


def _line(record: Mapping[str, Any], redactor: Redactor | None) -> str:
    return json.dumps(record if redactor is None else redactor(record), ensure_ascii=False) + "\n"


# What a session needs elsewhere


def host_names(conn: Connection, session: str) -> list[str]:
    """The names and addresses of machines that a session knows: its hosts, and this machine."""
    names = {platform.node(), *conn.execute(select(_jobs.c.host).where(_jobs.c.session == session)).scalars()}
    for row in conn.execute(select(_hosts)):
        names |= {row.name, row.address.rpartition("@")[2]}
    settings = conn.execute(select(_sessions.c.settings).where(_sessions.c.id == session)).scalar_one()
    names |= {str(settings.get("params", {}).get("host", "")), *settings.get("hosts", {})}
    return [name for name in names if len(name) > 1]


def _host_lines(conn: Connection, session: str) -> Iterator[dict[str, Any]]:
    used = set(host_names(conn, session))
    for row in conn.execute(select(_hosts).order_by(_hosts.c.name)):
        if row.name in used:
            told = {"name": row.name, "address": row.address, "settings": row.settings, "key": row.key}
            yield {"extra": "host", **told, "facts": row.facts}


def _payload_lines(conn: Connection, session: str) -> Iterator[dict[str, Any]]:
    """The payloads of a session, file by file; one that is no longer here is left out and told."""
    settings = conn.execute(select(_sessions.c.settings).where(_sessions.c.id == session)).scalar_one()
    known = [settings.get("payload"), *(scope.get("payload") for scope in settings.get("scopes", {}).values())]
    for payload in {p["hash"]: p for p in known if p}.values():
        root = state_dir() / "payloads" / payload["hash"]
        if not root.is_dir():
            note(f"the payload `{payload['package']}` is not here: elsewhere only jobs that run already can go on")
            continue
        files = [
            {"path": str(p.relative_to(root)), "mode": p.stat().st_mode & 0o777, "content": _packed(p.read_bytes())}
            for p in sorted(root.rglob("*"))
            if p.is_file()
        ]
        yield {"extra": "payload", **payload, "files": files}


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def unpack_extras(db: Database, extras: Iterable[Mapping[str, Any]]) -> list[str]:
    """Add what a session brought with it: hosts that are unknown here, payloads. Returns what was added, in words."""
    added = []
    for extra in extras:
        if extra["extra"] == "host" and _add_host(db, extra):
            added.append(f"host `{extra['name']}` ({extra['address']}), with the key that the file pins")
        elif extra["extra"] == "payload" and not (state_dir() / "payloads" / str(extra["hash"])).is_dir():
            _unpack(extra)
            added.append(f"payload `{extra['package']}`")
    return added


def _add_host(db: Database, extra: Mapping[str, Any]) -> bool:
    """Add a host unless one of its name is known here, which may well be reached another way."""

    def add(conn: Connection) -> bool:
        if conn.execute(select(_hosts.c.name).where(_hosts.c.name == str(extra["name"]))).one_or_none() is not None:
            return False
        append_system(conn, [_host(extra)], time.time())
        return True

    return db.write(add)


def _host(extra: Mapping[str, Any]) -> c.Change:
    return c.host_saved(
        str(extra["name"]), address=str(extra["address"]), settings=extra.get("settings") or {},
        key=extra.get("key"), facts=extra.get("facts"),
    )  # fmt: skip


def _unpack(extra: Mapping[str, Any]) -> None:
    """Write a payload below the state directory. Raises `StateError` if it is not what its hash says."""
    home = state_dir() / "payloads"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = Path(tempfile.mkdtemp(dir=home, prefix=".new-"))
    try:
        for file in extra["files"]:
            place = (staging / str(file["path"])).resolve()
            if not place.is_relative_to(staging.resolve()):
                raise StateError(f"the payload names a file outside of it: `{file['path']}`")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(base64.b64decode(file["content"]))
            place.chmod(int(file["mode"]) & 0o755)
        archive, digest = transfer.pack(staging)
        archive.close()
        if digest != extra["hash"]:
            raise StateError(
                f"the payload `{extra['package']}` in the file is not what its hash says",
                hint="the file was changed after it was exported; a redacted one cannot be resumed",
            )
        os.rename(staging, home / digest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
