"""A log as a recording: any moment of it, what lasted, where the time went, what jobs said, and how it is played."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent.board import Board
from agent.look import read_board
from agent.replay import EVERY, Entry, Facts, Recording, since_start
from agent.replay_player import LONGEST_PAUSE_S, Player, speed_of
from agent.replay_source import from_database, news
from state import changes as c
from state.db import Database
from state.errors import NotFound, UsageError
from state.log import append
from tests.cli_helpers import turnout
from tests.replay_story import BEGAN, Tape, long, tell


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return Database.open(str(tmp_path / "turnout.db"))


@pytest.fixture
def story(db: Database) -> Recording:
    return from_database(db, tell(db))


def seen(board: Board) -> object:
    """A board as something to compare."""
    jobs = {id: (job.state, job.cancel, job.progress) for id, job in board.jobs.items()}
    todos = {id: (t.status, t.reason, t.started, t.ended, t.attempts, tuple(t.after)) for id, t in board.todos.items()}
    return board.status, board.title, todos, jobs, dict(board.questions)


def test_the_last_moment_is_the_session_as_stored(db: Database, story: Recording) -> None:
    """At the end of the log a replay shows what the tables hold."""
    stored = db.read(lambda conn: read_board(conn, "pivot234"))
    shown = story.board(len(story))
    assert {id: (t.status, t.reason, t.result) for id, t in shown.todos.items()} == {
        id: (t.status, t.reason, t.result) for id, t in stored.todos.items()
    }
    assert {id: (job.state, job.cancel) for id, job in shown.jobs.items()} == {
        id: (job.state, job.cancel) for id, job in stored.jobs.items()
    }
    assert (shown.status, shown.seq) == (stored.status, stored.seq)


def test_any_moment_is_the_same_however_it_is_reached(db: Database) -> None:
    """Jumping about in a long log shows the same board as playing up to that message."""
    recording = from_database(db, long(db, messages=2_500))
    played = Recording(recording.facts, recording.entries).board(0)
    places = sorted(random.Random(7).sample(range(len(recording)), 40))
    expected = {}
    from agent.replay import advance

    at = 0
    for place in places:
        advance(played, recording.entries[at:place])
        expected[place], at = seen(played), place
    for place in random.Random(8).sample(places, len(places)):
        assert seen(recording.board(place)) == expected[place], place


def test_a_board_that_was_given_out_does_not_change_the_recording(story: Recording) -> None:
    """Whoever plays on from a board leaves later looks at the same moment as they were."""
    from agent.replay import advance

    place = story.place("bench_base")
    before = seen(story.board(place))
    advance(story.board(place), story.entries[place:])
    assert seen(story.board(place)) == before


def test_places_are_found_by_number_time_and_todo(story: Recording) -> None:
    """A message's number, a time since the start, a date and a todo's beginning each lead to their moment."""
    place = story.place("bench_own")
    assert story.entries[place - 1].payload["id"] == "bench_own"
    assert story.entries[place - 1].payload["now"] == "in_progress"
    assert story.board(place).todos["bench_own"].status == "in_progress"
    seq = story.entries[place - 1].seq
    assert story.place(str(seq)) == story.place(f"#{seq}") == place
    assert story.place("bench_ow") == place
    assert story.time(story.place("1000s")) <= BEGAN + 1000 < story.time(story.place("1000s") + 1)
    assert story.place("16:40") == story.place("1000s") == story.place("2026-11-30T01:10:00") + 0
    assert story.place("0") == 0
    assert story.place("99999") == len(story)
    with pytest.raises(NotFound, match="no todo `nonsense`"):
        story.place("nonsense")
    with pytest.raises(UsageError, match="may be"):
        story.place("bench_")
    with pytest.raises(UsageError, match="no time"):
        story.place("2026-13-77")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("12:30", 750), ("1:02:03", 3723), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("+5m", 300)],
)
def test_times_since_the_start(text: str, seconds: float) -> None:
    """Each way of writing a duration means what it says."""
    assert since_start(text) == seconds


@pytest.mark.parametrize("text", ["1:99:99", "12:60", "1:60:00", "+0:75.5"])
def test_a_clock_that_shows_60_is_refused(text: str) -> None:
    """Minutes and seconds behind a colon end at 59; the error says how a time is written."""
    with pytest.raises(UsageError, match="end at 59") as refused:
        since_start(text)
    assert "`1:02:03`" in (refused.value.hint or "")


@pytest.mark.parametrize("text", ["", "train", "12:3", "1h30", "h", "12:30:", "0x10"])
def test_what_is_no_time_is_not_taken_for_one(text: str) -> None:
    """A todo may be called nearly anything."""
    assert since_start(text) is None


def test_a_clock_that_was_set_back_does_not_lose_messages() -> None:
    """Times that go back are searched as if they had stood still."""
    entries = [
        Entry(n + 1, at, "operator.said", "operator", {"text": str(n)}) for n, at in enumerate((100, 200, 150, 300))
    ]
    recording = Recording(Facts("a"), entries)
    assert [recording.place_at(at) for at in (99, 100, 160, 200, 299, 300)] == [0, 1, 1, 3, 3, 4]


def test_search_goes_on_and_back(story: Recording) -> None:
    """The next match, the one before, and none at the end; in any case of letters."""
    first = story.search("SGLANG", 0)
    assert first is not None
    second = story.search("sglang", first)
    assert second is not None
    assert second > first
    assert story.search("sglang", second, back=True) == first
    assert story.search("no such words", 0) is None


def test_playing_keeps_the_timing_and_shortens_pauses(story: Recording) -> None:
    """Waits are the original ones divided by the speed, never longer than the longest pause, and none at the end."""
    player = Player(story, speed=1.0)
    waits = []
    while (wait := player.wait()) is not None:
        waits.append(wait)
        player.place += 1
    assert len(waits) == len(story)
    assert max(waits) == LONGEST_PAUSE_S
    at = story.place("probe")
    for speed in (1.0, 10.0):
        player.place, player.speed = at, speed
        gap = story.time(at + 1) - story.time(at)
        assert player.wait() == min(gap / speed, LONGEST_PAUSE_S)
    player.place = -5
    assert player.place == 0
    player.faster(-100)
    assert player.speed == 0.25
    assert (speed_of("10x"), speed_of("0.5")) == (10.0, 0.5)
    with pytest.raises(UsageError):
        speed_of("fast")


def test_a_running_session_is_read_on(db: Database) -> None:
    """What another process adds meanwhile appears, in its subagents too, and nothing is read twice."""
    recording = from_database(db, tell(db))
    before = len(recording)
    assert not news(db, recording)
    db.write(lambda conn: append(conn, "pivot234", [c.session_status("running")], BEGAN + 9930))
    db.write(lambda conn: Tape(conn, "newch234").begin("Another", kind="subagent", parent="pivot234") and None)
    assert news(db, recording)
    assert len(recording) == before + 1
    assert [child.facts.id for child in recording.children] == ["resea234", "newch234"]
    assert recording.board(len(recording)).status == "running"
    assert not news(db, recording)


def test_replay_in_plain_lines(db: Database) -> None:
    """Without a terminal every message is a line, from the moment that `--at` names with the graph as it was."""
    tell(db)
    whole = turnout("replay", "pivot", "--plain")
    assert whole.returncode == 0, whole.stderr
    assert len(whole.stdout.splitlines()) == len(from_database(db, "pivot234"))
    part = turnout("replay", "pivot", "--at", "leave")
    assert "asks: Stop vLLM on gpu1" not in part.stdout.split("\n\n")[0]
    assert "waits for your answer" in part.stdout or "leave" in part.stdout.split("\n\n")[0]
    assert part.stdout.splitlines()[0].startswith("after message ")
    assert "bench_own completed" in part.stdout
    wrong = turnout("replay", "pivot", "--at", "nowhere")
    assert wrong.returncode == 2
    assert "no todo `nowhere`" in wrong.stderr
    assert turnout("replay", "./nothing.jsonl").returncode == 2


def test_a_long_log_is_opened_and_sought_quickly(db: Database) -> None:
    """Looking at a far moment costs a bounded number of messages, whatever the length of the log."""
    recording = from_database(db, long(db, messages=6_000))
    recording.board(len(recording))
    applied = 0
    real = Board.apply

    def counted(self: Board, kind: str, payload: object, at: float) -> None:
        nonlocal applied
        applied += 1
        real(self, kind, payload, at)  # type: ignore[arg-type]

    patch = pytest.MonkeyPatch()
    patch.setattr(Board, "apply", counted)
    try:
        for place in (10, 5_900, 3_000, 1):
            applied = 0
            recording.board(place)
            assert applied < EVERY
    finally:
        patch.undo()


def test_a_file_is_replayed_without_keeping_it(db: Database, tmp_path: Path) -> None:
    """An exported session is watched and made a page of from the file alone, with its subagents; nothing is stored."""
    tell(db)
    file, out = tmp_path / "pivot.jsonl", tmp_path / "out.html"
    exported = turnout("export", "pivot234", "-o", str(file))
    assert exported.returncode == 0, exported.stderr
    original = turnout("replay", "pivot234", "--plain").stdout
    other = str(tmp_path / "other.db")
    assert turnout("replay", str(file), "--plain", "--db", other).stdout == original
    made = turnout("replay", str(file), "--html", str(out), "--db", other)
    assert made.returncode == 0, made.stderr
    assert out.stat().st_size > 50_000
    assert not Path(other).exists()


def test_a_file_that_holds_nothing_says_so(tmp_path: Path) -> None:
    """Neither an empty file nor one of something else is an empty replay."""
    for text in ("", "hello\n", '{"some": "json"}\n'):
        file = tmp_path / "x.jsonl"
        file.write_text(text, encoding="utf-8")
        ended = turnout("replay", str(file), "--plain")
        assert ended.returncode == 2, text
        assert "error: " in ended.stderr, text
        assert "Traceback" not in ended.stderr


def test_a_payload_that_is_no_strict_json_is_read(db: Database) -> None:
    """A number that is none (a loss that went to NaN) is in the log as a job reported it."""
    tell(db)
    nan = c.job_reported("pivot234.a.1", "h", done=float("nan"), total=None, unit=None, line="")
    db.write(lambda conn: append(conn, "pivot234", [nan], BEGAN + 9999))
    done = from_database(db, "pivot234").entries[-1].payload["done"]
    assert done != done


def test_a_conversation_is_called_by_what_it_is_about() -> None:
    """Without a title of its own it has the first words that were said; with one it keeps it."""
    said = [Entry(1, 0.0, "session.created", "operator", {"title": "Conversation"})]
    said += [Entry(2, 1.0, "operator.said", "operator", {"text": "Serve  it\nwith SGLang"})]
    assert Recording(Facts("a", kind="chat", title="Conversation"), said).title == "Serve it with SGLang"
    assert Recording(Facts("a", kind="chat", title="A move"), said).title == "A move"
    assert Recording(Facts("a", kind="chat", title="Conversation"), said[:1]).title == "Conversation"
    assert Recording(Facts("a"), []).title == "a"
