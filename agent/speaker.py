"""One party of a conversation with a model: a turn is a request, its answer, and the tools that the answer calls.

    speaker = Speaker(...)
    answer = await speaker.turn()        # raises ModelError; everything that happened is in the log

The planner (`agent/planner.py`) and every subagent (`agent/subagent.py`) is one. It keeps two promises. Every
`tool_use` gets exactly one `tool.answered`, however the turn ends: a result, an error, a deadline, an interruption;
what a crash left open is settled by `settle` before the next request. And a conversation that grows is made smaller
before it is too long: long results are cleared first, then all is summarised; the log keeps everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog

from agent.abilities.base import ANSWERED, Ability, Desk, Result, Use, head_tail
from agent.abilities.catalogue import schemas
from agent.model import Answer, Request
from agent.model_calls import Caller
from agent.planner_prompt import COMPACT, system
from agent.scribe import Scribe
from agent.tell import Tell
from agent.transcript import CUT, Block, Transcript
from state import conversation as talk
from state.changes import Change
from state.errors import ModelError, ToolError, TurnoutError
from state.failpoints import failpoint

log = structlog.get_logger(__name__)

TOOLS_AT_ONCE = 8
MOST_NOTICES = 50
MALFORMED_LIMIT = 3
CLEAR_AT = 0.5
"""Share of the context window beyond which old tool results are cleared."""
COMPACT_AT = 0.8
KEEP_TURNS = 8
WORTH_CLEARING = 20_000
INTERRUPTED = "interrupted by the operator before there was a result"
DIED = (
    "interrupted: the driver ended before there was a result. Nothing of it was done; call again if it is still wanted"
)
CUT_OFF = "not run: the answer was cut off before this call was complete. Call it again, with less in one answer"
GO_ON = "Your answer was cut off. Go on where it ended, in smaller pieces."
SUMMARISED = "The conversation was summarised. Go on with what you were about to do."


@dataclass
class Speaker:
    """See the module's text. `tail` renders what rides behind the conversation at a given time, unremembered."""

    scribe: Scribe
    transcript: Transcript
    caller: Caller
    abilities: Mapping[str, Ability]
    desk: Desk
    prompt: str
    purpose: talk.Purpose
    tell: Tell
    tail: Callable[[float], Sequence[Block]] = lambda now: ()
    clock: Callable[[], float] = time.time
    malformed: int = 0
    doing: Callable[[str], None] = lambda word: None
    _places: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(TOOLS_AT_ONCE))
    _tools: anyio.CancelScope | None = None
    _notes: int = 0
    _described: tuple[Mapping[str, Ability], list[dict[str, Any]]] | None = None

    @property
    def model(self) -> Any:
        return self.caller.model.config

    def interrupt(self) -> None:
        """End the call or the tools that are under way."""
        self.caller.interrupt()
        if self._tools is not None:
            self._tools.cancel()

    async def settle(self) -> None:
        """Close what a crash left open: a call without an end, calls of tools without a result."""
        changes: list[Change] = []
        if (call := self.transcript.open_call) is not None:
            changes.append(
                talk.model_failed(call, "interrupted", "the driver ended before there was an answer", attempt=0)
            )
        for id, (call, name) in self.transcript.unanswered.items():
            text, is_error = self._left(id)
            changes.append(talk.tool_answered(call, id, name, text, is_error=is_error))
        if changes:
            await self.scribe.write(changes)

    def _left(self, id: str) -> tuple[str, bool]:
        """What is so of a tool call that has no result: a todo that it had made goes on."""
        graph = self.desk.graph
        if graph is not None:
            for todo, info in graph.state.todos.items():
                if info.spec.body.get("call") == id:
                    return f"`{todo}` goes on as a todo of the graph; a notice tells when it has ended", False
        return DIED, True

    async def turn(self) -> Answer:
        """One turn. Raises `ModelError` when there is no answer; what was not heard is asked about again next time."""
        await self._make_room()
        try:
            answer = await self._ask()
        except ModelError as error:
            if error.kind != "bad_request" or not _too_long(error.message):
                raise
            await self.compact()
            answer = await self._ask()
        if answer.tool_uses:
            self.doing("tools")
            await self._use_tools(answer)
        elif answer.stop_reason in CUT:
            await self.note(GO_ON)
        if answer.stop_reason == "model_context_window_exceeded":
            await self.compact()
        return answer

    async def note(self, text: str) -> None:
        """Tell the model something of its own conversation, once."""
        self._notes += 1
        id = f"m{self.transcript.newest}-{self._notes}"
        await self.scribe.write([talk.notice_raised(id, text, about={"session": self.scribe.session})])

    # The request

    async def _ask(self) -> Answer:
        call, now = self._next_call(), self.clock()
        notices = list(self.transcript.notices)[:MOST_NOTICES]
        request = self.request(now)
        self.doing("asking")
        self.tell("turn_began", call, request.model, self.purpose)
        answer = await self.caller.call(
            call, self.purpose, request, through=self.transcript.newest, notices=notices, now=now, hear=self._hear(call)
        )
        self.tell("turn_ended", call, answer.stop_reason)
        self.tell("usage", self.caller.ledger.spent)
        return answer

    def _next_call(self) -> str:
        return f"c{self.transcript.calls + 1}"

    def _hear(self, call: str) -> Callable[[str, str], None]:
        def hear(kind: str, text: str) -> None:
            if kind in ("text", "thinking"):
                self.tell(kind, call, text)

        return hear

    def request(self, now: float, ask: str | None = None) -> Request:
        """The next request as it would be sent at `now`: a pure function of the transcript, the tail and the time."""
        config = self.model
        tail = list(self.tail(now)) if ask is None else [{"type": "text", "text": ask}]
        messages = self.transcript.messages(tail, most_notices=0 if ask else MOST_NOTICES)
        if config.caches:
            _mark(messages, len(tail))
        more: dict[str, Any] = {}
        if config.thinks:
            more["thinking"] = {"type": "adaptive", "display": "summarized"}
        if config.effort:
            more["output_config"] = {"effort": config.effort}
        if self._described is None or self._described[0] is not self.abilities:
            self._described = self.abilities, schemas(self.abilities, config)
        tools = self._described[1]
        return Request(config.name, system(self.prompt, config), tools, messages, config.max_tokens, more)

    # Tools

    async def _use_tools(self, answer: Answer) -> None:
        call = f"c{self.transcript.calls}"
        uses = [block for block in answer.tool_uses if block["id"] in self.transcript.unanswered]
        if answer.stop_reason not in ("tool_use", "end_turn", "pause_turn"):
            await self.scribe.write(
                [talk.tool_answered(call, b["id"], b["name"], CUT_OFF, is_error=True) for b in uses]
            )
            return
        with anyio.CancelScope() as self._tools:
            async with anyio.create_task_group() as group:
                for block in uses:
                    group.start_soon(self._use, call, block)
        interrupted = self._tools.cancelled_caught
        self._tools = None
        if interrupted:
            left = [b for b in uses if b["id"] in self.transcript.unanswered]
            changes = [talk.tool_answered(call, b["id"], b["name"], INTERRUPTED, is_error=True) for b in left]
            if changes:
                await self.scribe.write(changes)
            raise ModelError("interrupted by the operator", kind="interrupted")

    async def _use(self, call: str, block: Mapping[str, Any]) -> None:
        async with self._places:
            self.tell("tool_called", call, block["id"], block["name"], block["input"])
            failpoint("ability.before")
            result = await self._result(call, block)
            failpoint("ability.after")
        if result is None:
            return  # stored together with the edit that it tells of
        changes = [
            talk.tool_answered(
                call, block["id"], block["name"], head_tail(result.text), is_error=result.is_error, whole=result.whole
            )
        ]
        if told := [id for id in result.notices if id in self.transcript.notices]:
            changes.append(talk.notice_delivered(told, call))
        await self.scribe.write(changes)
        self.tell("tool_answered", call, block["id"], block["name"], changes[0].payload["content"], result.is_error)

    async def _result(self, call: str, block: Mapping[str, Any]) -> Result | None:
        """What a tool answers, within its deadline; `None` where the answer is already stored."""
        name = block["name"]
        ability = self.abilities.get(name)
        if ability is None:
            self.malformed += 1
            return Result(f"there is no tool `{name}`; there are {', '.join(self.abilities)}", is_error=True)
        try:
            given = ability.check(block["input"])
        except ToolError as error:
            self.malformed += 1
            return _error(error)
        self.malformed = 0
        try:
            with anyio.move_on_after(ability.deadline_s):
                result = await ability.run(Use(self.desk, call, block["id"], name), given)
                if result is ANSWERED:
                    return None
                return result if isinstance(result, Result) else Result(str(result))
        except TurnoutError as error:
            return _error(error)
        return Result(f"`{name}` did not answer within {ability.deadline_s:.0f} s and was given up", is_error=True)

    # Making room

    async def _make_room(self) -> None:
        window, context = self.model.window, self.transcript.context
        if context > COMPACT_AT * window:
            await self.compact()
        elif context > CLEAR_AT * window:
            through, results, chars = self.transcript.clearable(KEEP_TURNS)
            if chars > WORTH_CLEARING:
                await self.scribe.write([talk.conversation_cleared(through, results=results, bytes=chars)])

    async def compact(self) -> None:
        """Have the conversation summarised, and go on from the summary. Raises `ModelError`."""
        if not self.transcript.turns:
            return
        through, results, chars = self.transcript.clearable(1)
        if results:
            await self.scribe.write([talk.conversation_cleared(through, results=results, bytes=chars)])
        had_news, call, newest = self.transcript.has_news, self._next_call(), self.transcript.newest
        request = self.request(self.clock(), ask=COMPACT)
        self.tell("turn_began", call, request.model, "compact")
        answer = await self.caller.call(call, "compact", request, through=newest)
        self.tell("turn_ended", call, answer.stop_reason)
        refused = [talk.tool_answered(call, b["id"], b["name"], CUT_OFF, is_error=True) for b in answer.tool_uses]
        if not answer.text.strip():
            raise ModelError("the model wrote no summary of the conversation", kind="refused")
        await self.scribe.write([*refused, talk.conversation_compacted(answer.text.strip(), newest)])
        if had_news and not self.transcript.has_news:
            await self.note(SUMMARISED)


def _error(error: TurnoutError) -> Result:
    return Result(error.message + (f"\n\n{error.hint}" if error.hint else ""), is_error=True)


def _too_long(message: str) -> bool:
    """Whether a refusal means that the conversation is too long; the API has no code of its own for it."""
    text = message.lower()
    return any(part in text for part in ("too long", "context length", "context window", "maximum context", "(413)"))


def _mark(messages: list[dict[str, Any]], tail: int) -> None:
    """Mark the end of what is the same in the next request: the last block before the tail."""
    if not messages or messages[-1]["role"] != "user":
        return
    blocks = list(messages[-1]["content"])
    place = len(blocks) - tail - 1
    if place >= 0:
        blocks[place] = {**blocks[place], "cache_control": {"type": "ephemeral"}}
        messages[-1] = {**messages[-1], "content": blocks}
