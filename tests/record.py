"""Records the sessions in tests/recordings: each example is run for real, and its log kept as an export.

    python -m tests.record [NAME ...]

What belongs to this machine (where Turnout lies, its Python, its name, temporary folders) is replaced, so that a
recording says the same everywhere. To follow a change of behaviour that is meant, `turnout replay FILE --accept` is
enough: this is for new examples, and for hosts that answer otherwise.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from state import export
from state.db import Database

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().parent / "recordings"


def run(environment: dict[str, str], *command: str) -> str:
    """A command in the repository; its stdout."""
    full = {**os.environ, **environment}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=full, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def example(path: str, *options: str) -> Callable[[dict[str, str]], None]:
    return lambda environment: print(run(environment, "-m", "agent", "run", path, "--yes", *options)[-200:])


def conversation(environment: dict[str, str]) -> None:
    run(environment, "examples/pivot/record.py", "--out", str(Path(environment["TURNOUT_DB"]).parent))


RECORDED: dict[str, Callable[[dict[str, str]], None]] = {
    "contingency-fails": example("examples/contingency.yaml"),
    "contingency-holds": example("examples/contingency.yaml", "--set", "multiplier=1.8"),
    "fanout": example("examples/fanout.yaml"),
    "hedge": example("examples/hedge.yaml"),
    "pivot": example("examples/pivot"),
    "pivot-conversation": conversation,
}


def record(name: str) -> None:
    """Run it and write `recordings/NAME.jsonl`."""
    with tempfile.TemporaryDirectory(prefix="turnout-record-") as place:
        environment = {
            "TURNOUT_DB": f"{place}/t.db", "XDG_STATE_HOME": f"{place}/state", "TURNOUT_ROOT": f"{place}/root",
        }  # fmt: skip
        RECORDED[name](environment)
        db = Database.open(environment["TURNOUT_DB"])
        names = {place: "/tmp/turnout", str(ROOT): "/opt/turnout", sys.executable: "/usr/bin/python3"}
        names[platform.node()] = "workstation"

        def elsewhere(value: Any) -> Any:
            text = json.dumps(value, ensure_ascii=False)
            for here in sorted(names, key=len, reverse=True):
                text = text.replace(here, names[here])
            return json.loads(text)

        session = json.loads(run(environment, "-m", "agent", "sessions", "--json"))[0]["id"]
        lines = db.read(lambda conn: list(export.lines(conn, session, change=elsewhere)))
        db.close()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{name}: {len(lines) - 2} messages")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RECORDED:
        record(wanted)
