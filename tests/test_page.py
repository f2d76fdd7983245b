"""The page of a session in a real browser: it opens from disk, says what happened, and never runs what a host wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.page import model, page
from agent.page.build import LIMIT, assemble
from agent.replay import Entry, Facts, Recording
from agent.replay_source import from_database
from state.db import Database
from tests import chromium
from tests.chromium import Chromium
from tests.cli_helpers import ROOT
from tests.replay_story import long, tell

wants_chromium = pytest.mark.skipif(chromium.find() is None, reason="there is no chromium: `apt-get install chromium`")
HOSTILE = '</script><img src=x onerror="window.hurt=1"><script>window.hurt=2</script> {{ data }} \x1b[31m\u202e\u0000'

CALL = {
    "type": "tool_use",
    "id": "c1",
    "name": "sh",
    "input": {"command": ["ls", "-l", "/srv"], "why": "to see\nwhat is there"},
}
ANSWER = {"call": "1", "tool_use_id": "c1", "name": "sh"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def story(tmp_path: Path) -> Recording:
    db = Database.open(str(tmp_path / "turnout.db"))
    return from_database(db, tell(db))


@pytest.fixture
def file(story: Recording, tmp_path: Path) -> Path:
    path = tmp_path / "out.html"
    path.write_text(page(story), encoding="utf-8")
    return path


def status_of(browser: Chromium, todo: str) -> str:
    """What the graph draws a todo as."""
    found = f"[...document.querySelectorAll('.box')].find((b) => b.dataset.id === '{todo}').getAttribute('class')"
    return str(browser.evaluate(found)).removeprefix("box st-")


def text_of(browser: Chromium, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector('{selector}').innerText"))


@wants_chromium
def test_the_page_opens_from_disk_and_asks_nobody(browser: Chromium, file: Path) -> None:
    """One file, no request but for itself, no error; its head says what happened, what it cost, where time went."""
    browser.open(file.as_uri())
    assert browser.errors() == []
    assert browser.requests() == [file.as_uri()]
    verdict = text_of(browser, ".verdict")
    assert verdict.startswith("Completed in 2 h 45 min. 13 of 16 todos completed, 1 failed and the plan had an answer")
    assert "research won the race first" in verdict
    tiles = text_of(browser, ".tiles")
    assert "GPU time\n10.7 h" in tiles
    assert "Model cost\n0.224" in tiles
    assert "Waited for a person\n5 min 56 s" in tiles
    assert text_of(browser, ".path-list").splitlines()[:3] == ["nobody drove it", "1 h 48 min", "66 %"]


@wants_chromium
def test_the_page_of_a_conversation_says_what_was_done(browser: Chromium, tmp_path: Path) -> None:
    """Without todos the head counts words and calls, a call shows what it was given, and the foot fits a phone."""
    recording = Recording(
        Facts("talk2345", "imported", "Talk", settings={"format": "codex"}),
        [
            Entry(1, 0.0, "operator.said", "operator", {"text": "list it"}),
            Entry(2, 5.0, "model.answered", "model", {"call": "1", "content": [CALL], "usage": {"output": 3}}),
            Entry(3, 6.0, "tool.answered", "tool:sh", {**ANSWER, "content": "no such file", "is_error": True}),
            Entry(4, 9.0, "session.status", "import", {"status": "completed", "reason": "imported from codex"}),
        ],
    )
    path = tmp_path / "talk.html"
    path.write_text(page(recording), encoding="utf-8")
    browser.open(path.as_uri(), width=390, height=844)
    assert browser.errors() == []
    assert text_of(browser, ".verdict") == "Recorded over 9.0 s. 1 message of a person, 1 tool call, 1 failed."
    assert text_of(browser, ".out summary") == "→ sh ls -l /srv, why: to see"
    browser.evaluate("document.querySelector('.out').open = true")
    assert text_of(browser, ".out pre") == "command: ls -l /srv\nwhy: to see\nwhat is there"
    assert browser.evaluate("document.querySelector('.player select').getBoundingClientRect().right") <= 390


@wants_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_are_both_readable(browser: Chromium, file: Path, dark: bool) -> None:
    """Text stands out from its ground in either theme, and `t` changes it."""
    browser.open(file.as_uri(), dark=dark)
    ink, ground = (
        browser.evaluate(f"getComputedStyle(document.documentElement).{name}") for name in ("color", "backgroundColor")
    )
    assert contrast(ink, ground) > 12
    quiet = browser.evaluate("getComputedStyle(document.querySelector('.tile-under')).color")
    card = browser.evaluate("getComputedStyle(document.querySelector('.tile')).backgroundColor")
    assert contrast(quiet, card) > 4.5
    browser.evaluate("localStorage.clear()")


def contrast(one: str, other: str) -> float:
    """The contrast of two `rgb(...)` colours by the rule of WCAG 2."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@wants_chromium
