"""`turnout import`: a session that another program recorded, or that Turnout exported, becomes one of ours.

The source is only read. What is told at the end: how much of it there is now, and every loss with place and reason.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.cli_frame import say, say_json
from agent.load import new_id
from state.db import Database
from state.foreign.damage import Losses
from state.foreign.detect import recognise
from state.foreign.store import Imported, Importer

SHOWN_LOSSES = 20


def import_(db: Database, path: str, *, json: bool) -> int:
    """Import the sessions at `path` and say what became of them. Returns 1 if nothing could be had."""
    losses = Losses()
    done = bring(db, Path(path).expanduser(), losses)
    if json:
        say_json(as_json(done, losses))
    else:
        _tell(done, losses)
    return 0 if done else 1


def bring(db: Database, path: Path, losses: Losses) -> list[Imported]:
    """Import every session at `path`, oldest first. Raises `NotFound`, `UsageError`, `StateError`."""
    importer = Importer(db, new_id, losses)
    return [importer.store(found) for found in recognise(path, losses)]


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
        say(f"{len(told)} losses:")
        for loss in told[:SHOWN_LOSSES]:
            say(f"  {loss['place']}: {loss['reason']}")
        if len(told) > SHOWN_LOSSES:
            say(f"  and {len(told) - SHOWN_LOSSES} more: `--json` lists all of them")
    if not done:
        print("nothing could be had from it", file=sys.stderr)
