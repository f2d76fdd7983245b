"""How quickly a long session is there to be looked at: opened, sought, made into a page, and drawn by a browser.

    python -m benchmarks.page [--messages 20000] [--rounds 5] [--save]

The session is written through the product's own log (`tests/replay_story.py`). Opening is what `turnout replay` does
before the first picture: read the log, find what lasted, and the board at the end. Seeking goes to places all over the
log in a fixed order, each with all that the screen draws. The page is opened from disk in a headless Chromium; its time
is the browser's own clock from navigation to drawn.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.page import page
from agent.replay import Recording
from agent.replay_player import Player
from agent.replay_source import from_database
from agent.watch_panes import Panes
from benchmarks.common import Aim, idle, median, percentile, save, workplace
from state.db import Database
from tests import chromium
from tests.chromium import Chromium
from tests.replay_story import long

SEEKS = 60
SHARES = {"graph": 20, "lanes": 12, "jobs": 8}


def main() -> None:
    """Measure, print, and with `--save` store the result."""
    parser = argparse.ArgumentParser(description="How quickly a long session is there to be looked at.")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    with workplace() as folder:
        raw = measure(folder, given.messages, given.rounds)
        figures = {
            "messages": raw["messages"],
            "open_s": median(raw["open_s"]),
            "open_cpu_s": median(raw["open_cpu_s"]),
            "seek_ms_median": median([1000 * s for s in raw["seek_s"]]),
            "seek_ms_p99": percentile([1000 * s for s in raw["seek_s"]], 0.99),
            "page_made_s": median(raw["made_s"]),
            "page_bytes": raw["bytes"],
            "page_loaded_s": median(raw["loaded_s"]) if raw["loaded_s"] else None,
            "page_seek_ms": median(raw["page_seek_ms"]) if raw["page_seek_ms"] else None,
        }
        for name, value in figures.items():
            print(f"{name:16} {value}")
        if given.save:
            save("page", folder, aims(figures), figures, rounds=raw)


def aims(figures: dict[str, Any]) -> list[Aim]:
    """What the figures should be."""
    found = [
        Aim("a long session opens", figures["open_s"], "<", 1.0, "s"),
        Aim("a seek, 99 of 100", figures["seek_ms_p99"], "<", 100.0, "ms"),
        Aim("its page", figures["page_bytes"] / 1e6, "<", 2.0, "MB"),
    ]
    if figures["page_loaded_s"] is not None:
        found.append(Aim("its page loads in Chromium", figures["page_loaded_s"], "<", 2.0, "s"))
    return found


def measure(folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    """Every raw figure."""
    db = Database.open(str(folder / "turnout.db"))
    id = long(db, messages=messages)
    raw: dict[str, Any] = {
        "idle_before": idle(),
        "open_s": [],
        "open_cpu_s": [],
        "seek_s": [],
        "made_s": [],
        "loaded_s": [],
        "page_seek_ms": [],
    }
    for _ in range(rounds):
        used = time.process_time()
        recording, panes = timed(raw["open_s"], lambda: opened(db, id))
        raw["open_cpu_s"].append(time.process_time() - used)
        places = random.Random(5).sample(range(len(recording)), SEEKS)
        for place in places:
            timed(raw["seek_s"], lambda place=place, panes=panes: look(panes, place))  # type: ignore[misc]
        made = timed(raw["made_s"], lambda recording=recording: page(recording))  # type: ignore[misc]
    raw["messages"], raw["bytes"] = len(recording), len(made.encode())
    db.close()
    if chromium.find() is None:
        print("there is no chromium: the page is not opened")
        return raw
    file = folder / "page.html"
    file.write_text(made, encoding="utf-8")
    with Chromium(folder / "chromium") as browser:
        for _ in range(rounds):
            browser.open(file.as_uri())
            raw["loaded_s"].append(float(browser.evaluate("document.documentElement.dataset.ready")) / 1000)
        raw["page_seek_ms"] = browser.evaluate(_SEEKS)
    return raw


def opened(db: Database, id: str) -> tuple[Recording, Panes]:
    """What is done before the first picture."""
    recording = from_database(db, id)
    panes = Panes(Player(recording, place=len(recording)))
    look(panes, len(recording))
    return recording, panes


def look(panes: Panes, place: int) -> None:
    """All that the screen shows at a place."""
    panes.player.place = place
    panes.head(138, playing=False, live=False)
    panes.left(66, 36, "")
    panes.right(70, SHARES)


def timed(into: list[float], work: Callable[[], Any]) -> Any:
    """What `work` gives; its seconds go into a list."""
    began = time.perf_counter()
    result = work()
    into.append(time.perf_counter() - began)
    return result


_SEEKS = """(async () => {
  const range = document.querySelector(".player input"), times = [];
  for (let n = 0; n < 40; n++) {
    const began = performance.now();
    range.value = (n * 7919) % range.max;
    range.dispatchEvent(new Event("input"));
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - began);
  }
  return times;
})()"""
"""Moves the slider all over the session; milliseconds until each next frame."""


if __name__ == "__main__":
    main()
