"""`turnout import`: a session that another program recorded, or that Turnout exported, becomes one of ours.

The source is only read. What is told at the end: how much of it there is now, and every loss with place and reason.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agent.cli_export import unpack_extras
from agent.cli_frame import note, say, say_json
from agent.load import new_id
from agent.pace import clock, size
from state import export
from state.db import Database
from state.errors import SessionBusy, StateError, UsageError
from state.foreign.damage import Losses
from state.foreign.detect import recognise
from state.foreign.store import Imported, Importer
from state.foreign.story import Counts, Found
from state.owner import owner_of

SHOWN_LOSSES = 20
QUIET_S = 1.0
TOLD_EVERY_S = 0.25


def import_(db: Database, path: str, *, json: bool) -> int:
    """Import the sessions at `path` and say what became of them. Returns 1 if nothing could be had."""
    source = Path(path).expanduser()
    watch = _Watch(source)
    losses = Losses(watch.see)
    done = bring(db, source, losses)
    watch.close()
    if json:
        say_json(as_json(done, losses))
    else:
        _tell(done, losses)
    return 0 if done else 1


class _Watch:
    """How far a long import is, on one line of the terminal: share, rate, what is left. Nothing without a terminal."""

    def __init__(self, source: Path) -> None:
        self._name = source.name
        self._size = source.stat().st_size if source.is_file() else None
        self._began = self._told = time.monotonic()
        self._shown = False

    def see(self, share: float) -> None:
        """That much of a file is read."""
        now = time.monotonic()
        if now - self._told < TOLD_EVERY_S or now - self._began < QUIET_S or not sys.stderr.isatty():
            return
        self._told, self._shown = now, True
        text = f"reading {self._name}: {share:.0%}"
        if self._size is not None and share > 0:
            took = now - self._began
            text += f"  {size(share * self._size / took)}/s  {clock(took * (1 - share) / share)} left"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def close(self) -> None:
        """The line is gone when there is something else to say."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def bring(db: Database, path: Path, losses: Losses) -> list[Imported]:
    """Import every session at `path`, oldest first. Raises `NotFound`, `UsageError`, `StateError`."""
    if export.is_export(path):
        return bring_export(db, path, losses)[0]
    importer = Importer(db, new_id, losses)
    ours = sorted(file for file in path.rglob("*.jsonl") if export.is_export(file)) if path.is_dir() else []
    theirs = [importer.store(found) for found in recognise(path, losses, known=ours)]
    return [*theirs, *(one for file in ours for one in _bring_one_of(db, path, file, losses))]


def _bring_one_of(db: Database, folder: Path, file: Path, losses: Losses) -> list[Imported]:
    """An export among the files of a folder: that it cannot be had is a loss, and the others are."""
    try:
        return bring_export(db, file, losses)[0]
    except (UsageError, StateError) as error:
        losses.add(str(file.relative_to(folder)), error.message)
        return []


def bring_export(db: Database, path: Path, losses: Losses) -> tuple[list[Imported], export.Exported]:
    """Take in a session that Turnout exported, under its own id. What it brought with it is not unpacked here.

    Raises `StateError` if another session has that id, or if the session is driven at this moment.
    """
    exported = export.read(path, losses)
    if exported.session not in exported.numbers or not exported.numbers[exported.session]:
        losses.add(path.name, "no message of the session that it names")
        return [], exported

    def write(conn: Connection) -> None:
        driver = owner_of(conn, exported.session, time.time())
        if driver is not None:
            raise SessionBusy(
                f"session `{exported.session}` is driven here by process {driver['pid']}",
                hint=f"`turnout watch {exported.session}` shows it",
            )
        export.bring(conn, exported)

    try:
        db.write(write)
    except IntegrityError as error:
        raise StateError(
            f"session `{exported.session}` holds what is taken here: {error.orig}",
            hint="another session may hold a lease on the same GPU: let it end first",
        ) from error
    made = {id: _of_export(exported, id) for id in exported.numbers}
    for id, parent in exported.parents.items():
        if parent in made and parent != id:
            made[parent].children.append(made[id])
    return [made[exported.session]], exported


def _of_export(exported: export.Exported, session: str) -> Imported:
    kinds = exported.kinds[session]
    number = len(exported.numbers[session])
    found = Found(session, "turnout", str(exported.path), lambda story: None, title=exported.titles[session])
    counts = Counts(messages=number, tool_calls=kinds["tool.answered"], records=number)
    return Imported(session, found, exported.titles[session], counts)


def take_in(db: Database, path: str) -> str:
    """For `resume --from`: the session of an exported file, with its hosts and payloads, ready to go on here.

    Raises `UsageError` for a file that is no export, was redacted, or cannot be read.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"there is no file `{file}`", hint="give the file that `turnout export --out FILE` wrote")
    if not export.is_export(file):
        raise UsageError(
            f"`{file}` is no session that Turnout exported", hint="`turnout import` takes others, to be read"
        )
    losses = Losses()
    done, exported = bring_export(db, file, losses)
    for loss in losses.told():
        note(f"{loss['place']}: {loss['reason']}")
    if not done:
        raise UsageError(f"`{file}` holds nothing of a session", hint="export it again")
    if "hosts" in exported.redacted or "paths" in exported.redacted:
        raise UsageError(
            f"`{file}` was redacted: its hosts cannot be reached by the names in it", hint="export it without redaction"
        )
    for added in unpack_extras(db, exported.extras):
        note(f"added {added}")
    note("let it rest where it came from: two processes on two machines must not drive one session")
    return exported.session


def as_json(done: Sequence[Imported], losses: Losses) -> dict[str, Any]:
    """The newest session, and the sums over all that were in the source. `sessions` tells them apart."""
    every = [one for top in done for one in top.all()]
    return {
        "session": done[-1].session if done else None,
        "format": done[-1].found.format if done else None,
        "messages": sum(one.counts.messages for one in every),
        "tool_calls": sum(one.counts.tool_calls for one in every),
        "subagents": len(every) - len(done),
        "losses": losses.told(),
        "sessions": [_one(top) for top in done],
    }


def _one(imported: Imported) -> dict[str, Any]:
    counts = imported.counts
    return {
        "session": imported.session,
        "foreign_id": imported.found.key,
        "title": imported.title,
        "records": counts.records,
        "messages": counts.messages,
        "tool_calls": counts.tool_calls,
        "inactive": counts.inactive,
        "subagents": [_one(child) for child in imported.children],
    }


def _tell(done: Sequence[Imported], losses: Losses) -> None:
    for top in done:
        counts = top.counts
        more = f", {len(top.all()) - 1} subagents" if top.children else ""
        say(f"session {top.session}  {top.title}")
        say(f"  from {top.found.format}: {counts.messages} messages, {counts.tool_calls} tool calls{more}")
    told = losses.told()
    if told:
        say("1 loss:" if len(told) == 1 else f"{len(told)} losses:")
        for loss in told[:SHOWN_LOSSES]:
            say(f"  {loss['place']}: {loss['reason']}")
        if len(told) > SHOWN_LOSSES:
            say(f"  and {len(told) - SHOWN_LOSSES} more: `--json` lists all of them")
    if not done:
        print("nothing could be had from it", file=sys.stderr)
