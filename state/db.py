"""The database: opening it, bringing its schema up to date, reading, and writing through one writer.

    db = Database.open()                       # ~/.local/state/turnout/turnout.db, or TURNOUT_DB
    db = Database.open(path, make=False)       # only one that is there
    db.write(lambda conn: append(conn, ...))   # one transaction, from a thread that may block
    await db.commit(session, changes)          # from the event loop: grouped with whatever else is waiting
    rows = await db.aread(lambda conn: ...)

SQLite runs in WAL mode with `synchronous=FULL`; writes begin with BEGIN IMMEDIATE, so a writer waits for its turn
instead of failing in the middle. A PostgreSQL URL works with the same code. The file is readable by its owner only: it
holds what hosts and models said.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from state.changes import Change
from state.errors import NotFound, StateError, TurnoutError, UsageError
from state.failpoints import failpoints
from state.log import append

T = TypeVar("T")
HEAD = "0002"
"""The newest migration. `tests/test_migrations.py` holds it to `state/migrations/versions`."""

BUSY_TIMEOUT_S = 30.0


def default_path() -> Path:
    """Where the database is when nobody names one: `turnout.db` in the user's state directory."""
    return state_dir() / "turnout.db"


def state_dir() -> Path:
    """`$XDG_STATE_HOME/turnout`, by default `~/.local/state/turnout`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "turnout"


class Database:
    """One open database. Not shared between processes; threads may share it."""

    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self.url = url
        self._writer: _Writer | None = None
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str | None = None, *, make: bool = True) -> Database:
        """Open and migrate the database at a path or URL, by default `TURNOUT_DB`, else `default_path`.

        A file that is not there is made; with `make=False` only at `default_path`, where no name can be misspelt.
        Raises `NotFound` for one that is not there and may not be made, `UsageError` for an unusable URL or path,
        `StateError` for a newer schema.
        """
        given, full = _meant(url)
        try:
            path = _file_of(full)
            if path is not None:
                _provide(path, make=make)
            engine = create_engine(full, pool_pre_ping=make_url(full).get_backend_name() != "sqlite")
            _configure(engine)
            db = cls(engine, given)
            db._migrate()
        except (SQLAlchemyError, ImportError) as error:
            cause = getattr(error, "orig", None) or error
            raise UsageError(
                f"cannot open the database `{given}`: {cause}",
                hint="give a path or a URL with `--db` or `TURNOUT_DB`, e.g. `postgresql+psycopg://user@host/turnout`",
            ) from error
        return db

    @staticmethod
    def exists(url: str | None = None) -> bool:
        """Whether the file that `open` would open is there; of a server and of what nobody can read it is taken so."""
        try:
            path = _file_of(_meant(url)[1])
            return path is None or path.exists()
        except (SQLAlchemyError, OSError):
            return True

    def _migrate(self) -> None:
        with self.engine.connect() as conn:
            version = schema_version(conn)
        if version != HEAD:
            from state.migrations.run import upgrade  # Alembic costs 0.2 s: only when there is something to do

            upgrade(self.engine, HEAD)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a read transaction: one consistent view."""
        with self.engine.connect() as conn, conn.begin():
            return work(conn)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a write transaction of its own. What it raises rolls the transaction back."""
        with self.engine.connect() as plain:
            conn = plain.execution_options(turnout_write=True)
            with conn.begin():
                return work(conn)

    async def aread(self, work: Callable[[Connection], T]) -> T:
        return await anyio.to_thread.run_sync(self.read, work)

    async def awrite(self, work: Callable[[Connection], T]) -> T:
        return await anyio.to_thread.run_sync(self.write, work)

    async def commit(self, session: str, changes: Sequence[Change]) -> list[int]:
        """Append changes to a session's log, durably. Returns their numbers.

        Commits that wait at the same time share one transaction. If the shared transaction fails, each is tried alone,
        so that one session's refused change does not undo another's. Not cancellable once queued: the effect that
        follows a commit must know whether it happened.
        """
        with self._lock:
            if self._writer is None:
                self._writer = _Writer(self)
            writer = self._writer
        with anyio.CancelScope(shield=True):
            seqs = await writer.submit(session, changes)
        return seqs

    def close(self) -> None:
        """Finish what is queued and let go of the file."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()
        self.engine.dispose()


