"""The same code on PostgreSQL: a database URL is all that changes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core import Core
from agent.events import Go, JobSeen
from agent.load import creation, load
from state import changes as c
from state import owner
from state.db import Database
from state.errors import SessionBusy, StateError
from state.log import append, rebuild, snapshot
from state.specs import EdgeSpec, Plan, TodoSpec

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BIN is None, reason="no PostgreSQL server here: `apt-get install postgresql` runs these"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own, on a socket only."""
    assert BIN is not None
    home = tmp_path_factory.mktemp("pg", numbered=False)
    prefix: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        for folder in (home, *list(home.parents)[:3]):
            if str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        shutil.chown(home, "postgres", "postgres")

    def call(*argv: str) -> None:
        subprocess.run([*prefix, *argv], check=True, capture_output=True, cwd=home, timeout=60)

    call(str(BIN / "initdb"), "-D", str(home / "data"), "-A", "trust", "-U", "postgres", "--no-sync")
    options = f"-c listen_addresses= -c unix_socket_directories={home}"
    call(str(BIN / "pg_ctl"), "-D", str(home / "data"), "-w", "-l", str(home / "log"), "-o", options, "start")
    yield f"postgresql+psycopg://postgres@/postgres?host={home}"
    call(str(BIN / "pg_ctl"), "-D", str(home / "data"), "-w", "-m", "immediate", "stop")


def test_a_session_lives_and_is_rebuilt(url: str) -> None:
    """Migrations, the log, the graph's counters, leases, the owner: all as on SQLite."""
    todos = (
        TodoSpec("a", "A", "job", {"host": "local", "run": "true", "gpus": 1}),
        TodoSpec("b", "B", "job", {"host": "local", "run": "true"}),
    )
    settings: dict[str, Any] = {"params": {}, "hosts": {"local": {"gpus": 1}}}
    plan = Plan("p", "P", {}, todos, (EdgeSpec("a", "b"),), "p.yaml")
    db = Database.open(url)
    db.write(lambda conn: append(conn, "s", creation(plan, settings), 1.0))
    state = db.read(lambda conn: load(conn, "s"))
    for clock, event in enumerate([Go(), JobSeen("s.a.1", "exited", rc=0, output={"x": "é"}, started=1.0)], 2):
        changes = Core(state).step(event)
        db.write(lambda conn, changes=changes, clock=clock: append(conn, "s", changes, float(clock)))
    again = db.read(lambda conn: load(conn, "s"))
    assert again.jobs == state.jobs
    assert again.results == {"a": {"x": "é"}}
    me = owner.this_process()
    db.write(lambda conn: owner.acquire(conn, "s", {**me, "pid": 1, "ticks": owner._start_ticks(1)}, 1.0))
    with pytest.raises(SessionBusy):
        db.write(lambda conn: owner.acquire(conn, "s", me, 1.0))
    with pytest.raises(StateError, match="was not `pending`"):
        db.write(lambda conn: append(conn, "s", [c.todo_status("a", "pending", "in_progress")], 9.0))
    before = db.read(snapshot)
    db.write(rebuild)
    assert db.read(snapshot) == before
    db.close()
    Database.open(url).close()
