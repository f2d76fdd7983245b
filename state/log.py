"""The session log: appending changes, reading them back, and rebuilding every table from them.

`append` is the only way into the log. It writes the messages and their projection in the caller's transaction, so a
fact is in both or in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, func, insert, select, update

from state.changes import Change, session_created
from state.errors import NotFound
from state.models import PROJECTED, SYSTEM, Lease, Message, Session, table
from state.projection import PROJECTING, TOGETHER, project

_messages, _sessions, _leases = table(Message), table(Session), table(Lease)
_RESERVE = (
    update(_sessions)
    .where(_sessions.c.id == bindparam("session"))
    .values(
        next_seq=_sessions.c.next_seq + bindparam("n"),
        updated=case((_sessions.c.updated > bindparam("now"), _sessions.c.updated), else_=bindparam("now")),
    )
    .returning(_sessions.c.next_seq)
)


def append(conn: Connection, session: str, changes: Sequence[Change], now: float) -> list[int]:
    """Write `changes` at time `now` (seconds). Returns their numbers.

    Raises `NotFound` for a session that was never created, `StateError` for a change the tables refuse.
    """
    if not changes:
        return []
    rest = 0
    if changes[0].kind == "session.created":
        project(conn, session, changes[0].kind, [changes[0].payload], now)
        rest = 1
    end = conn.execute(_RESERVE, {"session": session, "n": len(changes), "now": now}).scalar_one_or_none()
    if end is None:
        raise NotFound(f"no session `{session}`", hint="`turnout sessions` lists them")
    seqs = list(range(end - len(changes), end))
    conn.execute(
        insert(_messages),
        [
            {
                "session": session,
                "seq": seq,
                "time": now,
                "kind": change.kind,
                "actor": change.actor,
                "payload": change.payload,
                "cause": None if change.follows is None else seq - change.follows,
            }
            for seq, change in zip(seqs, changes, strict=True)
        ],
    )
    for kind, run in groupby(changes[rest:], key=attrgetter("kind")):
        project(conn, session, kind, [change.payload for change in run], now)
    return seqs


def append_system(conn: Connection, changes: Sequence[Change], now: float) -> list[int]:
    """Write to the log of what belongs to no session, such as the list of hosts. It begins with its first use."""
    known = conn.execute(select(_sessions.c.id).where(_sessions.c.id == SYSTEM)).one_or_none()
    begins = session_created(kind="system", title="hosts", playbook=None, source=None, parent=None, settings={})
    return append(conn, SYSTEM, [*([] if known else [begins]), *changes], now)


def read(conn: Connection, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Message]:
    """The messages of a session in order, from the one behind `after`."""
    query = (
        select(_messages).where((_messages.c.session == session) & (_messages.c.seq > after)).order_by(_messages.c.seq)
    )
    for row in conn.execute(query if limit is None else query.limit(limit)):
        yield Message(**row._mapping)


def restore(conn: Connection, session: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write messages that were recorded elsewhere as they are: their numbers, times and causes are kept.

    `rows` have the columns of `Message` and go on where the log ends. Raises `StateError` for what the tables refuse.
    """
    projecting = [row for row in rows if row["kind"] in PROJECTING]
    together = groupby(projecting, key=lambda row: (row["kind"], None if row["kind"] in TOGETHER else row["time"]))
    for (kind, time), run in together:
        project(conn, session, kind, [row["payload"] for row in run], time or 0.0)
    conn.execute(insert(_messages), list(rows))
    newest = max(row["time"] for row in rows)
    ends = {
        "next_seq": rows[-1]["seq"] + 1,
        "updated": case((_sessions.c.updated > newest, _sessions.c.updated), else_=newest),
    }
    conn.execute(update(_sessions).where(_sessions.c.id == session).values(ends))


def forget(conn: Connection, session: str) -> None:
    """Remove a session with its log and all rows that follow from it. For imports that came to nothing."""
    for rows in (_messages, *map(table, PROJECTED)):
        column = rows.c.id if rows is _sessions else rows.c.get("session")
        if column is not None:
            conn.execute(delete(rows).where(column == session))


def rebuild(conn: Connection) -> int:
    """Empty every projected table and fill it from the log alone. Returns the number of messages read.

    One session after the other, each in the order of its log: a clock that was set back says nothing of the order, and
    no log says it across sessions. Leases are the one table that they share (hosts have a log of their own), so those
    of a session are put aside with its end: what is held at the end of all logs was held by one job a GPU.
    """
    for model in PROJECTED:
        conn.execute(delete(table(model)))
    count, held = 0, []
    for session in conn.execute(select(_messages.c.session).distinct()).scalars().all():
        query = select(_messages).where(_messages.c.session == session).order_by(_messages.c.seq)
        for row in conn.execute(query).all():
            project(conn, session, row.kind, [row.payload], row.time)
            count += 1
        held += [dict(lease) for lease in conn.execute(select(_leases)).mappings()]
        conn.execute(delete(_leases))
    if held:
        conn.execute(insert(_leases), held)
    last = select(_messages.c.session, func.max(_messages.c.time), func.max(_messages.c.seq))
    for id, time, seq in conn.execute(last.group_by(_messages.c.session)).all():
        conn.execute(update(_sessions).where(_sessions.c.id == id), {"next_seq": seq + 1, "updated": time})
    return count


def snapshot(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """Every projected row, in a fixed order: what two databases are compared by."""
    tables = {}
    for model in PROJECTED:
        columns = table(model)
        rows = conn.execute(select(columns).order_by(*columns.primary_key.columns)).mappings()
        tables[columns.name] = [dict(row) for row in rows]
    return tables
