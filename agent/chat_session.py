"""A chat's life around its session: what is read when it opens, driving it, looking on, and what is said when it ends.

chat = await open_chat(db, session, attended=True)
await drive(chat, config)          # until `chat.talk.stop()` or the end of the session
await look_on(chat)                # instead, when another process drives it
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio import to_thread
from rich.text import Text
from sqlalchemy import Connection, select, text

from agent.board import Board
from agent.chat import UNTITLED, Chat
from agent.chat_entries import SHOWN, Conversation
from agent.chat_text import event_line
from agent.look import ENDED, find_session, read_board
from state import changes as c
from state import owner
from state.changes import Change
from state.db import Database
from state.errors import SessionBusy
from state.log import append, read
from state.models import Message, Session, table

HISTORY = 100
"""Messages of the log that a resumed chat begins with."""
POLL_S = 0.5
_KINDS = ", ".join(f"'{kind}'" for kind in (*SHOWN, "todo.status") if kind != "model.asked")
_NEWEST = text(
    f"SELECT seq, time, kind, payload FROM messages WHERE session = :session AND kind IN ({_KINDS})"
    " ORDER BY seq DESC LIMIT :limit"
)


@asynccontextmanager
async def opened_database(
    url: str | None, given: Database | None = None, *, make: bool = True
) -> AsyncIterator[Database]:
    """The database, opened beside the event loop and closed after it; one that is `given` is left open.

    `make` as for `Database.open`: there is nothing to go on with in one that is made now.
    """
    db = given if given is not None else await to_thread.run_sync(lambda: Database.open(url, make=make))
    try:
        yield db
    finally:
        if given is None:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(db.close)


def take(db: Database, wanted: str | None, *, yes: bool) -> tuple[str, str]:
    """The session to talk to, owned by this process from here on; or one that another process owns, and who that is.

    Blocks. Raises `NotFound`, `UsageError`.
    """
    from agent.runner import take_over
    from agent.talk import create_chat

    if wanted is None:
        return create_chat(db, title=UNTITLED, yes=yes), ""
    session = db.read(lambda conn: find_session(conn, wanted))
    try:
        take_over(db, session)
    except SessionBusy as busy:
        return session, busy.message
    return session, ""


async def open_chat(db: Database, session: str, *, attended: bool) -> Chat:
    """The chat of a stored session, with the end of its conversation. Raises `NotFound`."""

    def work(conn: Connection) -> tuple[Board, list[Any]]:
        board = read_board(conn, session)
        rows = conn.execute(_NEWEST, {"session": session, "limit": HISTORY}).all()
        return board, list(reversed(rows))

    board, rows = await db.aread(work)
    conversation = Conversation()
    for seq, at, kind, stored in rows:
        payload = json.loads(stored) if isinstance(stored, (str, bytes)) else stored
        conversation.apply(kind, payload, seq, at)
        if kind == "todo.status" and (line := _past(board, payload)) is not None:
            conversation.event(line, seq=seq, time=at, key=payload["id"])
    return Chat(db, session, board, conversation, attended=attended)


def _past(board: Board, payload: dict[str, Any]) -> Text | None:
    """How a todo ended, long ago: its present times are right only for its last end, so none are told."""
    todo = board.todos.get(payload["id"])
    if todo is None or payload["now"] in ("in_progress", "pending"):
        return None
    line = event_line(board, payload, time.time())
    return line if todo.status == payload["now"] else None


async def drive(chat: Chat, config: Any) -> str:
    """Drive the session, which this process owns, until it is told to stop; its status. Gives the session back."""
    from agent.talk import open_talk

    chat.setup_hint = config.setup_hint
    chat.board.status = "running"
    try:
        async with open_talk(chat.db, chat.session, chat, config) as talk:
            chat.talk = talk
            chat.doing(talk.doing)
            chat.ready.set()
            return str(await talk.run())
    finally:
        chat.talk = None
        with anyio.CancelScope(shield=True):
            await chat.db.awrite(lambda conn: give_back(conn, chat.session))


def give_back(conn: Connection, session: str) -> None:
    """End the lease; a conversation in which nothing happened ends with it, so that nobody is sent back to it."""
    sessions = table(Session)
    row = conn.execute(select(sessions.c.kind, sessions.c.next_seq).where(sessions.c.id == session)).one_or_none()
    if row is not None and row.kind == "chat":
        messages = table(Message)
        words = select(messages.c.seq).where(messages.c.session == session)
        said = words.where(messages.c.kind.in_(("operator.said", "todo.added"))).limit(1)
        if conn.execute(said).one_or_none() is None:
            append(conn, session, [c.session_status("cancelled", "nothing was asked for")], time.time())
    owner.release(conn, session, owner.this_process())


async def look_on(chat: Chat) -> None:
    """Follow a session that another process drives, until it ends."""
    chat.status.watching = "another process drives this session; here it is only watched"

    def news(conn: Connection) -> list[Message]:
        chat.board.abandoned = owner.owner_of(conn, chat.session, time.time()) is None
        return list(read(conn, chat.session, after=chat.board.seq))

    while chat.board.status not in ENDED:
        messages = await chat.db.aread(news)
        if messages:
            chat.changed([Change(m.kind, m.payload, m.actor) for m in messages], [m.seq for m in messages])
        await anyio.sleep(POLL_S)


def farewell(chat: Chat) -> list[str]:
    """What is said when the chat is left: what goes on, and how to come back."""
    board = chat.board
    alive = [job for job in board.jobs.values() if job.alive]
    lines = []
    if alive:
        names = ", ".join(f"{job.todo} on {job.host}" for job in alive[:8]) + (" …" if len(alive) > 8 else "")
        lines.append(f"{len(alive)} job{'s go' if len(alive) > 1 else ' goes'} on without you: {names}")
    if board.status in ENDED:
        lines.append(f"session {chat.session} has {board.status}: `turnout replay {chat.session}` shows it again")
    elif board.todos or chat.conversation.entries:
        lines.append(f"come back with `turnout resume {chat.session}`")
    return lines
