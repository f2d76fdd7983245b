"""Applies migrations inside one write transaction, so that a step that fails leaves nothing behind.

Alembic finds the steps in `versions` and runs them on our connection: with its own connection the DDL of a failed step
would stay in an SQLite file. A second process that waits for the same upgrade finds it done.
"""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from state.errors import StateError


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def upgrade(engine: Engine, target: str) -> None:
    """Bring the database to `target`. Raises `StateError` when it was written by a newer Turnout."""
    directory = scripts()
    with engine.connect() as plain:
        conn = plain.execution_options(turnout_write=True)
        with conn.begin():
            _upgrade(conn, directory, target)


def _upgrade(conn: Connection, directory: ScriptDirectory, target: str) -> None:
    known = {step.revision for step in directory.walk_revisions()}
    at = MigrationContext.configure(conn).get_current_revision()
    if at is not None and at not in known:
        raise StateError(
            f"the database is at schema `{at}`, which this version of Turnout does not know (newest: `{target}`)",
            hint="it was written by a newer Turnout: update this one, or point `--db` at another file",
        )

    def steps(revision: object, context: MigrationContext) -> list[RevisionStep]:
        return directory._upgrade_revs(target, revision)  # type: ignore[arg-type]

    with EnvironmentContext(Config(), directory, fn=steps, destination_rev=target) as environment:
        environment.configure(connection=conn, render_as_batch=True, transaction_per_migration=False)
        environment.run_migrations()
