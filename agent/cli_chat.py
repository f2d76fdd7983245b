"""`turnout chat`: a session that is talked to, on a screen or in plain lines.

Opens a new session, or goes on with one; a session that another process drives is only watched. Leaving gives the
session back and leaves jobs running. The screen is shown before anything heavy is imported: what it looks like is in
`agent/screen_app.py`, the plain face in `agent/face_plain.py`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from agent.cli_frame import reader_may_leave, say
from agent.screen_signals import let_go

if TYPE_CHECKING:
    from agent.chat import Chat
    from agent.face_plain import PlainFace

Left = tuple[int, str | None, list[str]]
"""Exit code, the session to go on with, and what is to be said."""


def chat(url: str | None, wanted: str | None, *, plain: bool, yes: bool = False) -> int:
    """Open, stay, leave. Returns the exit code."""
    while True:
        if not plain and is_screen():
            from agent.screen_app import run_screen

            code, wanted, said = run_screen(url, wanted, yes=yes)
        else:
            code, wanted, said = run_plain(url, wanted, yes=yes)
        with reader_may_leave():
            for line in said:
                say(line)
        if wanted is None:
            return code


def is_screen() -> bool:
    """Whether this terminal can show the screen."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def run_plain(url: str | None, wanted: str | None, *, yes: bool) -> Left:
    """The plain face, until it is left."""
    import anyio

    return anyio.run(_plain, url, wanted, yes)


async def _plain(url: str | None, wanted: str | None, yes: bool) -> Left:
    import anyio

    from agent.chat_session import farewell, open_chat, opened_database, take
    from agent.config import load_config
    from agent.face_plain import PlainFace
    from agent.questions import can_ask

    terminal = can_ask()
    async with opened_database(url, make=wanted is None) as db:
        config = await anyio.to_thread.run_sync(load_config)
        session, busy = await anyio.to_thread.run_sync(lambda: take(db, wanted, yes=yes))
        chat = await open_chat(db, session, attended=terminal and not busy)
        chat.yes = yes
        face = PlainFace(chat, echo=not terminal)
        face.begin(busy, terminal=terminal)
        try:
            await _stay(chat, face, config, busy=busy, terminal=terminal)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(face.close)
        return face.code, face.then, farewell(chat)


async def _stay(chat: Chat, face: PlainFace, config: Any, *, busy: str, terminal: bool) -> None:
    """Drive or look on while lines come in, until the chat is left."""
    import anyio

    from agent.chat_session import drive, look_on

    async with anyio.create_task_group() as group:
        group.start_soon(_obey_signals, face)
        group.start_soon(_listen, chat, face, terminal, busy)
        if busy:
            group.start_soon(look_on, chat)
        else:
            await drive(chat, config)
        await face.until_left()
        group.cancel_scope.cancel()


async def _listen(chat: Chat, face: PlainFace, terminal: bool, busy: str) -> None:
    """Take lines until the chat is left, then stop driving."""
    if not busy:
        await chat.ready.wait()
    await face.read(sys.stdin, terminal=terminal)
    if chat.talk is not None:
        chat.talk.stop()


async def _obey_signals(face: PlainFace) -> None:
    """Once: leave, which leaves jobs running. Twice: leave at once; every intent is stored before its effect."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        asked = False
        async for received in signals:
            if asked:
                os._exit(128 + received)
            asked = True
            if received == signal.SIGHUP:
                let_go()
            face.leave(3 if received == signal.SIGINT else 128 + received)
