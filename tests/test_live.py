"""The live picture: what an operator sees at any size, and that the terminal is left as it was found."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from agent.board import Board
from agent.frame import frame
from agent.live import STOPPING, STOPS, LiveView
from agent.pace import Pace, ago, amount, clock, size
from agent.painter import ASKS, SYMBOLS, WAITS
from agent.picture import draw
from agent.screen import Screen
from agent.summary import lines as summary_lines
from state.changes import Change
from state.specs import TERMINAL
from tools.jobs import ContactEvent, JobState, Progress

NOW = 10_000.0
SIZES = [(80, 24), (40, 24), (200, 50), (80, 8), (20, 5)]


def board(*steps: tuple[Any, ...]) -> Board:
    """A session with todos `(id, sources, more)`; a source `!x` means on the failure of `x`."""
    made = Board("abcd2345", title="Move gpu1 from vLLM to SGLang", playbook="move", created=NOW - 600)
    for position, (id, sources, *more) in enumerate(steps):
        fields = {"title": f"The title of {id}", "kind": "job", "group": None, "join": "all", "body": {"host": "gpu1"}}
        added = {"id": id, "position": position, "priority": "medium", **fields, **(more[0] if more else {})}
        made.apply("todo.added", added, NOW - 600)
        for source in sources:
            on = "failure" if source[0] == "!" else "success"
            made.apply("todo.linked", {"src": source.lstrip("!"), "dst": id, "on": on}, NOW - 600)
    return made


def change(made: Board, id: str, now: str, at: float = NOW - 60, **more: Any) -> None:
    made.apply("todo.status", {"id": id, "was": made.todos[id].status, "now": now, **more}, at)
    job = made.todos[id].job
    if now in TERMINAL and job is not None:
        made.apply("job.state", {"id": job.id, "state": "exited"}, at)


def start(made: Board, id: str, at: float = NOW - 60, host: str = "gpu1", **spec: Any) -> str:
    """A todo with a running job; the job's id."""
    change(made, id, "in_progress", at, host=host, attempt=1)
    job = f"abcd2345.{id}.1"
    submitted = {"id": job, "todo": id, "host": host, "spec": spec, "gpus": []}
    made.apply("job.submitted", submitted, at)
    made.apply("job.state", {"id": job, "state": "running"}, at)
    return job


def report(made: Board, job: str, done: float, line: str = "", total: float | None = 3000.0) -> None:
    """Two reports, ten seconds apart, of which the last is `done`."""
    for at, value in ((NOW - 10, done - 100), (NOW, done)):
        made.progress(JobState(job, "running", progress=Progress(value, total, "samples", line)), at)


def story() -> Board:
    """One of everything: ended, failed, running with progress, waiting for other todos, for GPUs and for an answer."""
    made = board(
        ("probe", []),
        ("old", ["probe"]),
        ("new", ["probe"]),
        ("engine", ["old", "new"], {"kind": "race", "join": "any", "body": {}}),
        ("leave", ["engine"], {"kind": "ask", "body": {}}),
        ("bench", ["probe"], {"body": {"host": "{{ host }}", "gpus": 8}}),
        ("gate", ["probe"], {"kind": "gate", "body": {"if": "x"}}),
        ("back", ["!gate"]),
        ("skipped", ["gate"]),
        *((f"warm@g{n}", ["probe"], {"group": "warm"}) for n in range(9)),
        ("end", ["leave", "bench", *(f"warm@g{n}" for n in range(9))]),
    )
    made.params = {"host": "gpu7"}
    start(made, "probe", NOW - 500)
    change(made, "probe", "completed", NOW - 480)
    report(made, start(made, "old", NOW - 300), 1500, "loss 0.25 日本語のログ")
    start(made, "new", NOW - 300)
    change(made, "new", "completed", NOW - 200, result={})
    change(made, "engine", "completed", NOW - 200, result={"winner": "new"})
    change(made, "leave", "in_progress", NOW - 100)
    made.apply("approval.asked", {"todo": "leave", "question": "Stop it?", "default": "no"}, NOW - 100)
    change(made, "gate", "failed", NOW - 90, reason="`x` does not hold")
    change(made, "skipped", "skipped", NOW - 90, reason="`gate` failed")
    report(made, start(made, "warm@g0", NOW - 50, "g0"), 400)
    start(made, "warm@g1", NOW - 50, "g1")
    change(made, "warm@g1", "failed", NOW - 20, reason="exit code 1 (out of memory: killed)")
    made.contact(ContactEvent("lost contact", "gpu9", NOW - 32, "the host closed the channel"))
    return made


def shown(made: Board, width: int = 100, height: int = 60, foot: str = STOPS) -> str:
    return "\n".join(line.plain.rstrip() for line in frame(made, width=width, height=height, now=NOW, foot=foot))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    """No line is wider and no picture higher than the terminal, with wide characters too."""
    lines = frame(story(), width=width, height=height, now=NOW, foot=STOPS)
    assert len(lines) <= height
    assert max(cell_len(line.plain) for line in lines) <= width


