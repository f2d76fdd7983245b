"""What model calls used, and what they may use: money, tokens, time. Pure; the numbers come from the log.

ledger = Ledger(budget, started, spent)       # one for a session and all its subagents
ledger.check(now)                             # before a call: raises BudgetSpent
ledger.add(usage, cost)                       # after it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, select

from agent.config import Budget, Prices
from agent.pace import clock
from state.errors import BudgetSpent
from state.models import Session, Usage, table

TOKENS = ("input", "output", "cache_read", "cache_write")


@dataclass(frozen=True, slots=True)
class Spent:
    """What calls used. `cost` leaves out the `unpriced` calls: those to models whose price nobody said."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float = 0.0
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def plus(self, usage: Mapping[str, int], cost: float | None) -> Spent:
        """With one more call."""
        more = {name: getattr(self, name) + int(usage.get(name) or 0) for name in TOKENS}
        return replace(
            self, calls=self.calls + 1, cost=self.cost + (cost or 0.0), unpriced=self.unpriced + (cost is None), **more
        )


def price(usage: Mapping[str, int], prices: Prices | None) -> float | None:
    """The cost of a call; `None` where there is no price."""
    if prices is None:
        return None
    return sum(int(usage.get(name) or 0) * float(getattr(prices, name)) for name in TOKENS) / 1e6


@dataclass
class Ledger:
    """The account of a session with its subagents. `started` is the time (seconds since the epoch) of the session."""

    budget: Budget = field(default_factory=Budget)
    started: float = 0.0
    spent: Spent = field(default_factory=Spent)
    raised: float = 1.0

    def add(self, usage: Mapping[str, int], cost: float | None) -> None:
        self.spent = self.spent.plus(usage, cost)

    def extend(self) -> None:
        """The operator grants as much again."""
        self.raised += 1.0

    def check(self, now: float) -> None:
        """Raise `BudgetSpent` when one of the limits is reached."""
        money, tokens, hours = self.budget.money, self.budget.tokens, self.budget.hours
        seconds = now - self.started
        if money is not None and self.spent.cost >= money * self.raised:
            self._over(f"{self.spent.cost:.2f} of {money * self.raised:.2f} in money", "money")
        if tokens is not None and self.spent.tokens >= tokens * self.raised:
            self._over(f"{self.spent.tokens:,} of {int(tokens * self.raised):,} tokens", "tokens")
        if hours is not None and seconds >= hours * 3600 * self.raised:
            self._over(f"{clock(seconds)} of {clock(hours * 3600 * self.raised)} of time", "hours")

    def _over(self, what: str, key: str) -> None:
        raise BudgetSpent(
            f"the budget for model calls is used up: {what}",
            hint=f"jobs and todos go on; speak to grant as much again, or raise `{key}` under `[budget]`",
        )


def spent_by(conn: Connection, session: str) -> Spent:
    """What a session and its subagents used, as stored."""
    sessions, usage = table(Session).c, table(Usage).c
    family = [session]
    newest: Iterable[str] = family
    while children := conn.execute(select(sessions.id).where(sessions.parent.in_(newest))).scalars().all():
        family += children
        newest = children
    total = Spent()
    for row in conn.execute(select(table(Usage)).where(usage.session.in_(family))):
        values = {name: getattr(total, name) + getattr(row, name) for name in (*TOKENS, "calls", "cost", "unpriced")}
        total = replace(total, **values)
    return total
