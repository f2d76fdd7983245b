"""`turnout replay`: watch a session's log again, make a page of it, or check it against today's code.

On a terminal it is a screen (`agent/watch_app.py`), else lines: all at once, or with `--speed` in their time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.cli_frame import database, is_live, note, say, say_json, target
from agent.pace import clock, size
from agent.replay import Recording
from agent.replay_player import Player, speed_of
from agent.replay_words import line
from state.db import Database
from state.errors import UsageError

FILES = {".jsonl", ".json", ".db", ".traj"}
"""Endings that no session's id has: what is named so is meant to be a file."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for; see the command's help."""

    speed: str | None = None
    step: bool = False
    at: str | None = None
    plain: bool = False
    html: str | None = None
    logs: bool = True
    json: bool = False


def replay(url: str | None, wanted: str | None, wish: Wish) -> int:
    """Show it as wished. The database at `url` is opened only for a session that is stored there, not for a file.

    Raises `NotFound`, `UsageError`.
    """
    path = Path(wanted or "").expanduser()
    if wanted is None or not ("/" in wanted or path.suffix in FILES or path.exists()):
        from agent.replay_source import from_database

        with database(url) as db:
            return show(db, from_database(db, wanted), wish)
    from agent.replay_file import from_file

    if not path.exists():
        raise UsageError(f"there is no file `{wanted}`", hint="give a file, or a session: `turnout sessions`")
    return show(None, from_file(path, note), wish)


def show(db: Database | None, recording: Recording, wish: Wish) -> int:
    """Show a recording as wished; `db` holds it, `None` for a file's."""
    if wish.html is not None:
        return write_page(db, recording, target("--html", wish.html), logs=wish.logs)
    if wish.json:
        return tell_json(recording, wish)
    speed = speed_of(wish.speed) if wish.speed is not None else None
    if not wish.plain and sys.stdin.isatty() and is_live(None):
        from agent import watch_app

        place = recording.place(wish.at) if wish.at else 0
        return watch_app.show(db, Player(recording, place=place, speed=speed or 10.0), playing=not wish.step)
    return tell(recording, wish, speed)


def write_page(db: Database | None, recording: Recording, path: Path, *, logs: bool) -> int:
    """Write the page to `path`. Says where, how large it is, and what it could not get."""
    from agent.page import page

    fetched = {}
    if db is not None and logs:
        from agent.replay_logs import fetch

        fetched = fetch(db, recording, note)
    html = page(recording, logs=fetched).encode("utf-8")
    try:
        path.write_bytes(html)
    except OSError as error:
        raise UsageError(
            f"the page cannot be written to `{path}`: {error.strerror}", hint="choose another folder"
        ) from error
    say(f"{path}  {len(recording)} messages, {size(len(html))}; it opens from disk and needs no network")
    return 0


def tell(recording: Recording, wish: Wish, speed: float | None, wait: Callable[[float], None] = time.sleep) -> int:
    """Line by line; with `--at` first the graph as it was there."""
    player = Player(recording, place=recording.place(wish.at) if wish.at else 0, speed=speed or 1.0)
    if player.place:
        _tell_board(recording, player.place)
    width = len(str(recording.entries[-1].seq)) if recording.entries else 1
    while (pause := player.wait()) is not None:
        if wish.step and player.place and not _next():
            break
        if speed is not None and not wish.step and pause > 0:
            sys.stdout.flush()
            wait(pause)
        player.place += 1
        entry = recording.entries[player.place - 1]
        say(f"{entry.seq:>{width}} [{clock(entry.time - recording.began):>7}] {line(entry)}")
    return 0


def tell_json(recording: Recording, wish: Wish) -> int:
    """The messages as JSON, one a line, as `run --json` prints them, from `--at` on."""
    for entry in recording.entries[recording.place(wish.at) if wish.at else 0 :]:
        say_json({**entry.payload, "time": entry.time, "seq": entry.seq, "kind": entry.kind, "actor": entry.actor})
    return 0


def _next() -> bool:
    """Wait for Enter; `False` at the end of the input."""
    sys.stdout.flush()
    return bool(sys.stdin.readline())


def _tell_board(recording: Recording, place: int) -> None:
    from agent.picture import draw
    from agent.screen import screen

    console = screen()
    board = recording.board(place)
    when = recording.time(place)
    say(f"after message {recording.entries[place - 1].seq}, {clock(when - recording.began)} after the start:")
    for row in draw(board, width=console.width, height=None, now=when):
        console.print(row, soft_wrap=True)
    say()
