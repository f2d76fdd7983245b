"""Conversations: notices that a model hears once, and what its calls used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("raised", sa.Float(), nullable=False),
        sa.Column("delivered", sa.Float(), nullable=True),
        sa.Column("call", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("session", "id"),
    )
    op.create_table(
        "usage",
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("input", sa.Integer(), nullable=False),
        sa.Column("output", sa.Integer(), nullable=False),
        sa.Column("cache_read", sa.Integer(), nullable=False),
        sa.Column("cache_write", sa.Integer(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
        sa.Column("unpriced", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("session", "model"),
    )
