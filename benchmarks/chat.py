"""How quick the chat screen is: its first picture, a long session resumed, a keystroke while 50 jobs write their logs.

    python -m benchmarks.chat [--runs 10] [--jobs 50] [--messages 20000]

Each run is `turnout chat` on a pseudo-terminal of 140 by 40. The first picture is there when the prompt can be read, a
session is resumed when the last words of its conversation can (from the command on: imports are part of it). A
keystroke is answered when its character has been drawn. The characters typed are ones that no log holds. The jobs are
real ones on this machine, each with ten lines a second, so that the machine's own load is part of the figure.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from agent.load import new_id
from benchmarks.common import Aim, idle, median, percentile, save, wait_until_quiet, workplace
from state import changes as c
from state.conversation import model_answered, model_asked, operator_said
from state.db import Database
from state.log import append

PROMPT = "ay something"  # the cursor stands on its first letter
LETTERS = "αβγδεζηθικλμνξοπρστυφχψωБГДЖЗИЙЛ"
LAST_WORDS = "these-were-the-last-words"
LIMIT_S = 60.0
JOBS_A_HOST = 4
"""What a host that is this machine takes at once, however few cores it has."""
LINES = """exec 3<> <(:)
for i in $(seq 1 100000); do echo "::progress $i/100000 lines"; echo "INFO step $i of {id}"; read -t 0.1 -u 3; done"""


class Terminal:
    """`turnout chat` on a terminal of its own."""

    def __init__(self, environment: dict[str, str], *argv: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agent", "chat", *argv],
            stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._text = ""

    def until(self, wanted: str) -> float:
        """Read until `wanted` is drawn; when that was."""
        deadline = time.monotonic() + LIMIT_S
        while wanted not in self._text:
            if not select.select([self._master], [], [], deadline - time.monotonic())[0]:
                raise TimeoutError(f"`{wanted}` was never drawn")
            self._text += os.read(self._master, 1 << 16).decode("utf-8", "replace")
        self._text = self._text.partition(wanted)[2]
        return time.perf_counter()

    def type(self, text: str) -> float:
        """Type it; when."""
        began = time.perf_counter()
        os.write(self._master, text.encode())
        return began

    def drain(self, seconds: float) -> None:
        """Read on for so long, as a terminal does."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                os.read(self._master, 1 << 16)
        self._text = ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


def first_paint(environment: dict[str, str]) -> float:
    """Seconds from the command to a prompt that can be read."""
    terminal = Terminal(environment)
    try:
        return terminal.until(PROMPT) - terminal.began
    finally:
        terminal.close()


def long_session(url: str, messages: int) -> str:
    """Store a conversation of so many messages, most of them answers of a model; its id."""
    session = new_id()
    usage = {"input": 900, "output": 60, "cache_read": 800, "cache_write": 0}
    settings = {"stay": True, "told": True, "params": {}, "hosts": {}, "yes": False, "playbook": None}
    changes = [c.session_created(kind="chat", title="Long", playbook=None, source=None, parent=None, settings=settings)]
    for n in range(messages // 3):
        content = [{"type": "text", "text": f"**Answer {n}**: `bench` gave {n / 7:.2f}x. " * 3}]
        request = {"messages": 1, "through": 3 * n + 2, "notices": [], "system_sha": "x", "tools_sha": "x"}
        changes += [
            operator_said(f"question {n}"), model_asked(f"c{n}", model="m", purpose="turn", request=request),
            model_answered(f"c{n}", model="m", content=content, stop_reason="end_turn", usage=usage, cost=0.0),
        ]  # fmt: skip
    changes.append(operator_said(LAST_WORDS))
    db = Database.open(url)
    db.write(lambda conn: append(conn, session, changes, time.time()))
    db.close()
    return session


def resumed(environment: dict[str, str], session: str) -> float:
    """Seconds from the command to the last words of a stored conversation on the screen."""
    terminal = Terminal(environment, session)
    try:
        return terminal.until(LAST_WORDS) - terminal.began
    finally:
        terminal.close()


def keystrokes(environment: dict[str, str], folder: Path, jobs: int) -> list[float]:
    """Seconds from each keystroke to its character on the screen, while so many jobs write."""
    hosts = ", ".join(f"h{n}: {{kind: local}}" for n in range(-(-jobs // JOBS_A_HOST)))
    steps = "".join(
        f"  - id: job{n}\n    job:\n      host: h{n // JOBS_A_HOST}\n      run: |\n"
        + "".join(f"        {line}\n" for line in LINES.replace("{id}", f"job{n}").splitlines())
        for n in range(jobs)
    )
    path = folder / "writers.yaml"
    path.write_text(f"name: writers\nhosts: {{{hosts}}}\nsteps:\n{steps}", encoding="utf-8")
    terminal = Terminal(environment)
    try:
        terminal.until(PROMPT)
        terminal.type(f"/run {path}\r")
        terminal.until(f"{jobs} running")
        terminal.drain(5.0)
        times = []
        for letter in LETTERS:
            typed = terminal.type(letter)
            times.append(terminal.until(letter) - typed)
            terminal.drain(0.15)
        terminal.type("\x03")
        terminal.type("".join(f"/todo cancel job{n}\r" for n in range(jobs)))
        terminal.drain(8.0)
        return times
    finally:
        terminal.close()


def main() -> None:
    """Measure, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    with workplace() as folder:
        places = {
            "TURNOUT_DB": folder / "turnout.db",
            "TURNOUT_ROOT": folder / "root",
            "XDG_STATE_HOME": folder / "state",
        }
        environment = {**os.environ, **{name: str(path) for name, path in places.items()}}
        environment |= {"XDG_CONFIG_HOME": str(folder / "config")}
        first_paint(environment)
        wait_until_quiet(options.patience)
        quiet = [idle()]
        paints = [first_paint(environment) for _ in range(options.runs)]
        long = long_session(environment["TURNOUT_DB"], options.messages)
        resumes = [resumed(environment, long) for _ in range(options.runs)]
        keys = keystrokes(environment, folder, options.jobs)
        quiet.append(idle())
        figures = {
            "first_paint_s": median(paints), "first_paint_worst_s": max(paints),
            "resume_s": median(resumes), "resume_worst_s": max(resumes), "messages": options.messages,
            "keystroke_ms": median(keys) * 1000, "keystroke_95_ms": percentile(keys, 0.95) * 1000, "jobs": options.jobs,
        }  # fmt: skip
        aims = [
            Aim("first picture", figures["first_paint_s"], "<", 0.7, "s"),
            Aim(f"{options.messages:,} messages resumed", figures["resume_s"], "<", 1.0, "s"),
            Aim(f"a keystroke while {options.jobs} jobs write", figures["keystroke_ms"], "<", 50, "ms"),
        ]
        raw = {"first_paint_s": paints, "resume_s": resumes, "keystroke_s": keys}
        save("chat", folder, aims, figures, raw=raw, idle_before_and_after=quiet)


if __name__ == "__main__":
    main()
