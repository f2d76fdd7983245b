"""`turnout doctor`: is everything here as it should be, and what to do where it is not.

Each check is a function that gives findings; none of them changes anything, but `--rebuild`, which fills every table
again from the log within one transaction and says what was different before. The checks of hosts are in
`agent/doctor_hosts.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.text import Text
from sqlalchemy import Connection, select

from agent.cli_frame import say_json
from agent.doctor_hosts import Finding, known_hosts, local_host, ssh_config
from agent.hosts import local_root
from agent.logs import configure_once
from agent.screen import screen
from state.db import HEAD, Database, schema_version, state_dir
from state.errors import NotFound, TurnoutError
from state.log import rebuild, snapshot
from state.models import PROJECTED, Session, table
from state.owner import owner_of

MARKS = {"ok": ("✔", "green"), "warn": ("!", "bold yellow"), "fail": ("✘", "bold red")}
LITTLE_ROOM = 1 << 30
MAX_DIFFERENCES = 10


def doctor(url: str | None, *, rebuild: bool, hosts: bool, json: bool) -> int:
    """Run all checks. Returns 1 when one of them failed."""
    configure_once()
    console = screen()
    findings: list[Finding] = []
    for finding in _findings(url, rebuild=rebuild, hosts=hosts):
        findings.append(finding)
        if not json:
            mark, style = MARKS[finding.state]
            console.print(Text.assemble((mark, style), f" {finding.check:<10} {finding.said}"), soft_wrap=True)
            if finding.todo:
                console.print(Text(f"             -> {finding.todo}", "bold"), soft_wrap=True)
    if json:
        say_json([finding.as_json() for finding in findings])
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def _findings(url: str | None, *, rebuild: bool, hosts: bool) -> Iterator[Finding]:
    yield _python()
    yield _packages()
    yield from _room()
    try:
        db = Database.open(url, make=False)
    except NotFound as error:
        yield Finding("database", "warn", error.message, error.hint)
    except TurnoutError as error:
        yield Finding("database", "fail", error.message, error.hint)
    else:
        yield from _database(db)
        yield from _tables(db, repair=rebuild)
        yield from _sessions(db)
        if hosts:
            yield from known_hosts(db)
        db.close()
    yield ssh_config()
    yield local_host()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"{version} at {sys.executable}")


def _packages() -> Finding:
    """Whether what Turnout needs is installed; pip has seen to the versions."""
    try:
        needed = [text for text in metadata.requires("turnout") or () if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        return Finding(
            "packages", "warn", "Turnout is run from its folder and not installed", "`pip install -e .` there"
        )
    names = [found[0] for text in needed if (found := re.match(r"[A-Za-z0-9._-]+", text))]
    missing = [name for name in names if not list(metadata.distributions(name=name))]
    if missing:
        todo = f"`{sys.executable} -m pip install {' '.join(missing)}`"
        return Finding("packages", "fail", f"missing: {', '.join(missing)}", todo)
    return Finding("packages", "ok", f"turnout {metadata.version('turnout')}, {len(names)} packages it needs")


def _room() -> Iterator[Finding]:
    for name, folder in (("state", state_dir()), ("jobs", Path(local_root()).expanduser())):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        said = f"{free / (1 << 30):.1f} GiB free for {folder}"
        if not os.access(there, os.W_OK):
            yield Finding(
                name, "fail", f"`{there}` is not writable", "set XDG_STATE_HOME or TURNOUT_ROOT to a folder of yours"
            )
        elif free < LITTLE_ROOM:
            yield Finding(name, "warn", said, f"make room on the file system of `{there}`")
        else:
            yield Finding(name, "ok", said)


def _database(db: Database) -> Iterator[Finding]:
    version = db.read(schema_version)
    yield Finding("database", "ok" if version == HEAD else "fail", f"{db.url}, schema {version}")
    if db.engine.dialect.name != "sqlite":
        return
    problems = db.read(lambda conn: [str(row[0]) for row in conn.exec_driver_sql("PRAGMA integrity_check")])
    if problems != ["ok"]:
        todo = "stop Turnout, keep a copy of the file, and recover it with `sqlite3 FILE .recover`"
        yield Finding("database", "fail", f"SQLite finds: {'; '.join(problems[:3])}", todo)
    mode = stat.S_IMODE(os.stat(Path(db.url).expanduser()).st_mode)
    if mode & 0o077:
        yield Finding("database", "warn", f"others may read it: mode {mode:04o}", f"`chmod 600 {db.url}`")


def _tables(db: Database, *, repair: bool) -> Iterator[Finding]:
    """Rebuild from the log and compare, in one transaction that is taken back unless `repair` is wanted."""
    began = time.monotonic()
    with db.engine.connect() as plain:
        conn = plain.execution_options(turnout_write=True)
        with conn.begin() as transaction:
            before = snapshot(conn)
            messages = rebuild(conn)
            differences = list(_differences(before, snapshot(conn)))
            if not repair:
                transaction.rollback()
    took = f"{messages} messages in {time.monotonic() - began:.1f} s"
    if not differences:
        yield Finding("tables", "ok", f"equal to what the log gives ({took})" + ("; rebuilt" if repair else ""))
        return
    some = "; ".join(differences[:MAX_DIFFERENCES]) + (" ..." if len(differences) > MAX_DIFFERENCES else "")
    if repair:
        yield Finding("tables", "ok", f"rebuilt from the log ({took}); it was otherwise: {some}")
    else:
        yield Finding(
            "tables", "fail", f"{_rows(differences)} not what the log says: {some}", "`turnout doctor --rebuild`"
        )


def _rows(differences: list[str]) -> str:
    return "1 row is" if len(differences) == 1 else f"{len(differences)} rows are"


def _differences(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Which rows are not what the log says they are."""
    for model in PROJECTED:
        columns = table(model)
        names = [column.name for column in columns.primary_key.columns]
        old, new = ({"/".join(str(row[n]) for n in names): row for row in all[columns.name]} for all in (before, after))
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                yield f"{columns.name} {key} is not in the log"
            elif key not in old:
                yield f"{columns.name} {key} was missing"
            elif old[key] != new[key]:
                wrong = [name for name, value in new[key].items() if old[key][name] != value]
                yield f"{columns.name} {key} in {', '.join(wrong)}"


def _sessions(db: Database) -> Iterator[Finding]:
    """Sessions that should be running and that no living process drives."""

    def orphans(conn: Connection) -> list[str]:
        sessions = table(Session)
        running = select(sessions.c.id).where((sessions.c.status == "running") & (sessions.c.kind != "system"))
        return [id for id in conn.execute(running).scalars() if owner_of(conn, id, time.time()) is None]

    found = db.read(orphans)
    for id in found:
        yield Finding("sessions", "warn", f"session {id} was interrupted", f"`turnout resume {id}`")
    if not found:
        yield Finding("sessions", "ok", "none was interrupted")
