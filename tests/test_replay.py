"""A log as a recording: any moment of it, what lasted, where the time went, what jobs said, and how it is played."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.board import Board
from agent.look import read_board
from agent.replay import EVERY, Entry, Facts, Recording, since_start
from agent.replay_path import path
from agent.replay_player import LONGEST_PAUSE_S, Player, speed_of
from agent.replay_series import curves, measured, rows
from agent.replay_source import from_database, news
from agent.replay_spans import Spans
from agent.replay_words import group, searchable, words
from agent.watch_lanes import lanes
from state import changes as c
from state.db import Database
from state.errors import NotFound, UsageError
from state.log import append
from tests.cli_helpers import EXAMPLES, last, turnout
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


def test_what_lasted(story: Recording) -> None:
    """Attempts, jobs, leases, questions, calls, subagents and absences have their beginnings and ends."""
    spans = Spans(story.entries)
    assert [(a.status, a.more["attempt"]) for a in spans.todos["bench_base"].attempts] == [
        ("retried", 1),
        ("completed", 2),
    ]
    assert spans.jobs["pivot234.bench_own.1"].end == BEGAN + 3400, "the host's clock, not the moment it was heard of"
    held = spans.leases["gpu1", 0]
    assert (held[0].note, held[0].status) == ("retry_vllm", "exited")
    assert all(lease.end is not None for lease in held)
    assert [(q.id, q.status, round((q.end or 0) - q.start)) for q in spans.questions] == [("leave", "yes", 356)]
    assert [(a.note, a.end) for a in spans.absences] == [("interrupted", BEGAN + 9900)]
    assert spans.children["resea234"].status == "completed"
    assert all(call.status == "answered" for call in spans.calls.values())
    assert all(tool.end is not None for tool in spans.tools.values())


def test_the_path_is_the_chain_that_decided(story: Recording) -> None:
    """Its steps follow each other without a gap, and name what was waited for and nothing that ran beside it."""
    spans = Spans(story.entries)
    steps = path(spans)
    assert steps[0].start == spans.began
    assert steps[-1].end == spans.ended
    assert all(a.end == b.start for a, b in pairwise(steps))
    named = [step.todo for step in steps if step.todo]
    assert [id for id in dict.fromkeys(named) if id] == [
        "probe", "research", "leave", "bench_base", "bench_public", "bench_own", "report",
    ]  # fmt: skip
    away = next(step for step in steps if step.sort == "away")
    assert (away.start, away.end) == (BEGAN + 3400, BEGAN + 9905)


def test_a_path_of_nothing_and_of_talk(db: Database) -> None:
    """A session without todos is explained by who was being waited for."""

    def write(conn) -> None:  # type: ignore[no-untyped-def]
        t = Tape(conn, "talks234").begin("Talk").at(10).say("hello")
        t.model(5, "Good day.", run={"command": "true"}).at(45).tool("run", "").at(60).say("bye")

    db.write(write)
    steps = path(Spans(from_database(db, "talks234").entries))
    assert [(step.sort, step.seconds) for step in steps] == [("ask", 10), ("model", 5), ("tool", 30), ("ask", 15)]
    assert path(Spans([])) == []


def test_a_foreign_log_without_requests_has_turns_all_the_same() -> None:
    """Where only answers were recorded, the model's turn is from what it heard to what it said, and ours the rest."""
    told: list[tuple[float, str, dict[str, object]]] = [
        (0, "operator.said", {"text": "go"}),
        (60, "model.answered", {"call": "1", "content": [{"type": "tool_use", "id": "t", "name": "x", "input": {}}]}),
        (70, "tool.answered", {"tool_use_id": "t", "name": "x", "content": "ok"}),
        (90, "model.answered", {"call": "2", "content": [{"type": "text", "text": "done"}]}),
        (190, "operator.said", {"text": "thanks"}),
    ]
    entries = [Entry(n, at, kind, "x", payload) for n, (at, kind, payload) in enumerate(told, 1)]
    steps = [(step.sort, step.seconds) for step in path(Spans(entries))]
    assert steps == [("model", 60), ("tool", 10), ("model", 20), ("ask", 100)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 40 loss 5.3121 accuracy 0.42 0.31 lr 1.20e-04, 310.5 tok/s",
         {"loss": (5.3121, ""), "accuracy": (0.42, ""), "lr": (0.00012, ""), "tok/s": (310.5, "tok/s")}),
        ("Decode batch. #running-req: 12, token usage: 0.12, accept len: 2.31, gen throughput (token/s): 3,165.02",
         {"#running-req": (12, ""), "token usage": (0.12, ""), "accept len": (2.31, ""),
          "gen throughput (token/s)": (3165.02, "")}),
        ("Avg generation throughput: 212.3 tokens/s, GPU KV cache usage: 0.3%",
         {"avg generation throughput": (212.3, "tokens/s"), "gpu kv cache usage": (0.3, "%")}),
        ("[2026-12-01 04:20:11] INFO engine.py:310] listening on 0.0.0.0:8000", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_numbers_in_log_lines(line: str, found: dict[str, tuple[float, str]]) -> None:
    """What engines and trainers print beside a name is taken; ports, times and versions are not."""
    assert measured(line) == found


@given(st.text(max_size=600))
def test_no_line_breaks_the_search_for_numbers(line: str) -> None:
    """Any text can be a log line."""
    for value, unit in measured(line).values():
        assert isinstance(value, float)
        assert len(unit) <= 600


def test_counts_become_rates(story: Recording) -> None:
    """Progress is a speed in units per second, beside the numbers that the lines held."""
    found = {(curve.job, curve.name): curve for curve in curves(story.entries)}
    speed = found["pivot234.bench_public.1", "speed"]
    assert speed.unit == "requests/s"
    assert {round(value, 6) for _, value in speed.points} == {0.5}
    assert len(found["pivot234.retry_vllm.1", "avg generation throughput"].points) == 24
    assert rows({"a": {"b": [1, 2, 3]}, "c": [1, 2], "d": ["x"] * 3, "e": [True, False, True]}) == {"a.b": [1, 2, 3]}


def test_every_message_has_words(story: Recording) -> None:
    """No message of a whole story is shown as its bare payload, and each can be found by what it says."""
    for recording in (story, *story.children):
        for entry in recording.entries:
            told = words(entry)
            assert told, entry
            assert not told.startswith("{"), entry
            assert told.casefold() in searchable(entry)
            assert group(entry.kind) != "other"


@given(
    kind=st.sampled_from(["todo.status", "job.state", "model.answered", "tool.answered", "child.reported", "x.y"]),
    payload=st.dictionaries(
        st.sampled_from(["id", "now", "content", "report", "state", "text"]),
        st.one_of(st.none(), st.integers(), st.text(), st.lists(st.sampled_from([None, "x", 1, {"type": "x"}]))),
    ),
)  # fmt: skip
def test_a_message_of_any_shape_has_words(kind: str, payload: dict[str, object]) -> None:
    """A file may hold anything under a known name; it is shown all the same, without control characters."""
    entry = Entry(1, 0.0, kind, "operator", payload)
    assert "\x1b" not in words(entry)
    recording = Recording(Facts("a"), [entry])
    recording.board(1)
    Spans(recording.entries)


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


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lanes_fit(story: Recording, width: int) -> None:
    """Lanes are never wider or higher than asked, and those that run at the moment are among them."""
    spans = Spans(story.entries)
    for at in (0, 100, 1100, 2600, 9900):
        drawn = lanes(spans, at=spans.began + at, width=width, height=8)
        assert len(drawn) <= 8
        assert max(line.cell_len for line in drawn) <= width
    running = "\n".join(line.plain for line in lanes(spans, at=spans.began + 2600, width=width, height=5))
    assert "bench_own" in running


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


def test_a_torn_log_still_plays() -> None:
    """Messages that speak of what never was are passed over and counted as messages all the same."""
    entries = [
        Entry(7, 1.0, "todo.status", "core", {"id": "gone", "was": "pending", "now": "completed"}),
        Entry(9, 2.0, "job.state", "host:a", {"id": "gone.1", "state": "exited"}),
        Entry(11, 3.0, "tool.answered", "tool:x", {"tool_use_id": "gone", "content": "x", "name": "x"}),
    ]
    recording = Recording(Facts("torn"), entries)
    assert recording.board(3).todos == {}
    assert path(Spans(entries))[-1].end == 3.0
    assert recording.place("9") == 2


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


def test_what_jobs_report_is_kept_in_the_log(db: Database, tmp_path: Path) -> None:
    """A run leaves in its log how far its jobs came, and a replay of it shows their numbers."""
    steps = (
        "  - id: count\n    job:\n      host: local\n      run: |\n"
        '        for n in 1 2 3 4; do echo "step $n loss 0.$n"; echo "::progress $n/4 steps"; sleep 1.2; done\n'
    )
    file = tmp_path / "p.yaml"
    file.write_text(f"name: p\ntitle: Counts\nsteps:\n{steps}", encoding="utf-8")
    ended = turnout("run", str(file), "--json")
    assert last(ended.stdout)["status"] == "completed", ended.stderr
    recording = from_database(db, None)
    reports = [entry for entry in recording.entries if entry.kind == "job.reported"]
    assert reports
    assert reports[-1].payload["done"] == 4
    assert reports[-1].payload["line"] == "step 4 loss 0.4"
    assert all(entry.actor == "host:local" for entry in reports)
    assert "loss" in {curve.name for curve in curves(recording.entries)}
    ids = [entry.payload["id"] for entry in recording.entries if entry.kind == "job.state"]
    assert set(ids) == {reports[0].payload["id"]}


def test_the_example_replays_as_it_ran(db: Database) -> None:
    """The hedge example's log has two lanes at once, a winner, and a loser that was stopped."""
    ran = turnout("run", str(EXAMPLES / "hedge.yaml"), "--json")
    assert last(ran.stdout)["status"] == "completed", ran.stderr
    spans = Spans(from_database(db, None).entries)
    vllm, sglang = spans.todos["vllm"].attempts[0], spans.todos["sglang"].attempts[0]
    assert max(vllm.start, sglang.start) < min(vllm.end or 0, sglang.end or 0)
    assert (vllm.status, sglang.status) == ("cancelled", "completed")
    assert path(spans)[0].todo == "sglang", "the loser was not waited for"
    shown = turnout("replay", "--plain").stdout
    assert "vllm cancelled: lost the race `engine`" in shown


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
    assert turnout("sessions", "--json", "--db", other).stdout.strip() == "[]"


def test_a_file_that_holds_nothing_says_so(tmp_path: Path) -> None:
    """Neither an empty file nor one of something else is an empty replay."""
    for text in ("", "hello\n", '{"some": "json"}\n'):
        file = tmp_path / "x.jsonl"
        file.write_text(text, encoding="utf-8")
        ended = turnout("replay", str(file), "--plain")
        assert ended.returncode == 2, text
        assert "error: " in ended.stderr, text
        assert "Traceback" not in ended.stderr


def test_lanes_narrow_a_night(story: Recording) -> None:
    """Two hours in which nobody drove the session take few cells; what ran has the width."""
    spans = Spans(story.entries)
    drawn = {line.plain[:14].strip(): line.plain[15:] for line in lanes(spans, at=spans.ended, width=116, height=40)}
    assert drawn["bench_public"].count("━") > 25
    assert drawn["leave"].count("━") > 10
    assert "gpu1 GPU 0-3" in drawn
