"""The schema: from nothing and from every older version to today's."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect
from sqlmodel import SQLModel

from state import db as state_db
from state.db import HEAD, Database, _configure, schema_version
from state.migrations.run import scripts, upgrade

REVISIONS = [step.revision for step in reversed(list(scripts().walk_revisions()))]


def test_head_is_the_newest_migration() -> None:
    """The constant that spares every start the cost of Alembic names the last step, and the steps are one line."""
    assert scripts().get_heads() == [HEAD]


@pytest.mark.parametrize("start", [None, *REVISIONS])
def test_every_older_schema_becomes_todays(tmp_path: Path, start: str | None) -> None:
    """Whoever comes from whichever version ends with exactly the tables that the rows describe."""
    path = tmp_path / "t.db"
    if start is not None:
        engine = create_engine(f"sqlite:///{path}")
        _configure(engine)
        upgrade(engine, start)
        engine.dispose()
    db = Database.open(str(path))
    with db.engine.connect() as conn:
        assert schema_version(conn) == HEAD
        assert compare_metadata(MigrationContext.configure(conn), SQLModel.metadata) == []
    db.close()


def test_a_step_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade that dies half-way can simply be run again."""
    path = tmp_path / "t.db"
    first = scripts().get_revision(REVISIONS[0])
    real = first.module.upgrade

    def breaks() -> None:
        real()
        raise OSError("disk full")

    monkeypatch.setattr("state.migrations.run.scripts", lambda: directory)
    directory = scripts()
    directory.get_revision(REVISIONS[0]).module.upgrade = breaks
    with pytest.raises(OSError, match="disk full"):
        Database.open(str(path))
    monkeypatch.undo()
    engine = create_engine(f"sqlite:///{path}")
    assert inspect(engine).get_table_names() == []
    engine.dispose()
    Database.open(str(path)).close()
    assert state_db.HEAD == HEAD
