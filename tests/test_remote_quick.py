"""Quick commands over both servers: what goes wrong with commands over SSH, and what is promised instead."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest

from state.errors import Unreachable
from tests.hosting import children, gone, living
from tools.jobs import clean_text
from tools.ssh import Host, HostSpec

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("streams", [">/dev/null", "2>/dev/null", "</dev/null >/dev/null"])
async def test_a_background_process_that_keeps_an_output_is_not_waited_for(host: Host, streams: str) -> None:
    """The answer comes when the command has ended, not at EOF, and names who still holds the output."""
    result = await host.run(f"sleep 1000 {streams} & echo $!")
    (held,) = result.held_by
    assert result.ok
    assert result.notes[0] == f"output still held by pid {held}"
    assert "`</dev/null >FILE 2>&1 &`" in result.notes[1]
    os.kill(held, 9)


async def test_a_background_process_with_all_three_streams_redirected_is_no_matter(host: Host) -> None:
    """Started with stdin, stdout and stderr redirected, a process holds nothing, and nothing is said of it."""
    result = await host.run("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
    assert (result.held_by, result.notes) == ((), ())
    os.kill(int(result.stdout), 9)


async def test_a_timeout_ends_the_command_with_its_runaways(host: Host) -> None:
    """After a timeout nothing of the command is left on the host, other sessions included; a timeout is no rc."""
    result = await host.run("setsid sh -c 'echo $$; sleep 1000' & echo $$; sleep 1000", timeout_s=0.5)
    pids = [int(word) for word in result.stdout.split()]
    assert (len(pids), result.timed_out, result.ok) == (2, True, False)
    assert not await living(pids)
    assert result.notes == ("no output for 0 s before the limit",)


async def test_a_command_that_asks_gets_the_end_of_input(host: Host) -> None:
    """Without stdin given a program that reads it fails at once; with stdin given it gets exactly that."""
    assert (await host.run("python3 -c 'input()'", timeout_s=20)).rc == 1
    assert (await host.run("cat", stdin=b"\x00\xff")).stdout == b"\x00\xff"
    assert (await host.run("head -c 1; exec 0<&-; exit 4", stdin=bytes(1 << 20))).rc == 4


async def test_silence_is_reported_as_silence(host: Host) -> None:
    """A command that printed nothing before its limit is said to have been silent, not to have succeeded."""
    result = await host.run("echo hello; sleep 1000", timeout_s=1.2)
    assert result.timed_out
    assert result.notes == ("no output for 1 s before the limit",)


async def test_a_limit_is_wall_clock(host: Host) -> None:
    """A command that keeps printing ends at its limit too."""
    result = await host.run("while :; do echo y; done", timeout_s=0.4, max_output=1000)
    assert result.timed_out
    assert result.stdout_bytes > 1000


async def test_a_password_is_never_waited_for(host: Host, tmp_path: Path) -> None:
    """There is no terminal to ask on: sudo and others fail at once, and the note says what they wanted."""
    result = await host.run("read -s -p 'Password: ' x </dev/tty", timeout_s=20)
    assert (result.timed_out, "needs a password" in result.notes) == (False, True)
    fake = tmp_path / "sudo"
    fake.write_text('#!/bin/sh\n[ -z "$SUDO_ASKPASS" ] && echo "sudo: a password is required" >&2; exit 1\n')
    fake.chmod(0o755)
    result = await host.run(f"PATH={tmp_path}:$PATH; sudo true", env={"LANG": "C"})
    assert (result.rc, result.notes) == (1, ("needs a password",))


async def test_bytes_that_are_no_text_pass_unharmed(host: Host) -> None:
    """Bad UTF-8, NUL and colours arrive as the bytes they are, end no connection, and are clean when shown."""
    result = await host.run(r"printf 'caf\xe9 \xff\xfe ok\n\033[31mred\033[0m\000end\n\xe2\x96\x88\n'")
    assert result.stdout == b"caf\xe9 \xff\xfe ok\n\x1b[31mred\x1b[0m\x00end\n\xe2\x96\x88\n"
    assert clean_text(result.stdout) == "caf\ufffd \ufffd\ufffd ok\nredend\n█\n"
    assert (await host.run("echo on")).stdout == b"on\n"


@pytest.mark.parametrize(
    ("command", "rc", "signal"),
    [
        ("exit 255", 255, None),
        ("kill -9 $$", None, "SIGKILL"),
        ("sh -c 'kill -9 $$'; exit $?", 137, None),
        ("exit 300", 44, None),
        ("no-such-program", 127, None),
    ],
)
async def test_an_exit_code_is_never_a_guess(host: Host, command: str, rc: int | None, signal: str | None) -> None:
    """255 is a code like others and a killed shell has its signal: neither can be taken for a lost connection."""
    result = await host.run(command)
    assert (result.rc, result.signal) == (rc, signal)


async def test_losing_contact_is_unknown_not_an_exit_code(host: Host) -> None:
    """When the remote half dies under a command, the caller learns that nothing is known, and the command is ended."""
    serving = (await host.hello()).pid
    async with anyio.create_task_group() as group:

        async def command() -> None:
            with pytest.raises(Unreachable, match="what became of `run` is unknown"):
                await host.run("echo $$ > /proc/self/fd/2; sleep 1000", timeout_s=100)

        group.start_soon(command)
        while not (workers := await children(serving)):
            pass
        os.kill(serving, 9)
    assert await gone(workers[0])
    assert (await host.run("echo back")).stdout == b"back\n"


async def test_a_command_given_up_is_ended(host: Host) -> None:
    """Cancelling the wait for a command ends the command on the host."""
    serving = (await host.hello()).pid
    with anyio.move_on_after(0.3):
        await host.run("sleep 1000", timeout_s=1000)
    for worker in await children(serving):
        assert await gone(worker)


async def test_any_text_is_one_argument(host: Host) -> None:
    """Quotes, dollars, backquotes, newlines and megabytes reach the shell as they were written."""
    text = 'it\'s a $HOME "x" `y`\ntwo lines !! \\n'
    result = await host.run('printf %s "$TEXT"; cat', env={"TEXT": text}, stdin=text.encode())
    assert result.stdout.decode() == text * 2
    long = await host.run(f": {'0' * 1_000_000}\necho ok; cat", stdin=b"in")
    assert long.stdout == b"ok\nin"


async def test_long_output_is_head_tail_and_an_exact_count(host: Host) -> None:
    """Of 60 MB the first and last bytes are shown, and how many were left out; memory stays small."""
    result = await host.run("seq 1 8000000", max_output=2000, timeout_s=120)
    total = sum(9 * 10**digits * (digits + 2) for digits in range(6)) + 7_000_001 * 8
    assert result.stdout_bytes == total
    assert result.stdout.startswith(b"1\n2\n3\n")
    assert result.stdout.endswith(b"7999999\n8000000\n")
    assert b"\n[%d bytes left out]\n" % (total - 2000) in result.stdout


async def test_a_clock_that_is_wrong_kills_nobody(host: Host, tmp_path: Path) -> None:
    """The host's clock is measured once; a file from the future is fresh, and no state depends on it."""
    hello = await host.hello()
    assert abs(hello.clock_offset) < 5
    future = time.time() + 7200
    (tmp_path / "probe").touch()
    os.utime(tmp_path / "probe", (future, future))
    shm = Path("/dev/shm") / f"nccl-turnout-{os.getpid()}"
    shm.touch()
    os.utime(shm, (future, future))
    try:
        ages = {entry["path"]: entry["age_s"] for entry in (await host.probe())["shm"]}
        assert ages[str(shm)] == 0
    finally:
        shm.unlink()