@pytest.mark.parametrize("count", [0, 1, 4, 5, 40, 700])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_any_number_of_todos_fits(count: int, width: int, height: int) -> None:
    """However many todos run at once, the picture keeps to the terminal and shows as many as it can."""
    made = board(*((f"todo-{n}", []) for n in range(count)))
    for n in range(0, count, 2):
        report(made, start(made, f"todo-{n}"), 500, "a line of its log")
    lines = frame(made, width=width, height=height, now=NOW, foot=STOPS)
    assert len(lines) <= height
    assert max(cell_len(line.plain) for line in lines) <= width
    assert count == 0 or any("todo-0" in line.plain for line in lines)


def test_each_status_has_a_symbol_of_its_own() -> None:
    """What colour says, the symbol says too."""
    statuses = ("pending", "in_progress", "completed", "failed", "skipped", "cancelled", "paused")
    symbols = [SYMBOLS[status][0] for status in statuses] + [WAITS[0], ASKS[0]]
    assert len(set(symbols)) == len(symbols)


def test_what_there_is_to_say_is_said() -> None:
    """Status, host, progress with rate and remaining time, last log line, reasons, races, and what waits for what."""
    text = shown(story(), width=120)
    for expected in (
        "Move gpu1 from vLLM to SGLang",
        "session abcd2345",
        "! no contact with gpu9 for 0:32; jobs there go on. the host closed the channel",
        "50%  2:30 left  10/s  1,500/3,000 samples",
        "loss 0.25 日本語のログ",
        "in race engine",
        "won by new",
        "waits for your answer",
        "waits for GPUs on gpu7",
        "`x` does not hold",
        "×9",
        "exit code 1 (out of memory: killed)",
        "waits for leave, bench, warm (8)",
        STOPS,
    ):
        assert expected in text


def test_what_ended_is_folded_before_what_runs() -> None:
    """When the terminal is low, running todos stay; the ended ones are counted in one line."""
    made = board(*((f"step-{n}", [f"step-{n - 1}"] if n else []) for n in range(40)))
    for n in range(20):
        start(made, f"step-{n}", NOW - 400 + n)
        change(made, f"step-{n}", "completed", NOW - 390 + n)
    report(made, start(made, "step-20"), 10, "working")
    text = shown(made, width=60, height=12)
    assert "step-20" in text
    assert "20 completed" in text
    assert "working" in text
    assert "waiting" in text


def test_remaining_time_needs_a_total() -> None:
    """A job that counts without a total shows its count and rate, and neither bar nor remaining time."""
    made = board(("count", []))
    report(made, start(made, "count"), 700, total=None)
    text = shown(made)
    assert "10/s  700 samples" in text
    assert "%" not in text
    assert "left" not in text


def test_marks_of_progress_are_not_taken_for_log_lines() -> None:
    """The line by which a job reports its progress is not shown again as its last words."""
    made = board(("count", []))
    report(made, start(made, "count"), 700, line="::progress 700/3000 samples")
    assert "::progress" not in shown(made)


def test_what_hosts_write_cannot_move_the_cursor() -> None:
    """Control sequences in reasons and titles are taken out before they reach the terminal."""
    made = board(("evil", []))
    start(made, "evil")
    change(made, "evil", "failed", reason="\x1b[2Jbad\x07 \x1b]0;title\x07news\r\nsecond line")
    made.contact(ContactEvent("lost contact", "gpu9", NOW, "\x1b[31mred"))
    text = shown(made)
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert "bad news second line" in text


def test_a_terminal_without_unicode_is_served() -> None:
    """With `ascii` the picture holds nothing but ASCII."""
    for line in frame(story(), width=80, height=40, now=NOW, foot=STOPS, ascii=True):
        line.plain.encode("ascii")


def test_everything_is_shown_when_height_does_not_matter() -> None:
    """`turnout todo` lists every todo, members of large groups too."""
    made = story()
    text = "\n".join(line.plain for line in draw(made, width=100, height=None, now=NOW))
    assert all(todo in text for todo in made.todos)


def test_the_summary_names_the_next_command() -> None:
    """A failed session tells each unanswered failure with its log; a paused one how to go on and what still runs."""
    made = story()
    made.apply("session.status", {"status": "failed", "reason": None}, NOW)
    text = "\n".join(line.plain for line in summary_lines(made, report="/tmp/report.html"))
    assert "turnout logs abcd2345.warm@g1.1" in text
    assert "`x` does not hold" not in text  # the graph had an answer to that
    assert "turnout resume abcd2345 --retry" in text
    assert "report: /tmp/report.html" in text
    made.apply("session.status", {"status": "paused", "reason": None}, NOW)
    text = "\n".join(line.plain for line in summary_lines(made))
    assert "2 jobs still running there: old on gpu1, warm@g0 on g0" in text
    assert "go on with `turnout resume abcd2345`" in text


