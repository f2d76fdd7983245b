"""examples/pivot: the story played on the real screen, with real jobs and a scripted model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cli_helpers import EXAMPLES, ROOT, turnout

PIVOT = EXAMPLES / "pivot"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The conversation played once: pictures, messages of the log, todos and jobs."""
    out = tmp_path_factory.mktemp("pivot")
    patch = pytest.MonkeyPatch()
    for name, path in {"TURNOUT_DB": "t.db", "XDG_STATE_HOME": "state", "TURNOUT_ROOT": "root"}.items():
        patch.setenv(name, str(out / path))
    done = subprocess.run(
        [sys.executable, str(PIVOT / "record.py"), "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    session = done.stdout.split()[-1]
    log = out / "log.jsonl"
    assert turnout("chat", session, "--plain", stdin=f"/export {log}\n/quit\n").returncode == 0
    told = {
        "todos": {todo["id"]: todo for todo in json.loads(turnout("todo", session, "--json").stdout)},
        "jobs": json.loads(turnout("jobs", "--session", session, "--json").stdout),
        "log": [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()],
        "pictures": {name: (out / f"{name}.svg").read_text(encoding="utf-8") for name in ("plan", "pivot", "done")},
    }
    turnout("kill", "own", "--session", session, "--yes")
    patch.undo()
    return told


def at(played: dict[str, Any], todo: str, now: str) -> int:
    """The number of the message with which a todo came to be so."""
    return next(
        m["seq"]
        for m in played["log"]
        if m["kind"] == "todo.status" and m["payload"]["id"] == todo and m["payload"]["now"] == now
    )


@pytest.mark.slow
def test_one_turn_starts_both_tracks_and_they_run_at_once(played: dict[str, Any]) -> None:
    """One answer of the model asks for research and for the attempt; neither waits for the other's end."""
    first = next(m for m in played["log"] if m["kind"] == "model.answered")
    calls = [block["name"] for block in first["payload"]["content"] if block["type"] == "tool_use"]
    assert calls == ["task", "playbook"]
    assert at(played, "research", "in_progress") < at(played, "retry_pays", "failed")
    assert max(at(played, t, "in_progress") for t in ("research", "vllm_retry")) < at(
        played, "bench_retry", "completed"
    )


@pytest.mark.slow
def test_the_gate_fails_and_the_branch_behind_it_does_its_work_in_order(played: dict[str, Any]) -> None:
    """Measured, refused, asked, stopped, freed, installed; then base, public and own drafter in turn."""
    todos = played["todos"]
    assert todos["bench_retry"]["result"]["multiplier"] < 1.0
    assert (todos["retry_pays"]["status"], todos["stay"]["status"]) == ("failed", "skipped")
    order = ["leave", "stop_retry", "free", "install", "bench_base", "bench_public", "bench_own", "switch"]
    ends = [at(played, todo, "completed") for todo in order]
    assert ends == sorted(ends)
    assert at(played, "retry_pays", "failed") < ends[0]
    rates = [todos[name]["result"]["multiplier"] for name in ("bench_public", "bench_own")]
    assert 1.0 < rates[0] < rates[1]


@pytest.mark.slow
def test_nothing_was_stopped_without_leave(played: dict[str, Any]) -> None:
    """The file of the model's choosing and the stop of vLLM were both put to the operator, who said yes."""
    answers = [m["payload"] for m in played["log"] if m["kind"] == "approval.answered"]
    assert [(a["todo"].partition(":")[0], a["answer"], a["by"]) for a in answers] == [
        ("call", "yes", "operator"),
        ("leave", "yes", "operator"),
    ]
    kills = [m["seq"] for m in played["log"] if m["kind"] == "job.cancel"]
    assert min(kills) > next(
        m["seq"] for m in played["log"] if m["kind"] == "approval.answered" and m["payload"]["todo"] == "leave"
    )


@pytest.mark.slow
def test_the_screen_showed_it(played: dict[str, Any]) -> None:
    """The pictures hold the conversation, the graph, the question and the engine's log; they load nothing."""
    words = {name: picture.replace("&#160;", " ") for name, picture in played["pictures"].items()}
    assert "Two tracks at once, then:" in words["plan"]
    assert "research" in words["plan"]
    assert "Stop it on local and free its GPUs?" in words["pivot"]
    assert "SpecDecoding metrics" in words["pivot"]
    assert "Done." in words["done"]
    assert all("url(h" not in picture for picture in words.values())


def test_the_playbook_and_its_script_fit_together() -> None:
    """The playbook checks clean, and what the script waits for is named as the playbook names it."""
    checked = json.loads(turnout("playbook", "check", str(PIVOT), "--json").stdout)
    assert not checked.get("problems"), checked
    shown = turnout("playbook", "show", str(PIVOT), "--json").stdout
    script = (PIVOT / "script.yaml").read_text(encoding="utf-8")
    for todo in ("retry_pays", "leave", "switch"):
        assert f"todo `{todo}` (" in script
        assert f'"{todo}"' in shown
