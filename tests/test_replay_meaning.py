"""What a log means: what lasted, where the time went, what jobs said, and every message in words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay import Entry, Facts, Recording
from agent.replay_path import path
from agent.replay_series import curves, measured, rows
from agent.replay_source import from_database
from agent.replay_spans import Spans
from agent.replay_words import group, searchable, words
from agent.watch_lanes import lanes
from state.db import Database
from tests.cli_helpers import EXAMPLES, last, turnout
from tests.replay_story import BEGAN, Tape, tell


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return Database.open(str(tmp_path / "turnout.db"))


@pytest.fixture
def story(db: Database) -> Recording:
    return from_database(db, tell(db))


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


def test_a_question_that_took_no_time_hides_nothing_before_it(db: Database) -> None:
    """What follows a question that was answered at once waited for what came before the question, for no place."""

    def write(conn) -> None:  # type: ignore[no-untyped-def]
        t = Tape(conn, "leave234").begin("Leave", kind="playbook")
        t.todo("bench", "Measure").todo("leave", "Stop it?", "ask", after=("bench",))
        t.todo("stop", "Stop it", after=("leave",)).start("bench").at(30).end("bench")
        t.move("leave", "in_progress").move("leave", "completed").start("stop").at(50).end("stop")

    db.write(write)
    steps = path(Spans(from_database(db, "leave234").entries))
    assert [(step.label, step.seconds) for step in steps] == [("bench", 30), ("stop", 20)]


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


def test_what_a_failed_attempt_cost_is_counted() -> None:
    """Attempts of one call add up, and one that nothing asked for is a call, too."""
    told: list[tuple[str, dict[str, object]]] = [
        ("model.asked", {"call": "1", "model": "m"}),
        ("model.failed", {"call": "1", "reason": "cut", "usage": {"input": 5}, "cost": 0.5}),
        ("model.answered", {"call": "1", "content": [], "usage": {"input": 5, "output": 2}, "cost": 0.25}),
        ("model.failed", {"call": "", "reason": "turn aborted", "usage": {"output": 4}}),
    ]
    spans = Spans(Entry(n, float(n), kind, "x", payload) for n, (kind, payload) in enumerate(told, 1))
    first, second = spans.calls.values()
    assert (first.more["usage"], first.more["cost"], first.status) == ({"input": 10, "output": 2}, 0.75, "answered")
    assert (second.more["usage"], second.status) == ({"output": 4}, "failed")


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


def use(name: str, **given: object) -> dict[str, object]:
    return {"type": "tool_use", "id": "1", "name": name, "input": given}


@pytest.mark.parametrize(
    ("kind", "payload", "told"),
    [
        ("model.answered", {"content": [use("run", command="ls -l")]}, "→ run ls -l"),
        ("model.answered", {"content": [{"type": "text", "text": "I look."}, use("read", path="a"), use("x", y=[1])]},
         "I look. → read a, x"),
        ("model.answered", {"content": [use("read", path="a"), use("read", path="b")]}, "→ read a, b"),
        ("tool.answered", {"name": "sh", "content": "Exit code: 1\nWall time: 1 s\nOutput:\na.py\n", "is_error": True},
         "sh failed: a.py"),
        ("tool.answered", {"name": "sh", "content": "Exit code: 0\nOutput:\n"}, "sh → (no output)"),
        ("tool.answered", {"name": "todo", "content": '[{"op": "add", "id": "a"}]'}, "todo → a added"),
        ("foreign.record", {"format": "codex", "place": "r line 2", "raw": {"type": "x", "payload": {"type": "y"}}},
         "codex x y, r line 2"),
        ("model.answered", {"content": [], "stop_reason": "end_turn"}, "(had nothing to add)"),
        ("todo.status", {"id": "a", "now": "completed", "result": {"job": "s.a.1", "host": "h", "acc": 0.5}},
         "a completed · acc 0.5"),
        ("todo.status", {"id": "g", "now": "failed", "reason": "no", "result": {"value": False}}, "g failed: no"),
        ("approval.asked", {"todo": "call:t1", "question": "run it?"}, "permission asks: run it?"),
        ("playbook.loaded", {"playbook": "p", "prefix": ""}, "playbook p joins"),
        ("foreign.record", {"format": "codex", "place": "r line 2", "raw": [1]}, "codex record, r line 2"),
    ],
)  # fmt: skip
def test_a_line_says_what_was_done(kind: str, payload: dict[str, object], told: str) -> None:
    """A call is told with what it was given, a result by its output, a foreign record by its type."""
    assert words(Entry(1, 0.0, kind, "model", payload)) == told


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


def test_lanes_narrow_a_night(story: Recording) -> None:
    """Two hours in which nobody drove the session take few cells; what ran has the width."""
    spans = Spans(story.entries)
    drawn = {line.plain[:14].strip(): line.plain[15:] for line in lanes(spans, at=spans.ended, width=116, height=40)}
    assert drawn["bench_public"].count("━") > 25
    assert drawn["leave"].count("━") > 10
    assert "gpu1 GPU 0-3" in drawn
