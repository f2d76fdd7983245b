"""The command line on a real terminal (a pty): questions, Ctrl-C, and how the terminal is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli_helpers import COMMAND, ROOT, SLEEPS, begin, job_runs, playbook, turnout, until

LIMIT_S = 60.0


class Terminal:
    """A command on a terminal of its own, read until something appears."""

    def __init__(self, *argv: str, rows: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [*COMMAND, *argv],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C becomes a signal
        )
        self._slave = slave
        self.text = ""

    def wait_for(self, wanted: str) -> str:
        """Read until `wanted` has been written since the last call; what was read."""
        deadline = time.monotonic() + LIMIT_S
        while wanted not in self.text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise AssertionError(f"waited for {wanted!r}, got {self.text[-2000:]!r}")
            self.text += os.read(self._master, 65536).decode("utf-8", "replace")
        read, _, self.text = self.text.partition(wanted)
        return read + wanted

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code and what was written to the end."""
        while self.process.poll() is None or select.select([self._master], [], [], 0)[0]:
            if select.select([self._master], [], [], 0.1)[0]:
                self.text += os.read(self._master, 65536).decode("utf-8", "replace")
        return self.process.returncode, self.text

    def hang_up(self) -> None:
        """Close the terminal, as a window or a connection does that goes away."""
        os.close(self._slave)
        os.close(self._master)
        self._slave = self._master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._slave >= 0:
            os.close(self._slave)
            os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(*argv: str, **size: int) -> Terminal:
        opened.append(Terminal(*argv, **size))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


ASKS = (
    "  - {id: leave, ask: 'Stop the server on gpu1?'}\n  - {id: stop, after: leave, job: {host: local, run: 'true'}}\n"
)


@pytest.mark.parametrize(
    ("typed", "code", "said"), [("y\r", 0, "yes, by operator"), ("\r", 1, "answered `no` by operator")]
)
@pytest.mark.parametrize("view", ["--watch", "--no-watch"])
def test_a_question_is_asked_and_answered_in_place(
    terminal: Callable[..., Terminal], tmp_path: Path, typed: str, code: int, said: str, view: str
) -> None:
    """The whole question is shown, an unclear answer is asked again, and Enter alone takes the default."""
    run = terminal("run", playbook(tmp_path, ASKS), view)
    run.wait_for("? leave: Stop the server on gpu1?")
    run.wait_for("yes or no? [y/N] ")
    run.type("maybe\r")
    run.wait_for("yes or no? [y/N] ")
    run.type(typed)
    ended, text = run.end()
    assert ended == code, text
    if view == "--watch":
        assert said in text


def test_ctrl_c_at_a_question_pauses_and_the_question_comes_again(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    """A question that was not answered stays open: the session pauses with 3, and `resume` asks again."""
    run = terminal("run", playbook(tmp_path, ASKS))
    run.wait_for("yes or no? [y/N] ")
    run.type("\x03")
    code, text = run.end()
    assert code == 3, text
    assert "go on with `turnout resume" in text
    again = terminal("resume")
    again.wait_for("? leave: Stop the server on gpu1?")
    again.wait_for("yes or no? [y/N] ")
    again.type("yes\r")
    assert again.end()[0] == 0


def test_the_terminal_works_after_the_run_was_killed(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """`kill -9` while the live picture is shown leaves cursor, screen and echo as they were."""
    run = terminal("run", playbook(tmp_path, SLEEPS))
    shown = run.wait_for("1 running")
    before = termios.tcgetattr(run._slave)
    run.process.kill()
    _, text = run.end()
    assert "\x1b[?25l" not in shown + text
    assert "\x1b[?1049h" not in shown + text
    assert before[3] & termios.ECHO
    assert termios.tcgetattr(run._slave) == before
    assert turnout("kill", "slow", "--yes").returncode == 0


def test_kill_asks_on_a_terminal(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """The question names job, host, todo and session; Enter alone leaves the job alone."""
    driver = begin("run", playbook(tmp_path, SLEEPS), "--json")
    job = until(driver, job_runs)["id"]
    kill = terminal("kill", "slow", columns=300)
    question = kill.wait_for("[y/N] ")
    assert f"End job {job} on host `local` (todo `slow` of session {job.partition('.')[0]})?" in question
    kill.type("\r")
    code, text = kill.end()
    assert code == 1
    assert "left alone" in text
    again = terminal("kill", "slow")
    again.wait_for("[y/N] ")
    again.type("y\r")
    assert again.end()[0] == 0
    driver.communicate(timeout=60)


def test_the_end_of_a_live_picture_has_the_last_words_of_a_failed_job(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    """Below the picture the summary shows the last line of the log, as it does in plain lines."""
    steps = "  - {id: bad, job: {host: local, run: 'echo no such model; exit 7'}}\n"
    code, text = terminal("run", playbook(tmp_path, steps)).end()
    assert code == 1
    assert "its log ends with: no such model" in text
