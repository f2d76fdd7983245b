"""For the tests of the command line: real processes, and the JSON they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-m", "agent"]


def turnout(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    return subprocess.run([*COMMAND, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120, input=stdin)


def begin(*argv: str) -> subprocess.Popen[str]:
    """Start a command whose stdout is read while it runs."""
    return subprocess.Popen(
        [*COMMAND, *argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read JSON lines until one is as wanted."""
    assert process.stdout is not None
    for line in process.stdout:
        said: dict[str, Any] = json.loads(line)
        if wanted(said):
            return said
    raise AssertionError("the command ended before it said what was waited for")


def job_runs(said: dict[str, Any]) -> bool:
    return said.get("kind") == "job.state" and said.get("state") == "running"


def last(text: str) -> dict[str, Any]:
    """The last line, as JSON."""
    result: dict[str, Any] = json.loads(text.splitlines()[-1])
    return result


def playbook(folder: Path, steps: str) -> str:
    """A playbook file with these steps."""
    path = folder / "p.yaml"
    path.write_text(f"name: p\ntitle: A test\nsteps:\n{steps}", encoding="utf-8")
    return str(path)


SLEEPS = "  - {id: slow, job: {host: local, run: 'echo begun; exec sleep 300'}}\n"
"""A step whose job runs until it is ended."""