def test_the_page_shows_the_picture_as_it_is() -> None:
    """The picture in docs/cli.md is this program's output."""
    made = board(
        ("probe", [], {"title": "Look at the host"}),
        ("retry_vllm", ["probe"], {"title": "A last attempt with vLLM"}),
        ("research", ["probe"], {"title": "What must be known of SGLang"}),
        ("hedge", ["retry_vllm", "research"], {"title": "First way that works", "kind": "race", "join": "any"}),
        ("leave", ["hedge"], {"title": "May vLLM be stopped?", "kind": "ask"}),
        ("serve", ["leave"], {"title": "Serve with SGLang"}),
        ("bench", ["serve"], {"title": "Measure it"}),
        ("back", ["!serve"], {"title": "Put vLLM back"}),
    )
    start(made, "probe", NOW - 600)
    change(made, "probe", "completed", NOW - 596)
    report(
        made, start(made, "retry_vllm", NOW - 596), 1350, "INFO engine.py:310] Avg prompt throughput: 3165.0 tokens/s"
    )
    start(made, "research", NOW - 200, host="gpu2")
    page = (Path(__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    assert shown(made, width=80, height=24) in page


def screen(out: io.StringIO) -> Console:
    return Screen(file=out, force_terminal=True, width=80, height=24, highlight=False, color_system=None)


def test_the_live_view_follows_what_it_is_told() -> None:
    """The last picture shows what was told last, without the footer, and the cursor was never hidden."""
    out = io.StringIO()
    view = LiveView(board(("only", [])), console=screen(out))
    view.changed([Change("todo.status", {"id": "only", "was": "pending", "now": "in_progress", "host": "gpu1"})], [1])
    view.changed([Change("todo.status", {"id": "only", "was": "in_progress", "now": "completed"})], [2])
    view.close()
    view.close()
    final = out.getvalue().rpartition("\x1b[1A")[2]
    assert f"{SYMBOLS['completed'][0]} only" in final
    assert STOPS not in final
    assert "\x1b[?25l" not in out.getvalue()
    assert "\x1b[?1049h" not in out.getvalue()


def test_stopping_is_said_in_the_footer() -> None:
    """Once dispatching has stopped, the footer says what a second Ctrl-C does."""
    view = LiveView(board(("only", [])), console=screen(io.StringIO()))
    view.changed([Change("session.status", {"status": "paused", "reason": "stopped by the operator"})], [1])
    assert view._foot == STOPPING
    view.close()


def test_without_a_terminal_a_question_is_answered_with_no() -> None:
    """Nobody is there to ask; `--yes` answers yes."""
    answers: list[tuple[str, str, str]] = []
    for yes in (False, True):
        view = LiveView(board(("only", [])), yes=yes, console=screen(io.StringIO()))
        view.answer = lambda *answer: answers.append(answer)
        view.asked("only", "Go on?", "no")
        view.close()
    assert answers == [("only", "no", "no terminal to ask on"), ("only", "yes", "--yes")]


def test_a_rate_weighs_by_time() -> None:
    """A steady rate is found exactly, a burst of reports moves it little, and a count that goes back starts anew."""
    pace = Pace()
    for second in range(100):
        pace.saw(50.0 * second, float(second))
    assert pace.rate == pytest.approx(50.0)
    assert pace.remaining(6_950.0, 99.0) == pytest.approx(40.0)
    assert pace.remaining(6_950.0, 109.0) == pytest.approx(30.0)
    for burst in range(1, 11):
        pace.saw(4_950.0 + 10 * burst, 99.0 + burst / 1000)
    assert pace.rate == pytest.approx(50.0, abs=5.0)
    pace.saw(10.0, 200.0)
    assert pace.rate is None
    assert pace.remaining(100.0, 200.0) is None
    assert pace.remaining(None, 200.0) is None


@pytest.mark.parametrize(
    ("words", "value", "expected"),
    [
        (clock, 7, "0:07"),
        (clock, 750, "12:30"),
        (clock, 11_110, "3:05:10"),
        (clock, 187_800, "2d 04:10"),
        (clock, None, ""),
        (ago, 59.9, "59 s"),
        (ago, 3_600, "1 h"),
        (ago, -1, "0 s"),
        (amount, 0.66, "0.66"),
        (amount, 42.0, "42"),
        (amount, 31.5, "31.5"),
        (amount, 3165.4, "3,165"),
        (amount, 828e9, "828G"),
        (amount, 3e9, "3.0G"),
        (size, 0, "0 B"),
        (size, 1536, "1.5 KiB"),
        (size, 828 << 30, "828 GiB"),
        (size, 3 << 40, "3.0 TiB"),
    ],
)
def test_numbers_are_short_and_readable(words: Callable[[Any], str], value: float | None, expected: str) -> None:
    """Durations, counts and sizes are told in the form that an operator reads fastest."""
    assert words(value) == expected


def test_the_board_follows_every_status() -> None:
    """Whatever order of statuses a todo goes through, the picture can be drawn after each."""
    statuses = ("pending", "in_progress", "completed", "failed", "skipped", "cancelled")
    for first, second in itertools.product(statuses, statuses):
        made = board(("a", []), ("b", ["a"]), ("c", ["!a"]))
        change(made, "a", first)
        change(made, "a", second)
        assert isinstance(draw(made, width=60, height=10, now=NOW)[0], Text)
