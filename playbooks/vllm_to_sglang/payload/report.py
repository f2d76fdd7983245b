"""Writes the page that tells what was done, to people who were not there: report/report.md and report/report.html.

python3 -m vllm_to_sglang.report --data report-data.json --out report

What it says is read from the steps' results (`--data`), from the jobs' folders on this host (when each began, how long
it took, how it ended) and from the account of the client that asked all the time. What was not measured is said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from . import page
from .common import main, read, result, write

Json = Any
_MEMBER = re.compile(r"^([a-z]+)_(.+)-[0-9a-f]{8}$")
"""A job's folder for one of several todos of a step: `serve@own` is `serve_own-0a1b2c3d`."""


def jobs(session: str) -> list[dict[str, Any]]:
    """The session's jobs on this host, in the order of their start."""
    folder = Path(os.environ.get("TURNOUT_ROOT") or os.path.expanduser("~/.turnout")) / "jobs"
    found = []
    for place in sorted(folder.glob(f"{session}.*")):
        begun, ended = _record(place / "run"), _record(place / "exit")
        if begun is None:
            continue
        end = "runs" if ended is None else ended.get("signal") or f"exit code {ended.get('rc')}"
        if ended and ended.get("cancelled"):
            end = "stopped"
        name, _, attempt = place.name[len(session) + 1 :].rpartition(".")
        name = _MEMBER.sub(r"\1@\2", name)
        started = float(begun.get("started") or 0)
        until = float(ended["ended"]) if ended and ended.get("ended") else None
        found.append({"job": name, "attempt": attempt, "started": started, "ended": until, "end": end})
    return sorted(found, key=lambda one: one["started"])


def _record(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def outcome(todos: Json) -> tuple[str, str]:
    """In a word and in a sentence, how it ended."""
    if "back" in todos and "port" in todos["back"]:
        return "rolled back", "SGLang took over and did not hold; the old server serves again"
    if "watch" in todos and "failure" not in todos["watch"]:
        return "switched", "SGLang serves on the old port, and held while it was watched"
    if (todos.get("router") or {}).get("job"):
        return "switched, not proved", "SGLang serves on the old port; the watch did not end well"
    weighed = todos.get("weigh") or {}
    if weighed.get("stay"):
        return "stayed", f"vLLM stays: {weighed['why']}"
    answer = todos.get("door") or {}
    if answer.get("answer") == "no":
        return "stopped at the door", f"{answer.get('by', 'the operator')} said no: everything stayed as it was"
    return "not switched", "no candidate could take over; the steps below say why"


def measured(todos: Json) -> list[dict[str, Any]]:
    """One row for each thing that was measured, in the order of the story."""
    rows = []
    for name, bench in (
        ("vLLM as it was", todos.get("before")),
        ("vLLM without speculation", todos.get("attempt_bench")),
    ):
        rows.append(_row(name, bench))
    rows[0]["multiplier"] = (todos.get("weigh") or {}).get("multiplier")
    titles = {"base": "SGLang, base", "public": "SGLang, public drafter", "own": "SGLang, own drafter"}
    for name, bench in (todos.get("bench") or {}).items():
        rows.append(_row(titles.get(name, name), bench))
    return [row for row in rows if row["tokens_per_s"] is not None]


def _row(name: str, bench: Json) -> dict[str, Any]:
    bench = bench or {}
    keys = ("tokens_per_s", "acceptance_length", "acceptance_rate", "multiplier")
    return {"name": name, "passes": bench.get("passes") or [], **{key: bench.get(key) for key in keys}}


def untested(todos: Json, params: Json, gap: Json) -> list[str]:
    """What a reader must not take for tested."""
    units = (todos.get("persist") or {}).get("units")
    found = [
        "A reboot of the host: "
        + (
            f"{' and '.join(units)} are enabled and were not seen to start."
            if units
            else "SGLang and the router run as jobs of Turnout, which do not start by themselves."
        ),
        f"Load beyond {params.get('concurrency')} requests at a time, and prompts other than those of the sets given.",
    ]
    answers = todos.get("final_answers") or {}
    if not answers:
        found.append("The answers of the server that took over.")
    asked = _file("old.json")
    if asked and not asked["tool"].get("tool_calls"):
        found.append("Tool calls: the old server made none when asked to, so their parser was not compared.")
    if asked and not asked["reasoning"].get("reasoning"):
        found.append("Reasoning: the old server kept none apart, so its parser was not compared.")
    if not params.get("prediction"):
        found.append("Whether the drafters do what their trainer predicted: no prediction was given.")
    if not gap:
        found.append("The gap: no client asked during the switch.")
    if (todos.get("attempt_bench") or {}).get("tokens_per_s") is None:
        found.append("What vLLM's speculation gains: vLLM was not measured without it.")
    if todos.get("find", {}).get("form") != "process":
        found.append("Clients on other machines: the client that asked was on the host.")
    return found


def _file(name: str) -> Json:
    try:
        return read(Path(name))
    except Exception:  # noqa: BLE001 - a report is written of what there is
        return None


def step(given: argparse.Namespace) -> int:
    """Write both pages."""
    data = read(given.data)
    todos, params = data["todos"], data["params"]
    gap = _file("gap.json")
    word, sentence = outcome(todos)
    told = {
        "title": f"From vLLM to SGLang on {params.get('host')}", "word": word, "sentence": sentence, "todos": todos,
        "params": params, "session": data["session"], "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "jobs": jobs(data["session"]), "measured": measured(todos), "gap": gap,
        "untested": untested(todos, params, gap),
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    parts = page.parts(told)
    write(given.out / "report.md", page.markdown(told["title"], parts))
    write(given.out / "report.html", page.html(told["title"], parts))
    write(given.out / "summary.json", json.dumps({key: told[key] for key in ("word", "sentence", "measured", "gap")}))
    result({"outcome": word, "said": sentence, "report": str((given.out / "report.html").resolve())})
    return 0


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="report")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("report"))
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: step(arguments()))
