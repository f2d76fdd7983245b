"""For tests of the agent: a session that is talked to, driven against a scripted model that is reached by real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agent.config import Budget, Config, ModelConfig, Subagents
from agent.model_calls import Patience
from agent.scripted import ScriptedModel
from agent.talk import Talk, create_chat, open_talk
from state.changes import Change
from state.db import Database
from state.log import read
from tools.jobs import ContactEvent, JobState

QUICK = Patience(total_s=20.0, first_s=0.01, longest_s=0.05, dice=lambda: 0.0)


class Face:
    """Looks on, and answers questions as it was told to."""

    def __init__(self, answers: Mapping[str, str] | str | None = None) -> None:
        self.changes: list[Change] = []
        self.heard: list[tuple[Any, ...]] = []
        self.questions: list[tuple[str, str]] = []
        self.talk: Talk | None = None
        self._answers = answers
        self._news = anyio.Event()

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        self.changes += changes
        self._wake()

    def progressed(self, job: JobState) -> None: ...

    def contact(self, event: ContactEvent) -> None: ...

    def asked(self, todo: str, question: str, default: str) -> None:
        self.questions.append((todo, question))
        answer = self._answers if isinstance(self._answers, str) else (self._answers or {}).get(todo)
        if answer is not None and self.talk is not None:
            self.talk.answer(todo, answer)
        self._wake()

    def __getattr__(self, what: str) -> Callable[..., None]:
        if what.startswith("_"):
            raise AttributeError(what)

        def hear(*details: Any) -> None:
            self.heard.append((what, *details))
            self._wake()

        return hear

    def _wake(self) -> None:
        self._news.set()

    async def until(self, holds: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait for news until `holds()` does."""
        with anyio.fail_after(seconds):
            while not (value := holds()):
                await self._news.wait()
                self._news = anyio.Event()
        return value

    def kinds(self, kind: str) -> list[Mapping[str, Any]]:
        return [change.payload for change in self.changes if change.kind == kind]

    def status(self, todo: str) -> str | None:
        found = [p["now"] for p in self.kinds("todo.status") if p["id"] == todo]
        return found[-1] if found else None

    def words(self) -> list[str]:
        """What the model said, answer by answer."""
        said = [[b["text"] for b in p["content"] if b["type"] == "text"] for p in self.kinds("model.answered")]
        return ["".join(texts) for texts in said]


def play(turns: Sequence[Mapping[str, Any]], main: Callable[[ScriptedModel], Any]) -> ScriptedModel:
    """Run `main` against a scripted model, which is given back when it has ended, with the requests it was sent."""
    with ScriptedModel(turns) as server:
        anyio.run(main, server)
    return server


def configured(server: ScriptedModel, *, budget: Budget | None = None, **more: Any) -> Config:
    """A configuration with this server as its model."""
    return configured_at(server.base_url, budget=budget, **more)


def configured_at(base_url: str, *, budget: Budget | None = None, **more: Any) -> Config:
    """The same for a server that another process runs."""
    subagents = more.pop("subagents", Subagents())
    model = ModelConfig(name="scripted", base_url=base_url, **more)
    return Config(model, subagents, budget or Budget())


@asynccontextmanager
async def talking(
    tmp_path: Path,
    config: Config,
    face: Face | None = None,
    *,
    session: str | None = None,
    patience: Patience = QUICK,
    leave: bool = True,
) -> AsyncIterator[tuple[Talk, Face]]:
    """A session that is driven beside the test, and left when the test is through with it."""
    face = face or Face()
    db = await anyio.to_thread.run_sync(Database.open, str(tmp_path / "turnout.db"))
    try:
        if session is None:
            session = await anyio.to_thread.run_sync(lambda: create_chat(db, title="Test"))
        async with open_talk(db, session, face, config) as talk:
            face.talk = talk
            talk.patience = patience
            talk.use_model(config.model.name if config.model else None)
            async with anyio.create_task_group() as group:
                group.start_soon(talk.run)
                yield talk, face
                if leave:
                    talk.stop()
                else:
                    group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(db.close)


def log_of(tmp_path: Path, session: str) -> list[Any]:
    """The whole log of a session, as stored."""
    db = Database.open(str(tmp_path / "turnout.db"))
    try:
        return db.read(lambda conn: list(read(conn, session)))
    finally:
        db.close()
