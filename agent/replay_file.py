"""A recording from a file: an exported session, or one that another program recorded. Nothing is kept.

    recording = from_file(Path("session.jsonl"))

The file is imported as `turnout import` does, into a database of its own that is gone afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent.replay import Recording
from agent.replay_source import from_database
from state.db import Database
from state.errors import UsageError

FEW = 5


def from_file(path: Path, note: Callable[[str], None]) -> Recording:
    """The newest session in it. `note` is told what could not be read. Raises `UsageError` when nothing could."""
    from agent.cli_import import bring
    from state.foreign.damage import Losses

    losses = Losses()
    with tempfile.TemporaryDirectory(prefix="turnout-replay-") as folder:
        db = Database.open(str(Path(folder) / "t.db"))
        try:
            done = bring(db, path, losses)
            told = losses.told()
            for loss in told[:FEW]:
                note(f"{loss['place']}: {loss['reason']}")
            if len(told) > FEW:
                note(f"and {len(told) - FEW} more: `turnout import {path} --json` lists all of them")
            if not done:
                raise UsageError(f"`{path}` holds no session that can be read", hint="docs/formats.md says what can be")
            recording = from_database(db, done[-1].session)
        finally:
            db.close()
    recording.facts = replace(recording.facts, origin=str(path))
    return recording
