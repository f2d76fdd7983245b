"""The planner: wakes when there is something to hear, asks the model, and lets its answer edit the graph.

    planner = Planner(...)
    group.start_soon(planner.run)
    planner.hear("vLLM is dead")          # stored, and heard in the next turn
    planner.interrupt()                   # ends the turn and nothing else

Idle, it costs nothing: a notice or the operator wakes it, at once. It waits for no round: while jobs run and questions
are open it can be asked and can act. When the model cannot be reached, work goes on; the planner is quiet until there
is news. Without a model it only keeps what is said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Literal

import anyio

from agent.budget import Ledger
from agent.events import Add
from agent.scribe import Scribe
from agent.speaker import MALFORMED_LIMIT, Speaker
from agent.tell import Tell
from agent.transcript import Transcript
from state import conversation as talk
from state.changes import Change
from state.errors import BudgetSpent, ModelError
from state.specs import TodoSpec

Doing = Literal["idle", "asking", "tools", "waiting", "paused", "no model"]
Hold = Literal["nothing", "news", "operator"]
WAKING = frozenset({"operator.said", "notice.raised", "tool.answered"})
MAY_PASS = frozenset({"down", "overloaded", "rate_limit", "timeout", "cut", "interrupted"})
"""Kinds of failure after which news are reason enough to try again; others want the operator."""
MOST_TURNS_IN_A_ROW = 200
"""Turns without a word of the operator after which the planner waits for one: a model that goes round in circles."""


class Planner:
    """The conversation of one session. `speaker` is `None` without a model."""

    def __init__(
        self,
        scribe: Scribe,
        transcript: Transcript,
        ledger: Ledger,
        speaker: Speaker | None,
        tell: Tell,
        edit: Callable[..., object],
    ) -> None:
        self.scribe = scribe
        self.transcript = transcript
        self.ledger = ledger
        self.speaker = speaker
        self.paused = False
        self._tell = tell
        self._edit = edit
        self._doing: Doing = "no model" if speaker is None else "idle"
        self._hold: Hold = "nothing"
        self._turns = 0
        self._fresh = False
        self._questions = 0
        self._news = anyio.Event()
        self._send, self._heard = anyio.create_memory_object_stream[str](float("inf"))
        self._compact: list[anyio.Event] = []
        self._told_without = False
        scribe.listen(self._stored)

    @property
    def doing(self) -> Doing:
        """What it is at."""
        return self._doing

    # What others say to it; from the event loop, never blocking

    def hear(self, text: str) -> None:
        """The operator speaks."""
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # too late is not wrong
            self._send.send_nowait(text)

    def close(self) -> None:
        """Nothing more is heard."""
        self._send.close()
        self._heard.close()

    def interrupt(self) -> None:
        """End the model's turn. What is open is heard together with what comes next."""
        if self.speaker is not None and self._doing in ("asking", "tools", "waiting"):
            self.speaker.interrupt()

    def pause(self, on: bool = True) -> None:
        """Ask the model nothing until `pause(False)`; a turn that has begun is finished."""
        self.paused = on
        self._hold = "nothing" if not on else self._hold
        self._say_doing("paused" if on else self._resting)
        self._news.set()

    def use(self, speaker: Speaker | None) -> None:
        """From now on another model, or none."""
        if self.speaker is not None and speaker is not self.speaker:
            self.interrupt()
        self.speaker = speaker
        self._hold = "nothing"
        self._say_doing(self._resting)
        self._news.set()

    async def compact(self) -> None:
        """Have the conversation summarised as soon as no turn is under way; returns when that was tried."""
        done = anyio.Event()
        self._compact.append(done)
        self._news.set()
        await done.wait()

    # Living

    async def run(self) -> None:
        """Until it is cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._write_down)
            if self.speaker is not None:
                group.start_soon(self.speaker.caller.model.prepare)
                await self.speaker.settle()
            self._say_doing(self._resting)
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while self._wants_to_speak():
                    await self._turn()
                self._say_doing(self._resting)

    async def _write_down(self) -> None:
        async for text in self._heard:
            queued = self._doing in ("asking", "tools", "waiting")
            await self.scribe.write([talk.operator_said(text, queued=queued)])
            if self.speaker is None and not self._told_without:
                self._told_without = True
                self._tell("said_without_model")

    def _stored(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        for change in changes:
            if change.kind not in WAKING:
                continue
            if change.kind == "operator.said":
                if self._hold == "operator" and self._is_over_budget():
                    self.ledger.extend()
                self._hold, self._turns = "nothing", 0
                if self.speaker is not None:
                    self.speaker.malformed = 0
            elif change.kind == "notice.raised" and self._hold == "news":
                self._hold = "nothing"
            self._fresh = self._fresh or change.kind != "tool.answered"
            self._news.set()

    def _is_over_budget(self) -> bool:
        try:
            self.ledger.check(self.speaker.clock() if self.speaker else 0.0)
        except BudgetSpent:
            return True
        return False

    def _wants_to_speak(self) -> bool:
        if self.speaker is None or self.paused:
            return False
        if self._compact:
            return True
        return self._hold == "nothing" and self.transcript.has_news

    async def _turn(self) -> None:
        """One turn, and what its failure means."""
        assert self.speaker is not None
        compacting, self._compact = self._compact, []
        self._fresh = False
        try:
            if compacting:
                await self.speaker.compact()
            else:
                self._turns += 1
                answer = await self.speaker.turn()
                if answer.stop_reason == "refusal":
                    self._failed(ModelError("the model refused to answer", kind="refused"), "operator")
            if self.speaker is not None and self.speaker.malformed >= MALFORMED_LIMIT:
                await self._ask_about_malformed()
            elif self._turns >= MOST_TURNS_IN_A_ROW:
                self._failed(ModelError(f"{self._turns} turns without a word of yours", kind="interrupted"), "operator")
        except ModelError as error:
            self._failed(
                error, "news" if error.kind in ("down", "overloaded", "rate_limit", "timeout", "cut") else "operator"
            )
            if error.kind == "interrupted":
                self._hold = "news"
        finally:
            for done in compacting:
                done.set()

    def _failed(self, error: ModelError, hold: Hold) -> None:
        # What came while the turn was failing is news already.
        self._hold = "nothing" if hold == "news" and self._fresh else hold
        told = error.message + (f" ({error.hint})" if error.hint else "")
        self._tell("turn_failed", f"c{self.transcript.calls}", error.kind, told, None)

    async def _ask_about_malformed(self) -> None:
        """A weak model calls its tools wrongly again and again: the operator decides, and it is quiet meanwhile."""
        assert self.speaker is not None
        self._hold = "operator"
        self._questions += 1
        number = sum(id.startswith("planner-") for id in self._todos()) + 1
        question = (
            f"The model `{self.speaker.model.name}` called its tools wrongly {self.speaker.malformed} times in a row."
            " Say what it should do now, or choose another model with /model."
        )
        body = {"question": question, "default": "no", "free": True, "literal": True, "options": [], "by": "planner"}
        self.speaker.malformed = 0
        spec = TodoSpec(f"planner-{number}", "The model is at a loss", "ask", body, priority="high")
        await self._edit(f"planner-{self.transcript.newest}", [Add(spec)])  # type: ignore[misc]

    def _todos(self) -> Sequence[str]:
        graph = self.speaker.desk.graph if self.speaker is not None else None
        return list(graph.state.todos) if graph is not None else []

    # What is seen of it

    @property
    def _resting(self) -> Doing:
        return "no model" if self.speaker is None else "paused" if self.paused else "idle"

    def _say_doing(self, word: Doing) -> None:
        if word != self._doing:
            self._doing = word
            self._tell("doing", word)

    def at(self, word: str) -> None:
        """The speaker says what it is at."""
        self._say_doing(word)  # type: ignore[arg-type]
