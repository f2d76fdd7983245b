"""Model calls that survive: tried again within a budget of time, stored before and after, held by one shared limiter.

    caller = Caller(scribe, model, limiter, ledger)
    answer = await caller.call("c7", "turn", request, through=41, notices=["n3"])

The order is: `model.asked` committed, the call, then `model.answered` with `notice.delivered` in one commit. Each
attempt that came to nothing is a `model.failed`. Overload, rate limits, broken streams and endpoints that are down are
waited out, for `patience_s` of wall clock; what another attempt cannot mend is raised at once.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from agent.budget import Ledger, price
from agent.model import Answer, Hear, Model, Request
from agent.scribe import Scribe
from state import conversation as talk
from state.errors import ModelError
from state.failpoints import failpoint

AT_ONCE = 32
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a call is tried again. `dice` gives a number from 0 to 1 for the jitter."""

    total_s: float = 1200.0
    first_s: float = FIRST_PAUSE_S
    longest_s: float = LONGEST_PAUSE_S
    dice: Callable[[], float] = random.random

    def pause(self, attempt: int, error: ModelError, waited_s: float) -> float | None:
        """Seconds to wait before attempt `attempt + 1`; `None` to give up. `waited_s` has gone by since the first.

        Half of the doubling pause is certain and half is diced, so that subagents do not come back together. What the
        server asks for is the least, and counts against the total.
        """
        if not error.retryable:
            return None
        bound = min(self.longest_s, self.first_s * 2.0 ** (attempt - 1))
        pause = max(bound * (0.5 + 0.5 * self.dice()), error.retry_after_s or 0.0)
        return pause if waited_s + pause <= self.total_s else None


class Limiter:
    """So many calls at once over all sessions and subagents; and none at all while the endpoint asks for a rest."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = anyio.CapacityLimiter(at_once)
        self._rest_until = -1.0

    def rest(self, seconds: float) -> None:
        """Nobody calls for so long."""
        self._rest_until = max(self._rest_until, anyio.current_time() + seconds)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one attempt."""
        async with self._places:
            await anyio.sleep_until(self._rest_until)
            yield


@dataclass
class Caller:
    """Calls of one session. `waiting` is told of each failed attempt, with the pause that follows or `None`."""

    scribe: Scribe
    model: Model
    limiter: Limiter
    ledger: Ledger
    patience: Patience = field(default_factory=Patience)
    waiting: Callable[[str, ModelError, float | None], None] = lambda call, error, pause: None
    now: Callable[[], float] = time.time
    _scope: anyio.CancelScope | None = None

    def interrupt(self) -> None:
        """End the call that is under way, if there is one; it raises `ModelError` of kind `interrupted`."""
        if self._scope is not None:
            self._scope.cancel()

    async def call(
        self,
        call: str,
        purpose: talk.Purpose,
        request: Request,
        *,
        through: int,
        notices: Sequence[str] = (),
        now: float | None = None,
        hear: Hear | None = None,
    ) -> Answer:
        """A stored, patient call. Raises `ModelError`, which is stored too, or `BudgetSpent` before anything is."""
        self.ledger.check(self.now())
        described = {**request.described(), "through": through, "notices": list(notices)}
        described |= {"now": now} if now is not None else {}
        await self.scribe.write([talk.model_asked(call, model=request.model, purpose=purpose, request=described)])
        try:
            with anyio.CancelScope() as self._scope:
                answer = await self._patiently(call, request, hear)
            if self._scope.cancelled_caught:
                error = ModelError("interrupted by the operator", kind="interrupted")
                await self._failed(call, error, 0, None)
                raise error
        finally:
            self._scope = None
        answer = self._distinct(call, answer)
        cost = price(answer.usage, self.model.config.price)
        self.ledger.add(answer.usage, cost)
        seen: dict[str, Any] = {"ttft_s": answer.ttft_s, "took_s": answer.took_s}
        changes = [
            talk.model_answered(
                call,
                model=answer.model,
                content=answer.content,
                stop_reason=answer.stop_reason,
                usage=answer.usage,
                cost=cost,
                **{name: round(value, 3) for name, value in seen.items() if value is not None},
            )
        ]
        if notices:
            changes.append(talk.notice_delivered(notices, call))
        await self.scribe.write(changes)
        return answer

    def _distinct(self, call: str, answer: Answer) -> Answer:
        """The answer with ids of tool calls that no other answer has: not every engine makes sure of that."""
        config = self.model.config
        if config.base_url is None or config.is_claude:
            return answer
        numbers = itertools.count()
        content = [
            {**block, "id": f"toolu_{call}_{next(numbers)}"} if block.get("type") == "tool_use" else block
            for block in answer.content
        ]
        return replace(answer, content=content)

    async def _patiently(self, call: str, request: Request, hear: Hear | None) -> Answer:
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            try:
                async with self.limiter.place():
                    failpoint("model.before")
                    answer = await self.model.ask(request, hear)
                    failpoint("model.after")
                    return answer
            except ModelError as error:
                pause = self.patience.pause(attempt, error, time.monotonic() - began)
                await self._failed(call, error, attempt, pause)
                if pause is None:
                    raise
                if error.kind in ("rate_limit", "overloaded"):
                    self.limiter.rest(min(pause, error.retry_after_s or 0.0))
                await anyio.sleep(pause)

    async def _failed(self, call: str, error: ModelError, attempt: int, pause: float | None) -> None:
        spent: dict[str, Any] = {}
        if error.usage is not None:
            cost = price(error.usage, self.model.config.price)
            self.ledger.add(error.usage, cost)
            spent = {"usage": error.usage, "cost": cost, "model": self.model.config.name}
        kind: Any = error.kind
        rounded = None if pause is None else round(pause, 3)
        failed = talk.model_failed(call, kind, error.message, attempt=attempt, retry_in_s=rounded, **spent)
        with anyio.CancelScope(shield=True):
            await self.scribe.write([failed])
        self.waiting(call, error, pause)
