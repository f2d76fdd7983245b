"""A stored conversation, read back: only what the model would still see, however long the log is.

    transcript = read_transcript(conn, session)

What lies before the newest summary is not read: its words are in the summary, its open notices in their table, and the
number of its calls is counted. The words of the operator that nobody had answered when the summary was made are kept.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from agent.transcript import Transcript
from state.conversation import SPOKEN
from state.models import Message, Notice, table

_messages, _notices = table(Message).c, table(Notice)


def read_transcript(conn: Connection, session: str) -> Transcript:
    """The conversation of a session as it goes on from here."""
    transcript = Transcript()
    start = _start(conn, session)
    if start:
        _skip(conn, session, start, transcript)
    query = select(_messages.seq, _messages.kind, _messages.payload).where(_messages.session == session)
    spoken = query.where((_messages.seq > start) & _messages.kind.in_(SPOKEN)).order_by(_messages.seq)
    for seq, kind, payload in conn.execute(spoken):
        transcript.take(seq, kind, payload)
    return transcript


def _last(conn: Connection, session: str, kind: str, before: int | None = None) -> Any:
    """The newest message of a kind, `None` if there is none."""
    query = select(_messages.seq, _messages.payload).where((_messages.session == session) & (_messages.kind == kind))
    if before is not None:
        query = query.where(_messages.seq <= before)
    return conn.execute(query.order_by(_messages.seq.desc()).limit(1)).one_or_none()


def _start(conn: Connection, session: str) -> int:
    """The number behind which the log has to be read."""
    compacted = _last(conn, session, "conversation.compacted")
    if compacted is None:
        return 0
    through = int(compacted.payload["through"])
    answered = _last(conn, session, "model.answered", through)
    if answered is None:
        return 0
    asked = _last(conn, session, "model.asked", answered.seq)
    if asked is None:
        return 0
    # What came while that answer was given was not heard by it, and may not have been by any.
    return min(int(asked.payload["request"]["through"]), through)


def _skip(conn: Connection, session: str, start: int, transcript: Transcript) -> None:
    """What has to be known of the part that is not read."""
    asked = (_messages.session == session) & (_messages.kind == "model.asked") & (_messages.seq <= start)
    transcript.calls = conn.execute(select(func.count()).where(asked)).scalar_one()
    if (cleared := _last(conn, session, "conversation.cleared", start)) is not None:
        transcript.cleared = int(cleared.payload["through"])
    raised = select(_messages.seq, _messages.payload).where(
        (_messages.session == session) & (_messages.kind == "notice.raised") & (_messages.seq <= start)
    )
    open_ones = select(_notices.c.id).where((_notices.c.session == session) & _notices.c.delivered.is_(None))
    wanted = set(conn.execute(open_ones).scalars())
    if wanted:
        for seq, payload in conn.execute(raised.order_by(_messages.seq)):
            if payload["id"] in wanted:
                transcript.take(seq, "notice.raised", payload)