@dataclass(slots=True)
class _Request:
    session: str
    changes: Sequence[Change]
    time: float
    future: asyncio.Future[list[int]]
    loop: asyncio.AbstractEventLoop

    def answer(self, result: list[int] | BaseException) -> None:
        def settle() -> None:
            if self.future.done():
                return
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)

        self.loop.call_soon_threadsafe(settle)


class _Writer:
    """The one thread that writes. Everything that queued up while it wrote goes into its next transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turnout-writer", daemon=True)
        self._thread.start()

    async def submit(self, session: str, changes: Sequence[Change]) -> list[int]:
        loop = asyncio.get_running_loop()
        request = _Request(session, changes, time.time(), loop.create_future(), loop)
        self._queue.put(request)
        return await request.future

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            last = False
            while not self._queue.empty():
                request = self._queue.get()
                if request is None:
                    last = True
                    break
                batch.append(request)
            self._commit(batch)
            if last:
                return

    def _commit(self, batch: list[_Request]) -> None:
        def work(conn: Connection) -> list[list[int]]:
            return [append(conn, r.session, r.changes, r.time) for r in batch]

        for request in batch:
            failpoints("commit.before", request.changes)
        try:
            results = self._db.write(work)
        except (TurnoutError, DBAPIError) as error:
            if len(batch) > 1:
                for request in batch:
                    self._commit([request])
            else:
                batch[0].answer(_translate(error))
            return
        except Exception as error:  # noqa: BLE001 - it is raised where the commit was asked for
            for request in batch:
                request.answer(error)
            return
        for request in batch:
            failpoints("commit.after", request.changes)
        for request, seqs in zip(batch, results, strict=True):
            request.answer(seqs)


def _translate(error: Exception) -> Exception:
    if isinstance(error, DBAPIError):
        cause = error.orig or error
        return StateError(f"the database refused a write: {cause}", hint="`turnout doctor` checks the database")
    return error


def schema_version(conn: Connection) -> str | None:
    """The migration this database is at; `None` for an empty one."""
    if not conn.dialect.has_table(conn, "alembic_version"):
        return None
    version = conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if version is None else str(version)


def _configure(engine: Engine) -> None:
    if engine.dialect.name != "sqlite":
        return

    @event.listens_for(engine, "connect")
    def connect(raw: Any, record: Any) -> None:
        raw.isolation_level = None  # we begin transactions ourselves: the driver would begin them too late
        cursor = raw.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        write = conn.get_execution_options().get("turnout_write")
        conn.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _meant(url: str | None) -> tuple[str, str]:
    """The path or URL that names the database, as it was given and as SQLAlchemy takes it."""
    given = url or os.environ.get("TURNOUT_DB") or str(default_path())
    return given, given if "://" in given else f"sqlite:///{Path(given).expanduser()}"


def _file_of(url: str) -> Path | None:
    """The file that an SQLite URL names; `None` for one in memory and for a server's."""
    parsed = make_url(url)
    named = parsed.database or ""
    is_file = parsed.get_backend_name() == "sqlite" and named not in ("", ":memory:") and not named.startswith("file:")
    return Path(named) if is_file else None


def _provide(path: Path, *, make: bool) -> None:
    """See that the file is there, made for the owner only. SQLite gives -wal and -shm the mode of this file."""
    usual = default_path()
    try:
        if path == usual:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not make and not path.exists():
            raise NotFound(
                f"there is no database `{path}`",
                hint=f"`turnout run` and `turnout chat` make one; without `--db` and `TURNOUT_DB` it is `{usual}`",
            )
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except FileNotFoundError as error:
        raise UsageError(
            f"cannot create the database `{path}`: there is no folder `{path.parent}`",
            hint=f"make the folder; without `--db` and `TURNOUT_DB` it is `{usual}`",
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot create the database `{path}`: {error.strerror}",
            hint="choose another place with `--db` or `TURNOUT_DB`",
        ) from error
