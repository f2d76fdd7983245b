"""One process drives a session at a time: a lease with a heartbeat, and takeover.

The lease names the process by machine, boot, pid and start time. A dead owner on this very machine is seen at once, so
`turnout resume` after `kill -9` does not wait; one elsewhere is given `TTL_S` seconds after its last heartbeat.
"""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from state.errors import SessionBusy
from state.models import Owner, table

TTL_S = 20.0
HEARTBEAT_S = 5.0

_owners = table(Owner)


def this_process() -> dict[str, Any]:
    """What names this process for as long as it lives. `ticks` is its start time in clock ticks since boot."""
    return {
        "machine": _machine(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "ticks": _start_ticks(os.getpid()),
    }


def acquire(conn: Connection, session: str, process: dict[str, Any], now: float) -> dict[str, Any] | None:
    """Take the lease. Returns the dead process it was taken from, if any. Raises `SessionBusy` while another lives."""
    row = conn.execute(select(_owners).where(_owners.c.session == session)).one_or_none()
    if row is None:
        conn.execute(insert(_owners), {"session": session, "process": process, "expires": now + TTL_S})
        return None
    previous: dict[str, Any] = row.process
    if previous != process and _may_live(previous, process, row.expires, now):
        wait = max(0.0, row.expires - now)
        raise SessionBusy(
            f"session `{session}` is driven by process {previous['pid']} on `{previous['machine']}`",
            hint=f"`turnout watch {session}` shows it live; if that process is gone, its lease ends in {wait:.0f} s",
        )
    conn.execute(update(_owners).where(_owners.c.session == session), {"process": process, "expires": now + TTL_S})
    return previous


def heartbeat(conn: Connection, session: str, process: dict[str, Any], now: float) -> None:
    """Extend the lease. Raises `SessionBusy` when another process has taken it in the meantime."""
    row = conn.execute(select(_owners).where(_owners.c.session == session)).one_or_none()
    if row is None or row.process != process:
        taker = row.process["pid"] if row is not None else "nobody"
        raise SessionBusy(
            f"session `{session}` was taken over by process {taker} while this one did not answer",
            hint="this process stops here and changes nothing more; jobs go on under the new owner",
        )
    conn.execute(update(_owners).where(_owners.c.session == session), {"expires": now + TTL_S})


def release(conn: Connection, session: str, process: dict[str, Any]) -> None:
    """Give the lease back, if it is still ours."""
    row = conn.execute(select(_owners).where(_owners.c.session == session)).one_or_none()
    if row is not None and row.process == process:
        conn.execute(delete(_owners).where(_owners.c.session == session))


def owner_of(conn: Connection, session: str, now: float) -> dict[str, Any] | None:
    """The living owner of a session, or `None`."""
    row = conn.execute(select(_owners).where(_owners.c.session == session)).one_or_none()
    if row is None or not _may_live(row.process, this_process(), row.expires, now):
        return None
    return dict(row.process)


def _may_live(owner: dict[str, Any], me: dict[str, Any], expires: float, now: float) -> bool:
    same_machine = owner["machine"] == me["machine"]
    if same_machine and owner["boot"] and me["boot"]:
        if owner["boot"] != me["boot"]:
            return False
        if owner["ticks"] is not None:
            return bool(_start_ticks(owner["pid"]) == owner["ticks"])
    return expires > now


def _machine() -> str:
    node = uuid.getnode()
    # Without a network card `getnode` draws a number for each process, and marks it by this bit (RFC 9562, 6.10).
    return platform.node() if node >> 40 & 1 else f"{platform.node()}-{node:x}"


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None  # not Linux: expiry alone decides


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat (proc_pid_stat(5)); the name in field 2 may hold spaces and brackets."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])
