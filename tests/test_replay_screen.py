"""The watching screen, driven by keys: it plays, steps, jumps, searches, fits, and follows a running session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from agent.replay_player import Player
from agent.replay_source import from_database
from agent.watch_app import WatchApp
from state import changes as c
from state.db import Database
from state.log import append
from tests.cli_helpers import turnout
from tests.replay_story import BEGAN, Tape, tell

Act = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    opened = Database.open(str(tmp_path / "turnout.db"))
    tell(opened)
    return opened


def drive(
    db: Database, act: Act, *, session: str = "pivot234", size: tuple[int, int] = (140, 40), at: str = "0"
) -> None:
    """Open the screen without a terminal and do something with it."""
    recording = from_database(db, session)
    app = WatchApp(db, Player(recording, place=recording.place(at)), playing=False)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(run())


def text(app: WatchApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).content)


def test_the_screen_shows_the_moment(db: Database) -> None:
    """Graph, lanes, job lines and messages are those of the moment, not of the end."""

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert "A last attempt with vLLM" in text(app, "graph")
        assert "bench_own" not in text(app, "graph")
        assert "retry_vllm" in text(app, "lanes")
        assert "Avg generation throughput" in text(app, "jobs")
        assert "retry_vllm" in text(app, "left")
        assert "of 2:45:28" in text(app, "head")

    drive(db, act, at="300s")


def test_keys_move_through_the_session(db: Database) -> None:
    """One, ten, the ends, a named moment, a search and its other matches."""

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("right", "j", "shift+right", "left")
        assert app.player.place == 11
        await pilot.press("end")
        assert app.player.at_end
        await pilot.press("g", *"bench_own", "enter")
        recording = app.panes.recording
        assert app.player.place == recording.place("bench_own")
        await pilot.press("slash", *"SIGTERM", "enter", "N")
        first = app.player.place
        assert "SIGTERM" in str(recording.entries[first - 1].payload)
        await pilot.press("g", *"nowhere", "enter")
        assert "no todo `nowhere`" in app.told
        assert app.player.place == first
        await pilot.press("home", "slash", *"no such words", "enter")
        assert "nothing behind this says" in app.told

    drive(db, act)


def test_playing_reaches_the_end_and_stops(db: Database) -> None:
    """At a great speed every message comes by, and the screen stays open at the end."""

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        app.player.speed = 1e9
        await pilot.press("space")
        while app.playing:
            await pilot.pause(0.01)
        assert app.player.at_end
        assert "paused" in text(app, "head")

    drive(db, act)


def test_a_message_opens_in_full(db: Database) -> None:
    """Enter shows all of a message, Escape the list again; `?` the keys."""

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        assert "Try once more, and find out what SGLang would need" in " ".join(text(app, "left").split())
        await pilot.press("escape", "question_mark")
        assert "one message back" in text(app, "left")
        await pilot.press("escape")
        assert "operator" not in text(app, "left")

    drive(db, act, at="2")


def test_keys_and_messages_are_shown_in_every_view(db: Database) -> None:
    """On a narrow screen that shows the graph, what is asked for takes its place until it is closed."""

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab", "question_mark")
        assert [app.query_one(f"#{name}").region.width > 0 for name in ("left", "graph")] == [True, False]
        await pilot.press("escape")
        assert [app.query_one(f"#{name}").region.width > 0 for name in ("left", "graph")] == [False, True]

    drive(db, act, size=(80, 24))


def test_a_conversation_has_the_whole_width(db: Database) -> None:
    """Where there is no graph, no half of the screen stands empty, and a long message is read line by line."""

    def write(conn) -> None:  # type: ignore[no-untyped-def]
        lines = "\n".join(f"line {n}" for n in range(1, 101))
        Tape(conn, "talks234").begin("Talk").at(10).say(lines).at(20).say("bye")

    db.write(write)

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert app.query_one("#left").region.width > 130
        await pilot.press("enter")
        assert text(app, "left").splitlines()[2] == "line 1"
        await pilot.press("down", "pagedown", "up", "down")
        assert text(app, "left").splitlines()[2:4] == ["… 12 more lines: ↑", "line 13"]
        assert app.player.place == 2
        await pilot.press("j")
        assert "bye" in text(app, "left")

    drive(db, act, session="talks234", at="2")


def test_the_log_of_a_job_stands_beside(tmp_path: Path) -> None:
    """`l` shows the log of the moment's job from its host, Escape the messages again."""
    playbook = tmp_path / "p.yaml"
    playbook.write_text(
        "name: p\ntitle: P\nsteps:\n  - {id: a, job: {host: local, run: 'seq 1 900'}}\n", encoding="utf-8"
    )
    assert turnout("run", str(playbook)).returncode == 0
    db = Database.open()
    id = from_database(db, None).facts.id

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("l")
        while app.panes.logs is None:
            await pilot.pause(0.05)
        await pilot.pause(0.1)
        told = text(app, "left").splitlines()
        assert told[0] == "log of a on local, as it is there now"
        assert told[-1] == "900"
        await pilot.press("pageup", "up")
        told = text(app, "left").splitlines()
        assert told[-2:] == ["888", "… 12 more lines: ↓"]
        await pilot.press(*["pagedown"] * 9)
        assert text(app, "left").splitlines()[-1] == "900"
        await pilot.press("escape")
        assert "job a exited with 0" in text(app, "left")

    drive(db, act, session=id, at="9999")


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (140, 40), (200, 60), (40, 12)])
def test_every_size_fits(db: Database, size: tuple[int, int]) -> None:
    """No line is wider than the screen and no pane higher, in each view; narrow screens show one at a time."""

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        for _ in range(4):
            await pilot.press("tab")
            shown = 0
            for name in ("head", "left", "graph", "lanes", "jobs", "foot"):
                pane = app.query_one(f"#{name}", Static)
                if pane.region.width == 0 or pane.region.height == 0:
                    continue
                shown += 1
                assert pane.region.right <= size[0]
                assert pane.region.bottom <= size[1]
            assert shown >= 3

    drive(db, act, at="leave", size=size)


def test_a_running_session_is_followed_and_not_touched(db: Database) -> None:
    """Whoever stands at the end sees what another process commits; nothing is written by looking."""

    def run(conn) -> None:  # type: ignore[no-untyped-def]
        Tape(conn, "livel234").begin("A running session").at(5).todo("one", "The first").at(6).start("one")

    db.write(run)

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        before = len(app.panes.recording)
        assert "live" in text(app, "head")
        app.playing = True  # as `turnout replay` leaves it when it has played everything
        done = [c.todo_status("one", "in_progress", "completed")]
        await asyncio.to_thread(db.write, lambda conn: append(conn, "livel234", done, BEGAN + 60))
        while len(app.panes.recording) == before:
            await pilot.pause(0.05)
        await pilot.pause(0.05)
        assert len(app.panes.recording) == before + 1
        assert app.player.at_end, "it is seen at once, not in its old timing"
        assert "✔" in text(app, "graph")
        read: list[int] = []
        app.panes.read_logs = lambda db: read.append(1) or setattr(app.panes, "logs", {})  # type: ignore
        await pilot.press("l", "l", "l")
        assert len(read) == 2, "a log that may have grown is read each time it is opened"

    drive(db, act, session="livel234", at="99")