@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1920])
def test_every_width_fits(browser: Chromium, file: Path, width: int) -> None:
    """Nothing makes the page scroll sideways, down to a small phone."""
    browser.open(file.as_uri(), width=width, height=800)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@wants_chromium
def test_any_moment_is_shown_as_it_was(browser: Chromium, file: Path, story: Recording) -> None:
    """Going to a todo by its name shows the graph, the lanes and the messages as they were when it started."""
    browser.open(f"{file.as_uri()}#bench_base")
    assert (status_of(browser, "leave"), status_of(browser, "bench_base")) == ("completed", "in_progress")
    assert status_of(browser, "bench_public") == "pending"
    assert "bench_base started on gpu1" in text_of(browser, ".item.now")
    assert browser.evaluate("document.querySelectorAll('.item.future').length") > 0
    browser.key("End")
    assert status_of(browser, "bench_public") == "completed"
    assert browser.evaluate("document.querySelectorAll('.item.future').length") == 0
    browser.key("Home")
    assert status_of(browser, "probe") == "unborn"


@wants_chromium
def test_everything_goes_by_keyboard(browser: Chromium, file: Path) -> None:
    """Stepping, searching, help, theme and closing need no mouse."""
    browser.open(file.as_uri())
    where = "document.querySelector('.where').textContent"
    browser.key("Home")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    assert browser.evaluate(where).startswith("2 / 207")
    browser.key("?")
    assert browser.evaluate("document.querySelector('dialog').open") is True
    browser.evaluate("document.querySelector('dialog').close()")
    browser.key("t")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.key("/")
    for letter in "acceptance":
        browser.key(letter)
    browser.wait("document.querySelector('.found').textContent")
    assert text_of(browser, ".found") == "0 matches, 24 hidden"
    browser.evaluate("document.querySelector('.found').click(); document.querySelector('.search input').focus()")
    assert text_of(browser, ".found") == "24 matches"
    browser.key("Enter")
    assert not browser.evaluate(where).startswith("2 /")
    assert browser.evaluate("document.querySelectorAll('mark').length") > 0
    browser.key("Escape")
    browser.evaluate("localStorage.clear()")


@wants_chromium
def test_a_todo_opens_in_full(browser: Chromium, file: Path) -> None:
    """A click on a todo shows its result, attempts, jobs, charts and command; a click on a job its state."""
    browser.open(file.as_uri())
    browser.evaluate(
        "[...document.querySelectorAll('.lane-name')].find((n) => n.innerText.includes('bench_public')).click()"
    )
    told = text_of(browser, ".detail-body")
    for part in (
        "Serve and measure: public",
        "tokens_per_s",
        "4,410",
        "try 1 on gpu1",
        "accept len",
        "pivot234.bench_public.1",
    ):
        assert part in told, part
    browser.evaluate(
        "[...document.querySelectorAll('.detail .link')].find((n) => n.innerText.endsWith('public.1')).click()"
    )
    assert "exit code 0" in text_of(browser, ".detail-body")
    browser.key("Escape")
    assert browser.evaluate("document.querySelector('.detail').hidden") is True


