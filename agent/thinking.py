"""Research in a session that nobody talks to: `turnout run` with a model configured.

    with_model()                                                         # before the event loop, if there is a model
    async with thinker(db, session, config, hosts, view) as think:       # None without a model
        Dispatcher(..., think=think)

Without a model, and when the model cannot be reached, fallbacks of research steps do the work. The parts that only a
model needs are imported only then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

import anyio
from sqlalchemy import Connection, select

from agent.budget import Ledger, Spent, spent_by
from agent.children import settle_children
from agent.config import Config
from agent.dispatcher import Think
from agent.hosts import Hosts
from state.db import Database
from state.models import Session, table


def with_model() -> None:
    """Import what subagents need, while that may still block."""
    import_module("agent.subagent")


@asynccontextmanager
async def thinker(
    db: Database, session: str, config: Config, hosts: Hosts, watcher: object | None
) -> AsyncIterator[Think | None]:
    """The dispatcher's `think` for this session. Subagents whose todos have ended meanwhile are ended first."""

    def prepare(conn: Connection) -> tuple[float, Spent]:
        settle_children(conn, session)
        created = conn.execute(select(table(Session).c.created).where(table(Session).c.id == session)).scalar_one()
        return created, spent_by(conn, session)

    created, spent = await db.awrite(prepare)
    chosen = config.subagent_model()
    if chosen is None:
        yield None
        return
    from agent.model import Model
    from agent.model_calls import Limiter, Patience
    from agent.subagent import Subagents
    from agent.tell import Tell

    model, ledger = Model(chosen), Ledger(config.budget, created, spent)
    patience = Patience(chosen.patience_s)
    agents = Subagents(db, session, config, model, Limiter(), ledger, hosts, Tell(watcher), patience)
    try:
        yield agents.think
    finally:
        with anyio.CancelScope(shield=True):
            await model.close()
