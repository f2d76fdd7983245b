"""The chat loop without a screen: what the operator types goes in, what happens comes out, to any number of faces.

    chat = Chat(db, session, board, attended=True)
    chat.faces.append(face)
    async with open_talk(db, session, chat, config) as chat.talk: ...
    await chat.enter("/run eagle3 host=gpu1")         # a command, or words for the model

It exists once; `agent/face_plain.py` and `agent/screen_app.py` are its faces. It is the observer of the session
(`agent/dispatcher.py`), keeps the board and the conversation, and holds the questions that wait for the operator.
Everything but prose works without a model. It writes nothing to a terminal and never blocks the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio import to_thread
from rich.text import Text

from agent.board import Board
from agent.chat_entries import Conversation, Entry
from agent.chat_text import event_line
from agent.questions import NOBODY
from state.changes import Change
from state.db import Database
from state.errors import TurnoutError, UsageError
from tools.jobs import ContactEvent, JobState
from tools.permissions import Policy, default_policy
from tools.permissions_kept import keep, rules_path
from tools.permissions_rules import Rule

UNTITLED = "Conversation"


@dataclass(frozen=True, slots=True)
class Question:
    """Something that only the operator may decide. `command`, `host`, `why` and `rule` come with a permission.

    `free` takes any words for an answer, `options` are offered. `lasting` are rules that would allow it for good.
    """

    todo: str
    text: str
    default: str = "no"
    command: str = ""
    host: str = ""
    why: str = ""
    rule: str = ""
    free: bool = False
    options: tuple[str, ...] = ()
    lasting: tuple[Rule, ...] = ()


class Face(Protocol):
    """Who shows a chat. Called on the event loop; must not block."""

    def entry_changed(self, entry: Entry) -> None: ...
    def board_changed(self) -> None: ...
    def status_changed(self) -> None: ...
    def question_asked(self, question: Question) -> None: ...
    def question_gone(self, question: Question) -> None: ...
    def leave(self, code: int, *, then: str | None = None) -> None: ...
    def show(self, view: str) -> bool: ...


@dataclass(slots=True)
class Status:
    """The line at the foot: what the model does, its name, and what was spent. `window` of 0 is not known."""

    doing: str = "idle"
    model: str = ""
    calls: int = 0
    tokens: int = 0
    window: int = 0
    cost: float | None = None
    unpriced: int = 0
    input: int = 0
    output: int = 0
    retry_at: float | None = None
    paused: bool = False
    watching: str = ""


@dataclass(eq=False)
class Chat:
    """One session that is talked to. `talk` is there while this process drives it (see `agent/talk.py`)."""

    db: Database
    session: str
    board: Board
    conversation: Conversation = field(default_factory=Conversation)
    attended: bool = True
    yes: bool = False
    setup_hint: tuple[str, ...] = ()
    talk: Any = None
    status: Status = field(default_factory=Status)
    faces: list[Face] = field(default_factory=list)
    questions: dict[str, Question] = field(default_factory=dict)
    ready: anyio.Event = field(default_factory=anyio.Event)
    _told_without_model: bool = False

    def __post_init__(self) -> None:
        self.conversation.listen(self._entry_changed)

    # What the operator does

    async def enter(self, text: str) -> None:
        """A line from the operator: a `/command`, or words for the model. Errors become entries, never exceptions."""
        text = text.strip("\n")
        if not text.strip():
            return
        try:
            if text.lstrip().startswith("/") and not text.lstrip().startswith("//"):
                from agent.chat_commands import run_command

                await run_command(self, text.strip())
            else:
                self.driver().hear(text.removeprefix("/") if text.startswith("//") else text)
        except TurnoutError as error:
            self.error(error)

    def driver(self) -> Any:
        """What drives the session. Raises `UsageError` when this process only looks on, or has not begun."""
        if self.talk is None:
            why = self.status.watching or "the session is not being driven yet"
            hint = "do it where the session is driven; `/quit` leaves here"
            raise UsageError(f"this cannot be done here: {why}", hint=hint)
        return self.talk

    def interrupt(self) -> bool:
        """End the model's turn and nothing else. Whether there was one."""
        if self.talk is None or self.talk.doing in ("idle", "paused", "no model"):
            return False
        self.talk.interrupt()
        return True

    async def answer(self, todo: str, answer: str, reason: str | None = None, *, always: bool = False) -> None:
        """Answer an open question; `always` also keeps the rule that allows it. Raises `UsageError`, `NotFound`."""
        question = self.questions.get(todo)
        if question is None:
            raise UsageError(f"`{todo}` asks nothing", hint="`/approve` alone shows what is asked")
        if always:
            await self._keep(question)
        self.driver().answer(todo, answer, reason)

    async def _keep(self, question: Question) -> None:
        """Keep the rules that allow this for good, in the operator's file, and go by them from now on."""
        if not question.lasting:
            hint = "answer it with yes; it will be asked again"
            raise UsageError("this cannot be allowed for good: not all of it is known before it runs", hint=hint)

        def work() -> Policy:
            keep(rules_path(), question.lasting)
            return default_policy()

        self.driver().use_policy(await to_thread.run_sync(work))
        self.note(Text(f"kept: this command is allowed on {question.host} from now on ({rules_path()})", "dim"))

    @property
    def title(self) -> str:
        """What the conversation is about: the session's own title, else what was said or loaded first."""
        if self.board.title != UNTITLED:
            return self.board.title
        said = (entry.text for entry in self.conversation.entries if entry.kind == "said")
        return ", ".join(self.conversation.playbooks) or " ".join(next(said, UNTITLED).split())[:100]

    # What commands say

    def note(self, *lines: Text | str) -> None:
        """Say something that is not part of the log."""
        self.conversation.say(lines, time=time.time())

    def error(self, error: TurnoutError) -> None:
        """Say what went wrong and what to do."""
        lines = [Text.assemble(("✘ ", "red"), error.message)]
        if error.hint:
            lines.append(Text(f"  {error.hint}", "dim"))
        self.conversation.say(lines, "error", time=time.time())

    def leave(self, code: int = 0, *, then: str | None = None) -> None:
        """End the chat; jobs go on. `then` names a session to go on with."""
        for face in self.faces:
            face.leave(code, then=then)

    def show(self, view: str) -> bool:
        """Whether a face shows `todos`, `jobs` or `help` by itself, so that they need not be told in words."""
        return any(face.show(view) for face in self.faces)

    # The observer's part: the session tells

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        """These changes are stored, under these numbers."""
        now = time.time()
        for seq, change in zip(seqs, changes, strict=True):
            self.board.apply(change.kind, change.payload, now)
            self.board.seq = seq
            self.conversation.apply(change.kind, change.payload, seq, now)
            if change.kind == "todo.status":
                self._moved(change.payload, seq, now)
            elif change.kind == "approval.answered":
                self._gone(change.payload["todo"])
        for face in self.faces:
            face.board_changed()

    def _moved(self, p: Mapping[str, Any], seq: int, now: float) -> None:
        line = event_line(self.board, p, now)
        if line is not None:
            self.conversation.event(line, seq=seq, time=now, key=p["id"])
        if p["was"] == "in_progress":
            self._gone(p["id"])

    def progressed(self, job: JobState) -> None:
        """A running job said how far it is."""
        self.board.progress(job, time.time())
        for face in self.faces:
            face.board_changed()

    def contact(self, event: ContactEvent) -> None:
        """A host was reached or lost."""
        before = self.board.lost.get(event.host)
        self.board.contact(event)
        now = time.time()
        if event.kind != "connected" and before is None:
            words = f"! no contact with {event.host}: {event.why}; jobs there go on, trying again"
            self.conversation.event(Text(words, "bold yellow"), seq=None, time=now)
        elif event.kind == "connected" and before is not None:
            self.conversation.event(Text(f"contact with {event.host} again", "green"), seq=None, time=now)

    def asked(self, todo: str, question: str, default: str) -> None:
        """A todo wants an answer. Without anybody to ask it is no."""
        if self.yes and self.talk is not None:
            self.talk.answer(todo, "yes", by="--yes")
            return
        if not self.attended:
            words = Text(f"? {todo} asks: {question} No: there is {NOBODY}; `--yes` says yes.", "magenta")
            self.conversation.event(words, seq=None, time=time.time())
            if self.talk is not None:
                self.talk.answer(todo, "no", by=NOBODY)
            return
        asked = self._question(todo, question, default)
        self.questions[todo] = asked
        for face in self.faces:
            face.question_asked(asked)

    def _question(self, todo: str, text: str, default: str) -> Question:
        known = self.board.todos.get(todo)
        body = known.body if known is not None else {}
        words = {key: str(body.get(key) or "") for key in ("command", "host", "why", "rule")}
        return Question(
            todo, text, default, free=bool(body.get("free")), options=tuple(map(str, body.get("options") or ())),
            lasting=tuple(Rule.of(entry) for entry in body.get("lasting") or ()), **words,
        )  # fmt: skip

    def _gone(self, todo: str) -> None:
        question = self.questions.pop(todo, None)
        if question is not None:
            for face in self.faces:
                face.question_gone(question)

    # The observer's part: the model speaks

    def turn_began(self, call: str, model: str, purpose: str) -> None:
        if purpose == "turn":
            self.conversation.begin(call, time.time())
        self.status.model = model
        self._status_changed()

    def text(self, call: str, delta: str) -> None:
        self.conversation.grow(call, delta)

    def tool_called(self, call: str, tool_use_id: str, name: str, input: Mapping[str, Any]) -> None:
        self.conversation.tool(tool_use_id, name, input, time=time.time())

    def turn_failed(self, call: str, kind: str, reason: str, retry_in_s: float | None) -> None:
        self.status.retry_at = None if retry_in_s is None else time.time() + retry_in_s
        self._status_changed()

    def turn_ended(self, call: str, stop_reason: str) -> None:
        self.status.retry_at = None
        self._status_changed()

    def usage(self, spent: Any) -> None:
        status = self.status
        status.calls, status.cost, status.unpriced = spent.calls, spent.cost, bool(spent.unpriced)
        status.input, status.output = spent.input + spent.cache_read + spent.cache_write, spent.output
        if self.talk is not None:
            status.tokens, status.window = self.talk.context
        self._status_changed()

    def doing(self, word: str) -> None:
        self.status.doing = word
        self.status.paused = word == "paused"
        self._status_changed()

    def said_without_model(self) -> None:
        """The operator spoke and no model is there: said once, with the lines that set one up."""
        if not self._told_without_model:
            self._told_without_model = True
            lines = [
                Text(
                    "Nobody is there to understand prose: no model is set up. Your words are kept in the log.", "yellow"
                )
            ]
            lines += [Text(f"  {line}", "bold") for line in self.setup_hint]
            lines.append(Text("Everything else works: /run, /todo, /jobs, /logs; /help shows all.", "dim"))
            self.note(*lines)

    def child_text(self, child: str, delta: str) -> None:
        """A subagent's own words are in its own session."""

    def child_said(self, child: str, line: str) -> None:
        self.conversation.child_line(child, line)

    def _status_changed(self) -> None:
        for face in self.faces:
            face.status_changed()

    def _entry_changed(self, entry: Entry) -> None:
        for face in self.faces:
            face.entry_changed(entry)