@wants_chromium
def test_what_a_host_or_a_model_wrote_is_shown_and_never_run(
    browser: Chromium, story: Recording, tmp_path: Path
) -> None:
    """Markup, script ends, control characters and placeholders in every text of a session stay text."""
    entries = [replace(entry, payload=poisoned(entry.payload), actor=entry.actor + HOSTILE) for entry in story.entries]
    bad = Recording(replace(story.facts, title=HOSTILE, settings={HOSTILE: HOSTILE}), entries, story.children)
    path = tmp_path / "bad.html"
    logs = {
        entry.payload["id"]: {"text": HOSTILE, "note": HOSTILE} for entry in entries if entry.kind == "job.submitted"
    }
    path.write_text(page(bad, logs=logs), encoding="utf-8")
    browser.open(path.as_uri())
    browser.evaluate(
        "document.querySelectorAll('.chip').forEach((chip) => chip.ariaPressed === 'false' && chip.click())"
    )
    browser.evaluate(
        "document.querySelectorAll('.bar, .item, .lane-name, .box').forEach((n) => n.dispatchEvent(new Event('click')))"
    )
    assert browser.evaluate("window.hurt") is None
    assert browser.evaluate("document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.evaluate("document.scripts.length") == 2
    assert "onerror" in text_of(browser, "h1")
    assert browser.requests() == [path.as_uri()]


def poisoned(value: Any, key: str = "") -> Any:
    """A payload with its free text made hostile; names and states, which must stay what they are, are kept."""
    if isinstance(value, dict):
        return {k: poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, key) for v in value]
    free = ("title", "reason", "text", "run", "line", "content", "question", "prompt", "report", "unit", "answer")
    return HOSTILE + value if isinstance(value, str) and key in free else value


@wants_chromium
def test_a_page_prints(browser: Chromium, file: Path) -> None:
    """Printed, the page is a document: the messages in full below the graph, without the player."""
    browser.open(file.as_uri(), media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('.player')).display") == "none"
    assert browser.print().startswith(b"%PDF")


@wants_chromium
def test_a_long_session_stays_small_and_quick_to_use(browser: Chromium, tmp_path: Path) -> None:
    """A day of 20,000 messages is a page below two megabytes, drawn in pieces, that can be searched and sought."""
    db = Database.open(str(tmp_path / "turnout.db"))
    recording = from_database(db, long(db))
    made = page(recording)
    assert len(made.encode()) < LIMIT
    path = tmp_path / "long.html"
    path.write_text(made, encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.errors() == []
    assert browser.evaluate("document.querySelectorAll('.item').length") < 1_000
    slider = "document.querySelector('.player input')"
    browser.evaluate(f"{slider}.value = 9000; {slider}.dispatchEvent(new Event('input'))")
    assert browser.evaluate("document.querySelectorAll('.item.now').length") == 1
    drawn = browser.evaluate("[...document.querySelectorAll('.box')].map((b) => b.dataset.id)")
    assert len(drawn) < 40, "of very many todos those around the moment are drawn"
    started = [todo for todo in recording.board(9_000).todos.values() if todo.started]
    assert max(started, key=lambda todo: todo.started or 0).id in drawn
    browser.key("/")
    for letter in "configuration 300":
        browser.key(letter)
    browser.wait("/^[1-9]/.test(document.querySelector('.found').textContent)")


@wants_chromium
def test_a_page_without_room_for_texts_still_tells_the_story(
    browser: Chromium, story: Recording, tmp_path: Path
) -> None:
    """With nothing but lines left, statuses, speakers and tools are there, and the foot says what is not."""
    path = tmp_path / "small.html"
    path.write_text(assemble(model(story, most=0), "small"), encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.errors() == []
    assert status_of(browser, "bench_own") == "completed"
    assert "only the first line of each text is here" in text_of(browser, "footer")
    browser.key("Home")
    told = text_of(browser, ".log-list")
    assert "vLLM gives 0.66x with the drafter" in told
    assert "I start both at once" in told
    assert "todo → 5 todos added" in told
    browser.evaluate(
        "document.querySelectorAll('.item, .box, .lane-name').forEach((n) => n.dispatchEvent(new Event('click')))"
    )
    assert browser.errors() == []


@wants_chromium
def test_the_page_in_the_documentation_opens(browser: Chromium) -> None:
    """The example's page in docs/ is whole, and was made by a page of this kind."""
    browser.open((ROOT / "docs" / "pivot.html").as_uri())
    assert browser.errors() == []
    assert "todos completed" in text_of(browser, ".verdict")
