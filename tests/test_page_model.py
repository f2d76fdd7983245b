"""What a page is told, and how it is kept small: no browser is needed for these."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest

from agent.page import model, page
from agent.page.build import squeeze
from agent.page.fold import fold, fold_tree, lengths
from agent.page.model import thin
from agent.replay import Entry, Recording
from agent.replay_source import from_database
from state.db import Database
from tests import chromium
from tests.cli_helpers import turnout
from tests.replay_story import tell

wants_chromium = pytest.mark.skipif(chromium.find() is None, reason="there is no chromium: `apt-get install chromium`")
HOSTILE = '</script><img src=x onerror="window.hurt=1"><script>window.hurt=2</script> {{ data }} \x1b[31m\u202e\u0000'


@pytest.fixture
def story(tmp_path: Path) -> Recording:
    db = Database.open(str(tmp_path / "turnout.db"))
    return from_database(db, tell(db))


def test_texts_are_folded_with_exact_counts(story: Recording) -> None:
    """A long text keeps its head and tail and says how many characters are missing; nothing short is touched."""
    text = "a" * 1000 + "b" * 9000 + "c" * 500
    folded = fold(text, 600)
    assert folded.startswith("a" * 400 + "\n… 9,900 of 10,500 characters")
    assert folded.endswith("\n" + "c" * 200)
    assert fold("short", 600) == "short"
    deep: Any = "leaf"
    for _ in range(50):
        deep = {"in": [deep]}
    assert "keys" in str(fold_tree(deep, 100)) or "items" in str(fold_tree(deep, 100))
    wide = fold_tree(list(range(1000)), 100)
    assert wide[-1] == "… 800 more"
    assert list(lengths({"a": ["x" * 3, {"b": "yy"}], "c": 7})) == [3, 2]


def test_a_page_that_would_be_too_large_is_folded_more(story: Recording) -> None:
    """Incompressible text in every message ends as a page within its limit, not as a page of any size."""
    import random

    rng = random.Random(3)
    noise = ["".join(chr(rng.randrange(33, 900)) for _ in range(4_000)) for _ in range(120)]
    entries = [Entry(n, float(n), "tool.answered", "tool:x", {"name": "x", "tool_use_id": str(n), "content": text})
               for n, text in enumerate(noise, 1)]  # fmt: skip
    for limit in (1_000_000, 400_000, 170_000):
        assert len(page(Recording(story.facts, entries), limit=limit)) <= limit


def test_thinning_a_curve_keeps_its_extremes() -> None:
    """Of many points those that are kept are real ones, with the highest, the lowest, the first and the last."""
    points = [(float(n), float((n * 7919) % 1000)) for n in range(10_000)]
    kept = thin(points, 400)
    assert len(kept) <= 440
    assert set(kept) <= set(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert {max(p[1] for p in kept), min(p[1] for p in kept)} == {999.0, 0.0}


def test_the_model_speaks_of_rows_that_are_there(story: Recording) -> None:
    """Every reference to a row, of a todo's history and of jobs, is the row of that message."""
    made = model(story)
    kinds = [kind for kind, _ in made["kinds"]]
    for todo in made["todos"]:
        for row, status, _ in todo["history"]:
            source, _, _, kind, _, _, _, detail = made["rows"][row]
            assert source == 0
            assert kinds[kind] == ("todo.added" if status == "pending" and "now" not in detail else "todo.status")
            assert detail["id"] == todo["id"]
    assert [row[2] for row in made["rows"]] == sorted(row[2] for row in made["rows"])
    assert len(made["rows"]) == len(story) + len(story.children[0])


def test_the_page_of_a_session_from_the_command_line(tmp_path: Path) -> None:
    """`replay --html` writes the page and says where; a place that cannot be written is an error with words."""
    db = Database.open()
    tell(db)
    db.close()
    out = tmp_path / "s.html"
    made = turnout("replay", "pivot", "--html", str(out), "--no-logs")
    assert made.returncode == 0, made.stderr
    assert str(out) in made.stdout
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    wrong = turnout("replay", "pivot", "--html", str(tmp_path / "no" / "s.html"), "--no-logs")
    assert wrong.returncode == 2
    assert "there is no folder" in wrong.stderr


def test_a_page_holds_the_logs_of_its_jobs(tmp_path: Path) -> None:
    """The log of a job on a host that can be reached is in the page, bounded and cleaned."""
    playbook = tmp_path / "p.yaml"
    run = "seq 1 20000; printf 'last \\\\033[31mred\\\\n'"
    playbook.write_text(
        f'name: p\ntitle: P\nsteps:\n  - {{id: a, job: {{host: local, run: "{run}"}}}}\n', encoding="utf-8"
    )
    assert turnout("run", str(playbook)).returncode == 0
    db = Database.open()
    recording = from_database(db, None)
    from agent.replay_logs import fetch

    (log,) = fetch(db, recording, lambda line: None).values()
    assert log["text"].startswith("1\n2\n")
    assert "bytes are left out here" in log["text"]
    assert log["text"].rstrip().endswith("last red")
    (job,) = model(recording, logs=fetch(db, recording, print))["jobs"]
    assert job["log"] == log


def test_what_json_cannot_hold_is_held_all_the_same(story: Recording) -> None:
    """Half of a surrogate pair and a number that is none neither stop a page nor spoil it."""
    odd = Entry(
        1, 1.0, "tool.answered", "tool:x", {"name": "x", "tool_use_id": "1", "content": "a\ud800b", "n": math.nan}
    )
    data = json.loads(zlib.decompress(squeeze(model(Recording(story.facts, [odd]))), -zlib.MAX_WBITS))
    assert data["rows"][0][7] == {"text": "a?b", "rest": {"name": "x", "tool_use_id": "1", "n": None}}
