"""The first schema: sessions and their log, the todo graph, jobs, hosts, leases, approvals, owners."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("todo", sa.String(), nullable=False),
        sa.Column("question", sa.String(), nullable=False),
        sa.Column("default", sa.String(), nullable=False),
        sa.Column("answer", sa.String(), nullable=True),
        sa.Column("by", sa.String(), nullable=True),
        sa.Column("asked", sa.Float(), nullable=False),
        sa.Column("answered", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("session", "todo"),
    )
    op.create_table(
        "edges",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("src", sa.String(), nullable=False),
        sa.Column("dst", sa.String(), nullable=False),
        sa.Column("on_event", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session", "src", "dst", "on_event"),
    )
    op.create_index("edges_by_dst", "edges", ["session", "dst"], unique=False)
    op.create_table(
        "hosts",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("probed", sa.Float(), nullable=True),
        sa.Column("added", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("todo", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.Column("cancel", sa.String(), nullable=True),
        sa.Column("rc", sa.Integer(), nullable=True),
        sa.Column("signal", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("submitted", sa.Float(), nullable=False),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_session", "jobs", ["session", "state"], unique=False)
    op.create_table(
        "leases",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("gpu", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("host", "gpu"),
    )
    op.create_index("ix_leases_job", "leases", ["job"], unique=False)
    op.create_table(
        "messages",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("cause", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("session", "seq"),
    )
    op.create_table(
        "owners",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("process", sa.JSON(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("session"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("playbook", sa.String(), nullable=True),
        sa.Column("source", sa.String(), nullable=True),
        sa.Column("parent", sa.String(), nullable=True),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("updated", sa.Float(), nullable=False),
        sa.Column("next_seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sessions_parent", "sessions", ["parent"], unique=False)
    op.create_table(
        "todos",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("priority", sa.String(), nullable=False),
        sa.Column("join_on", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("retry", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_before", sa.Integer(), nullable=False),
        sa.Column("open", sa.Integer(), nullable=False),
        sa.Column("met", sa.Integer(), nullable=False),
        sa.Column("dead", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("host", sa.String(), nullable=True),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("session", "id"),
    )
    op.create_index("todos_by_status", "todos", ["session", "status"], unique=False)
