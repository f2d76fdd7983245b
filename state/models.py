"""The rows. One SQLModel class a table; the hot path uses their `__table__` through SQLAlchemy core.

`Message` is the append-only log, numbered from 1 in each session; every other table but `Owner` is a projection of it
(`state/projection.py`), so it can be thrown away and rebuilt. `Owner` says which process drives a session right now:
it is about this moment, not about history.

Times are seconds since the epoch (UTC, float). JSON columns hold what `json.dumps` takes. Table names are plural
nouns. A change of this file wants a migration in `state/migrations/versions`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Index, Table
from sqlmodel import Field, SQLModel

SYSTEM = "system"
"""The session that owns what belongs to no session, such as the list of hosts."""


class Session(SQLModel, table=True):
    """One conversation and all it caused. `next_seq` is the number its next message gets."""

    __tablename__ = "sessions"
    id: str = Field(primary_key=True)
    kind: str
    title: str
    status: str
    playbook: str | None = None
    source: str | None = None
    parent: str | None = Field(default=None, index=True)
    settings: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    reason: str | None = None
    created: float
    updated: float
    next_seq: int = 1


class Message(SQLModel, table=True):
    """One entry of a session's log. `cause` is the number of the message that led to it."""

    __tablename__ = "messages"
    session: str = Field(primary_key=True)
    seq: int = Field(primary_key=True)
    time: float
    kind: str
    actor: str
    payload: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    cause: int | None = None


class Todo(SQLModel, table=True):
    """A node of the graph. `open`, `met`, `dead` count its incoming edges: undecided, satisfied, impossible.

    `attempts` counts all that were ever made, since each names a job; `attempts_before` of them were made before the
    operator last reopened the todo, and do not count against its retry rule.
    """

    __tablename__ = "todos"
    __table_args__ = (Index("todos_by_status", "session", "status"),)
    session: str = Field(primary_key=True)
    id: str = Field(primary_key=True)
    position: int
    title: str
    kind: str
    status: str = "pending"
    priority: str = "medium"
    join_on: str = "all"
    group_id: str | None = None
    body: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    retry: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    attempts: int = 0
    attempts_before: int = 0
    open: int = 0
    met: int = 0
    dead: int = 0
    result: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    reason: str | None = None
    host: str | None = None
    started: float | None = None
    ended: float | None = None


class Edge(SQLModel, table=True):
    """`dst` after `src`, on its success, failure or finish."""

    __tablename__ = "edges"
    __table_args__ = (Index("edges_by_dst", "session", "dst"),)
    session: str = Field(primary_key=True)
    src: str = Field(primary_key=True)
    dst: str = Field(primary_key=True)
    on_event: str = Field(primary_key=True)


class Job(SQLModel, table=True):
    """One attempt at running a command on a host. `spec` is what was sent, to the byte that matters for its hash."""

    __tablename__ = "jobs"
    __table_args__ = (Index("jobs_by_session", "session", "state"),)
    id: str = Field(primary_key=True)
    session: str
    todo: str
    attempt: int
    host: str
    state: str
    spec: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    gpus: list[int] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    cancel: str | None = None
    rc: int | None = None
    signal: str | None = None
    reason: str | None = None
    submitted: float
    started: float | None = None
    ended: float | None = None


class Host(SQLModel, table=True):
    """A machine reached by SSH. `key` is the pinned host key in OpenSSH's text form, `facts` what the probe found."""

    __tablename__ = "hosts"
    name: str = Field(primary_key=True)
    address: str
    settings: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    key: str | None = None
    facts: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    probed: float | None = None
    added: float


class Lease(SQLModel, table=True):
    """The right of a job to one GPU of a host. The primary key is what keeps two jobs off one card."""

    __tablename__ = "leases"
    host: str = Field(primary_key=True)
    gpu: int = Field(primary_key=True)
    job: str = Field(index=True)
    session: str
    since: float


class Approval(SQLModel, table=True):
    """A question put to the operator, and the answer."""

    __tablename__ = "approvals"
    session: str = Field(primary_key=True)
    todo: str = Field(primary_key=True)
    question: str
    default: str = "no"
    answer: str | None = None
    by: str | None = None
    asked: float
    answered: float | None = None


class Notice(SQLModel, table=True):
    """Something a session's model should hear of, once. `call` is the model call whose answer proves that it did."""

    __tablename__ = "notices"
    session: str = Field(primary_key=True)
    id: str = Field(primary_key=True)
    about: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    text: str
    data: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    raised: float
    delivered: float | None = None
    call: str | None = None


class Usage(SQLModel, table=True):
    """What a session's calls to one model used: tokens, and their cost where prices are known. Its children's not."""

    __tablename__ = "usage"
    session: str = Field(primary_key=True)
    model: str = Field(primary_key=True)
    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float = 0.0
    unpriced: int = 0


class Owner(SQLModel, table=True):
    """Which process drives a session: its machine, boot, pid and start time. `expires` moves with its heartbeat."""

    __tablename__ = "owners"
    session: str = Field(primary_key=True)
    process: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    expires: float


def table(model: type[SQLModel]) -> Table:
    """The SQLAlchemy table behind a row class, for core statements."""
    return model.__table__  # type: ignore[attr-defined, no-any-return]


PROJECTED: tuple[type[SQLModel], ...] = (Session, Todo, Edge, Job, Host, Lease, Approval, Notice, Usage)
"""The tables that follow from `messages` alone."""
