"""The chat screen, driven by keys: real sessions on this machine, the scripted model where a model is wanted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.text import Text
from textual.events import Key, Paste
from textual.pilot import Pilot
from textual.widgets import Input

from agent.chat import Question
from agent.screen_app import ChatApp
from agent.screen_prompt import Prompt
from agent.screen_question import QuestionPanel
from agent.screen_views import EntriesPane
from agent.scripted import ScriptedModel
from state.errors import NotFound
from tests.cli_helpers import SLEEPS, playbook, turnout

pytestmark = pytest.mark.anyio
LIMIT_S = 60.0
ASKS = "  - {id: leave, ask: 'Stop it?'}\n  - {id: stop, after: leave, job: {host: local, run: 'true'}}\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    with ScriptedModel() as server:
        for name, value in (("BASE_URL", server.base_url), ("API_KEY", "none")):
            monkeypatch.setenv(f"ANTHROPIC_{name}", value)
        monkeypatch.setenv("TURNOUT_MODEL", "scripted-model")
        yield server


@asynccontextmanager
async def opened(
    wanted: str | None = None, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[ChatApp, Pilot[Any]]]:
    """The screen with its session, left in good order at the end."""
    app = ChatApp(None, wanted)
    async with app.run_test(size=size) as pilot:
        await until(app, lambda: app.session is not None and app.session.ready)
        yield app, pilot
        app.depart(0)
        await until(app, lambda: not app.is_running)


async def until(app: ChatApp, holds: Callable[[], bool]) -> None:
    """Wait until it holds; what ended the screen is raised."""
    with anyio.fail_after(LIMIT_S):
        while not holds():
            if app.failure is not None:
                raise app.failure
            await asyncio.sleep(0.02)


def shown(app: ChatApp, pane: str = "talk") -> str:
    """The text of a pane, as it is drawn."""
    return "\n".join(strip.text.rstrip() for strip in app.query_one(f"#{pane}")._strips)  # type: ignore[attr-defined]


def status(app: ChatApp, todo: str) -> str:
    known = app.session.chat.board.todos.get(todo)
    return known.status if known is not None else ""


async def type_line(app: ChatApp, pilot: Pilot[Any], line: str) -> None:
    app.query_one(Prompt).text = line
    await pilot.press("enter")


async def test_a_playbook_runs_from_the_screen_without_a_model(tmp_path: Path) -> None:
    """`/run` starts it; graph, jobs and conversation show it to its end."""
    run = "  - {id: greet, title: Say hello, job: {host: local, run: 'echo good morning'}}\n"
    async with opened(size=(140, 40)) as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, run)}")
        await until(app, lambda: status(app, "greet") == "completed")
        await until(app, lambda: "greet completed" in shown(app))
        await until(app, lambda: "✔ greet" in shown(app, "jobs"))
        await until(app, lambda: "good morning" in shown(app, "log"))
        assert "Say hello" in shown(app, "graph")


@pytest.mark.parametrize("view", ["todos", "jobs"])
@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
@pytest.mark.parametrize(
    ("line", "told"), [("/egle", "there is no command `/egle`"), ("/session", "session "), ("go on", "no model")]
)
async def test_what_is_answered_is_seen_from_every_view(view: str, size: tuple[int, int], line: str, told: str) -> None:
    """A mistake, a remark and words bring the conversation back, in which their answer stands."""
    async with opened(size=size) as (app, pilot):
        app.action_view(view)
        await type_line(app, pilot, line)
        await until(app, lambda: app.view == "talk")
        await until(app, lambda: told in shown(app))
        assert app.query_one("#talk").display


async def test_a_command_that_shows_a_view_stays_in_it() -> None:
    """`/todo` from the jobs shows the todos, and `/todo` there stays: a view is an answer too."""
    async with opened() as (app, pilot):
        await type_line(app, pilot, "/todo add greet host=local run=true")
        await until(app, lambda: status(app, "greet") == "completed")
        app.action_view("jobs")
        await type_line(app, pilot, "/todo")
        await until(app, lambda: app.view == "todos")
        await type_line(app, pilot, "/todo")
        await until(app, lambda: not app.query_one(Prompt).text and not app.session._tasks)
        assert app.view == "todos"


async def test_what_is_typed_before_the_session_is_there_is_not_lost(tmp_path: Path) -> None:
    """Enter on the first picture: the command is run as soon as the session is open."""
    app = ChatApp(None, None)
    async with app.run_test() as pilot:
        await type_line(app, pilot, "/session")
        await until(app, lambda: app.session is not None and app.session.ready)
        await until(app, lambda: f"session {app.session.chat.session}" in shown(app))
        app.exit((0, None))


@pytest.mark.parametrize(("key", "answer"), [("y", "completed"), ("n", "failed")])
async def test_a_question_is_answered_in_place_by_keys(tmp_path: Path, key: str, answer: str) -> None:
    """Tab gives the keys to the question, y and n answer it, and typing goes on afterwards."""
    async with opened() as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, ASKS)}")
        await until(app, lambda: bool(app.session.chat.questions))
        if not app.query_one(QuestionPanel).has_focus:
            await pilot.press("tab")
        await pilot.press(key)
        if key == "n":
            await until(app, lambda: app.query_one(Input).has_focus)
            await pilot.press("enter")
        await until(app, lambda: status(app, "leave") == answer)
        await until(app, lambda: app.query_one(Prompt).has_focus)
        assert not app.query_one(QuestionPanel).display


async def test_a_no_has_its_reason(tmp_path: Path) -> None:
    """What is typed after n is kept with the answer, in the log."""
    async with opened() as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, ASKS)}")
        await until(app, lambda: bool(app.session.chat.questions))
        if not app.query_one(QuestionPanel).has_focus:
            await pilot.press("tab")
        await pilot.press("n")
        await until(app, lambda: app.query_one(Input).has_focus)
        await pilot.press(*"in use", "enter")
        await until(app, lambda: status(app, "leave") == "failed")
        assert app.session.chat.board.todos["leave"].reason.endswith("in use")


async def test_typing_is_never_taken_for_an_answer(tmp_path: Path) -> None:
    """A question that comes while a sentence is being typed leaves the keys where they are."""
    async with opened() as (app, pilot):
        app.session.enter(f"/run {playbook(tmp_path, ASKS)}")
        await pilot.press("w", "h")
        await until(app, lambda: app.query_one(QuestionPanel).current is not None)
        await pilot.press("y")
        assert app.query_one(Prompt).text == "why"
        assert status(app, "leave") == "in_progress"


async def test_what_is_pasted_at_a_question_goes_to_the_prompt(tmp_path: Path) -> None:
    """A paste is no answer, and it is not lost."""
    async with opened() as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, ASKS)}")
        await until(app, lambda: bool(app.session.chat.questions))
        if not app.query_one(QuestionPanel).has_focus:
            await pilot.press("tab")
        app.post_message(Paste("y\nand more\n"))
        await until(app, lambda: app.query_one(Prompt).text == "y\nand more")
        assert status(app, "leave") == "in_progress"


async def test_a_word_that_begins_like_an_answer_is_a_word(tmp_path: Path) -> None:
    """Even where the question has the keys: `you there` is typed at once, goes to the prompt and is sent."""
    async with opened() as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, ASKS)}")
        await until(app, lambda: bool(app.session.chat.questions))
        if not app.query_one(QuestionPanel).has_focus:
            await pilot.press("tab")
        for key in (*"you", "space", *"there", "enter"):
            app.post_message(Key(key, {"space": " ", "enter": "\r"}.get(key, key)))
        await until(app, lambda: "you there" in shown(app))
        assert status(app, "leave") == "in_progress"


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (140, 40), (200, 60), (40, 12)])
async def test_every_size_shows_head_prompt_and_foot(tmp_path: Path, size: tuple[int, int]) -> None:
    """From 40 by 12 to 200 by 60 nothing is drawn outside of the screen and the prompt can be read."""
    async with opened(size=size) as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, SLEEPS)}")
        await until(app, lambda: status(app, "slow") == "in_progress")
        for view in ("f3", "f4", "f2"):
            await pilot.press(view)
            for part in ("head", "prompt", "foot"):
                region = app.query_one(f"#{part}").region
                assert region.height > 0
                assert region.right <= size[0]
                assert region.bottom <= size[1]
        await type_line(app, pilot, "/kill slow")
        await until(app, lambda: status(app, "slow") in ("failed", "cancelled"))


async def test_the_screen_follows_its_size(tmp_path: Path) -> None:
    """Wide shows graph and jobs beside the conversation, narrow a strip of the graph; and back."""
    async with opened() as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, ASKS)}")
        await until(app, lambda: app.query_one("#strip").display)
        assert not app.query_one("#side").display
        await pilot.resize_terminal(150, 40)
        await until(app, lambda: app.query_one("#side").display and not app.query_one("#strip").display)
        assert "leave" in shown(app, "graph")
        await pilot.resize_terminal(80, 24)
        await until(app, lambda: app.query_one("#strip").display and not app.query_one("#side").display)


async def test_two_hundred_pasted_lines_are_one_message() -> None:
    """A paste does not send line by line; it is kept whole and shown folded."""
    pasted = "\n".join(f"line {n} 日本語 🚂" for n in range(200))
    async with opened() as (app, pilot):
        prompt = app.query_one(Prompt)
        prompt.insert(pasted)
        await pilot.press("enter")
        await until(app, lambda: "188 more lines" in shown(app))
        said = [entry.text for entry in app.session.chat.conversation.entries if entry.kind == "said"]
        assert said == [pasted]


async def test_the_prompt_completes_and_remembers() -> None:
    """Tab completes a command, Up brings back what was sent, Ctrl-J begins a new line, ? is help."""
    async with opened() as (app, pilot):
        prompt = app.query_one(Prompt)
        await pilot.press(*"/ses", "tab")
        assert prompt.text == "/session "
        await pilot.press("enter", "up")
        assert prompt.text == "/session "
        await pilot.press("ctrl+c")
        assert prompt.text == ""
        await pilot.press("a", "ctrl+j", "b")
        assert prompt.text == "a\nb"
        await pilot.press("ctrl+c", "question_mark")
        assert type(app.screen).__name__ == "Help"
        await pilot.press("escape")
        assert type(app.screen).__name__ != "Help"


async def test_an_answer_streams_and_stays(model: ScriptedModel) -> None:
    """Words appear while they are being said; once stored they are the same entry."""
    model.add({"when": "hello", "say": "**Good** morning, operator. " * 20, "piece_s": 0.05})
    async with opened() as (app, pilot):
        await type_line(app, pilot, "hello")
        await until(
            app, lambda: any(e.kind == "answer" and e.state == "open" for e in app.session.chat.conversation.entries)
        )
        await until(app, lambda: app.session.chat.talk.doing == "idle")
        answers = [entry for entry in app.session.chat.conversation.entries if entry.kind == "answer"]
        assert [entry.state for entry in answers] == ["done"]
        await until(app, lambda: "Good morning, operator." in shown(app))


async def test_escape_ends_the_turn_and_nothing_else(model: ScriptedModel, tmp_path: Path) -> None:
    """The model stops in mid-sentence; the job that runs goes on."""
    model.add({"when": "hello", "say": "word " * 500, "piece_s": 0.1})
    async with opened() as (app, pilot):
        await type_line(app, pilot, f"/run {playbook(tmp_path, SLEEPS)}")
        await until(app, lambda: any(job.state == "running" for job in app.session.chat.board.jobs.values()))
        await type_line(app, pilot, "hello")
        await until(app, lambda: any(e.kind == "answer" and e.text for e in app.session.chat.conversation.entries))
        await pilot.press("escape")
        await until(app, lambda: app.session.chat.talk.doing == "idle")
        answers = [entry.state for entry in app.session.chat.conversation.entries if entry.kind == "answer"]
        assert answers == ["stopped"]
        assert [job.alive for job in app.session.chat.board.jobs.values()] == [True]
        await type_line(app, pilot, "/kill slow")
        await until(app, lambda: status(app, "slow") in ("failed", "cancelled"))


async def test_a_command_of_the_model_waits_for_leave_and_can_be_allowed_for_good(model: ScriptedModel) -> None:
    """The question shows command, host and reason; `a` keeps the rule, and the same command is not asked again."""
    call = {"name": "run", "input": {"command": "touch here", "host": "local"}}
    model.add({"when": "first", "tools": [call]}, {"when": "second", "tools": [call]}, {"again": True, "say": "Done."})
    async with opened() as (app, pilot):
        await type_line(app, pilot, "first")
        await until(app, lambda: bool(app.session.chat.questions))
        question: Question = app.query_one(QuestionPanel).current
        assert (question.command, question.host, question.why) == ("touch here", "local", "it writes files")
        if not app.query_one(QuestionPanel).has_focus:
            await pilot.press("tab")
        await pilot.press("a")
        await until(app, lambda: not app.session.chat.questions)
        await until(app, lambda: app.session.chat.talk.doing == "idle")
        await type_line(app, pilot, "second")
        await until(
            app, lambda: sum(e.kind == "tool" and e.state == "done" for e in app.session.chat.conversation.entries) == 2
        )
        assert not app.session.chat.questions


async def test_leaving_gives_the_session_back_and_jobs_go_on(tmp_path: Path) -> None:
    """Ctrl-D: the job runs on, the session is paused, and opening it again shows what was said."""
    async with opened() as (app, pilot):
        session = app.session.chat.session
        await type_line(app, pilot, f"/run {playbook(tmp_path, SLEEPS)}")
        await until(app, lambda: any(job.state == "running" for job in app.session.chat.board.jobs.values()))
        await type_line(app, pilot, "hello there")
        await until(app, lambda: "hello there" in shown(app))
        await pilot.press("ctrl+d")
    assert "1 job goes on without you: slow on local" in app.farewell
    sessions = await anyio.to_thread.run_sync(lambda: json.loads(turnout("sessions", "--json").stdout))
    assert [(row["id"], row["state"]) for row in sessions] == [(session, "paused")]
    async with opened(session) as (app, pilot):
        await until(app, lambda: "hello there" in shown(app))
        await type_line(app, pilot, "/kill slow")
        await until(app, lambda: status(app, "slow") in ("failed", "cancelled"))


async def test_a_second_screen_looks_on_and_is_told_who_drives(tmp_path: Path) -> None:
    """Two chats on one session: the second shows what the first does and changes nothing."""
    async with opened() as (first, _):
        session = first.session.chat.session
        second = ChatApp(None, session)
        from agent import chat_session
        from state.errors import SessionBusy

        def busy(db: Any, wanted: str | None, *, yes: bool) -> tuple[str, str]:
            return session, SessionBusy(f"session `{session}` is driven by process 4711 on `elsewhere`").message

        patch = pytest.MonkeyPatch()
        patch.setattr("agent.screen_session.take", busy)
        assert chat_session.take is not busy
        async with second.run_test() as pilot:
            await until(second, lambda: second.session is not None and second.session.ready)
            await until(second, lambda: "driven by process 4711" in shown(second))
            first.session.enter(f"/run {playbook(tmp_path, ASKS)}")
            await until(second, lambda: status(second, "leave") == "in_progress")
            await type_line(second, pilot, "/approve")
            await type_line(second, pilot, "/pause")
            await until(second, lambda: "this cannot be done here" in shown(second))
            assert status(first, "leave") == "in_progress"
            second.exit((0, None))
        patch.undo()


async def test_the_end_is_followed_until_the_operator_scrolls_away() -> None:
    """New entries keep the end in sight; who reads further up is left there; End follows again."""
    async with opened() as (app, pilot):
        pane = app.query_one(EntriesPane)
        for number in range(60):
            app.session.chat.note(Text(f"note {number}"))
        await until(app, lambda: "note 59" in shown(app) and pane.at_end)
        await pilot.press("pageup", "pageup")
        here = pane.scroll_offset.y
        app.session.chat.note(Text("note 60"))
        await until(app, lambda: "note 60" in shown(app))
        assert pane.scroll_offset.y == here
        await pilot.press("ctrl+end")
        app.session.chat.note(Text("note 61"))
        await until(app, lambda: "note 61" in shown(app) and pane.at_end)


async def test_what_goes_wrong_at_the_start_is_told_after_the_screen(tmp_path: Path) -> None:
    """A session that cannot be opened ends the screen with the error, and not with a traceback on it."""
    app = ChatApp(None, "nothing")
    async with app.run_test():
        with pytest.raises(NotFound, match="there is no database"):
            await until(app, lambda: False)