async def test_a_driver_that_hangs_is_told_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that hangs, with a child that keeps the output, costs its limit once and is not asked again."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/asked\nsleep 1000 &\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    async with Host(HostSpec(name="local", root=str(tmp_path / "root"))) as host:
        gpu = (await host.probe())["gpu"]
    assert gpu["error"] == "nvidia-smi does not answer in 5 s: driver may hang"
    (asked,) = (tmp_path / "asked").read_text().split()
    assert await gone(int(asked))


async def test_commands_run_side_by_side_beyond_the_limit_of_sessions(host: Host) -> None:
    """A hundred commands at once share one channel; a slow one delays nobody."""
    async with anyio.create_task_group() as group:
        slow = anyio.CancelScope()

        async def wait() -> None:
            with slow:
                await host.run("sleep 1000", timeout_s=1000)

        group.start_soon(wait)
        results: dict[int, bytes] = {}

        async def one(number: int) -> None:
            results[number] = (await host.run(f"echo {number}")).stdout

        async with anyio.create_task_group() as quick:
            for number in range(100):
                quick.start_soon(one, number)
        slow.cancel()
    assert results == {number: b"%d\n" % number for number in range(100)}


async def test_commands_share_runners_and_no_processes(host: Host) -> None:
    """A runner serves one command after another; one whose command left something behind, or that was killed, is
    replaced, so that no command is ever taken for a relative of an earlier one."""
    runners = [(await host.run("echo $PPID")).stdout for _ in range(3)]
    assert len(set(runners)) == 1
    left = int((await host.run("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")).stdout)
    assert (await host.run("echo $PPID; sleep 1000", timeout_s=0.3)).stdout not in runners
    assert await living([left]) == [left]
    os.kill(left, 9)
    idle = int((await host.run("echo $PPID")).stdout)
    os.kill(idle, 9)
    assert await gone(idle)
    assert (await host.run("echo on")).stdout == b"on\n"


async def test_a_command_leaves_a_runner_as_it_was(host: Host, tmp_path: Path) -> None:
    """Folder, environment, limits and descriptors of one command are not those of the next."""
    # The runner has let go of its copies of the pipes once it sleeps, waiting for this command.
    asleep = 'until grep -q "^State:.S" /proc/$PPID/status; do :; done'
    look = f"pwd; ulimit -n; echo $MARK; {asleep}; ls /proc/$PPID/fd | wc -l"
    before = (await host.run(look)).stdout
    await host.run(f": {'0' * 200_000}; cd /; ulimit -n 50; exit 3", cwd=str(tmp_path), env={"MARK": "x"}, stdin=b"in")
    assert (await host.run("true", cwd="/no/such/folder")).rc == 126
    assert (await host.run(look)).stdout == before
