"""Subagents: sessions that research one question with tools that only read, and end with a report.

    subagents = Subagents(...)
    report = await subagents.think(todo, prompt, attempt)       # the dispatcher's `think`

Each has a session and a log of its own, whose id follows from its todo and attempt: after a crash the same call finds
what is there and goes on from its last message, or gives the report that is already stored. What it may do is held by
the abilities that it gets and by the policy that its commands are judged under, and not by what its prompt says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
from pydantic import Field
from sqlalchemy import Connection, select

from agent.abilities.base import Ability, Graph, Input, Result, Use
from agent.abilities.catalogue import subagent_abilities
from agent.attempt import job_id
from agent.budget import Ledger
from agent.children import end_child
from agent.config import Config
from agent.hosts import Hosts
from agent.model import Model
from agent.model_calls import Caller, Limiter, Patience
from agent.planner_prompt import SUBAGENT
from agent.scribe import Scribe
from agent.speaker import MALFORMED_LIMIT, Speaker
from agent.tell import Tell
from agent.transcript import Transcript
from state import changes as c
from state.changes import Change
from state.db import Database
from state.errors import ModelError, ToolError, TurnoutError
from state.log import append, read
from state.models import Session, table
from tools.permissions import Policy, read_only_policy
from tools.ssh import Host

LAST_TURNS = 3
"""Turns before the last one in which the subagent is told to come to an end."""
REPORT_NOW = "You have {left} turns left. Call `report` now with what you know and what you could not find out."
NO_REPORT = "You ended without a report. Call `report`; it is all that the planner gets from you."


class Finding(Input):
    claim: str
    source: Annotated[str, Field(description="Where it was seen: file and line, command, address.")]
    quote: Annotated[str, Field(description="The words that say so, if there are some.")] = ""


class ReportInput(Input):
    answer: Annotated[str, Field(min_length=1, description="The answer to the question, in a few paragraphs at most.")]
    findings: list[Finding] = Field(default_factory=list)
    unknown: Annotated[list[str], Field(default_factory=list, description="What could not be found out.")]


async def _report(use: Use, given: ReportInput) -> Result:
    return Result("received")


REPORT = Ability("report", "Hand in the report. It ends your work.", ReportInput, _report, read_only=True)


@dataclass
class Desk:
    """What a subagent's abilities work with: hosts to read from, and no graph."""

    db: Database
    session: str
    config: Config
    policy: Policy
    hosts: Hosts
    graph: Graph | None = None

    async def host(self, name: str) -> Host:
        return await self.hosts.get(name)


@dataclass
class Subagents:
    """The subagents of one session. They share its model, its limiter and its account."""

    db: Database
    parent: str
    config: Config
    model: Model
    limiter: Limiter
    ledger: Ledger
    hosts: Hosts
    tell: Tell
    patience: Patience = field(default_factory=Patience)
    more: Mapping[str, Ability] = field(default_factory=dict)

    async def think(self, todo: str, prompt: str, attempt: int) -> dict[str, Any]:
        """Do the research of a todo; the report, with `by` and the id of its session as `child`.

        Raises `ModelError` for want of a model, `ToolError` when it came to no report.
        """
        child = job_id(self.parent, todo, attempt)
        try:
            with anyio.fail_after(self.config.subagents.seconds):
                return await self._think(child, todo, prompt)
        except TimeoutError:
            await self._end(child, "failed", "it took too long")
            raise ToolError(f"the subagent did not report within {self.config.subagents.seconds:.0f} s") from None
        except TurnoutError as error:
            await self._end(child, "failed", error.message)
            raise

    async def _think(self, child: str, todo: str, prompt: str) -> dict[str, Any]:
        speaker = await self._speaker(child, todo, prompt)
        if (report := handed_in(speaker.transcript)) is None:
            await speaker.settle()
            report = await self._turns(child, speaker)
        await self._end(child, "completed", None)
        return {**report, "by": "model", "child": child}

    async def _turns(self, child: str, speaker: Speaker) -> dict[str, Any]:
        limits, transcript, began = self.config.subagents, speaker.transcript, speaker.caller.ledger.spent.tokens
        while True:
            left = limits.turns - transcript.calls
            if left <= 0 or (limits.tokens is not None and speaker.caller.ledger.spent.tokens - began > limits.tokens):
                raise ToolError(f"the subagent did not report within {transcript.calls} turns")
            if left <= LAST_TURNS:
                await speaker.note(REPORT_NOW.format(left=left))
            answer = await speaker.turn()
            for block in answer.tool_uses:
                self.tell("child_said", child, f"{block['name']} {short(block['input'])}")
            if (report := handed_in(transcript)) is not None:
                return report
            if speaker.malformed >= MALFORMED_LIMIT:
                raise ModelError("the model calls its tools wrongly again and again", kind="bad_request")
            if answer.stop_reason == "refusal":
                raise ModelError("the model refused to research this", kind="refused")
            if answer.stop_reason == "end_turn" and not answer.tool_uses:
                await speaker.note(NO_REPORT)

    async def _speaker(self, child: str, todo: str, prompt: str) -> Speaker:
        """The subagent as it is stored, or a new one."""
        created = [
            c.session_created(
                kind="subagent", title=todo, playbook=None, source=None, parent=self.parent, settings={"todo": todo}
            ),
            Change("operator.said", {"text": prompt}, "model"),
        ]

        def find(conn: Connection) -> list[Any]:
            sessions = table(Session).c
            if conn.execute(select(sessions.id).where(sessions.id == child)).one_or_none() is None:
                append(conn, child, created, time.time())
            return list(read(conn, child))

        messages = await self.db.awrite(find)
        transcript = Transcript()
        transcript.take_messages(messages)
        scribe = Scribe(self.db, child)
        scribe.listen(transcript.take_all)
        policy = read_only_policy()
        caller = Caller(scribe, self.model, self.limiter, self.ledger, self.patience)
        desk = Desk(self.db, child, self.config, policy, self.hosts)
        abilities = {**subagent_abilities(self.more.values()), REPORT.name: REPORT}
        return Speaker(scribe, transcript, caller, abilities, desk, SUBAGENT, "subagent", _Quiet(self.tell, child))

    async def give_up(self, child: str) -> None:
        """Its todo was cancelled."""
        await self._end(child, "cancelled", "its todo was cancelled")

    async def _end(self, child: str, status: str, reason: str | None) -> None:
        with anyio.CancelScope(shield=True):
            await self.db.awrite(lambda conn: end_child(conn, child, status, reason))


class _Quiet(Tell):
    """Of a subagent, only its text is told, under its own name."""

    def __init__(self, tell: Tell, child: str) -> None:
        super().__init__(None)
        self._parent, self._child = tell, child

    def __call__(self, what: str, *details: Any) -> None:
        if what == "text":
            self._parent("child_text", self._child, details[-1])
        elif what == "usage":
            self._parent(what, *details)


def handed_in(transcript: Transcript) -> dict[str, Any] | None:
    """The report, when the newest answer holds a right one."""
    for turn in reversed(transcript.turns):
        if turn.role != "assistant":
            continue
        for block in turn.blocks:
            if block.get("type") == "tool_use" and block["name"] == REPORT.name:
                try:
                    given: ReportInput = REPORT.check(block["input"])
                except ToolError:
                    continue
                return given.model_dump()
        return None
    return None


def short(given: Mapping[str, Any], limit: int = 120) -> str:
    """A tool's input in one line."""
    text = ", ".join(f"{key}={str(value)[:60]}" for key, value in given.items()).replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 3] + "..."
