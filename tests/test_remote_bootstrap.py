"""Starting the remote half: any login shell, any noise, any Python that is fit, and one file that is the right one."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from state.errors import HostUnusable, Unreachable, UsageError
from tests.hosting import OpenSSH
from tools import bootstrap
from tools.hostkeys import HostSpec
from tools.remote.wire import Decoder, encode
from tools.ssh import Host

pytest_plugins = ("tests.servers",)


def answers(command: list[str], root: Path, **settings: object) -> list[dict[str, object]]:
    """Start the remote half by a shell, send it over if it asks, and ask `hello`."""
    packed = bootstrap.package()
    there = (root / "runner" / f"{packed.digest}.pyz").exists()
    stdin = (b"" if there else packed.data) + encode({"op": "hello", "id": 1})
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False, **settings)  # type: ignore[call-overload]
    assert (b"TURNOUT n need\n" in done.stdout) != there, done
    return [header for header, _ in Decoder().feed(done.stdout.partition(b"TURNOUT n ready\n")[2])]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "tcsh", "fish", "ksh"])
def test_every_login_shell_reads_the_command_alike(shell: str, tmp_path: Path) -> None:
    """Whatever the login shell is, the one line starts the remote half, with and without the file there before."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    command = [shell, "-c", bootstrap.command("n", str(tmp_path / "ro ot"))]
    for _ in range(2):
        (hello,) = answers(command, tmp_path / "ro ot")
        assert hello["root"] == str(tmp_path / "ro ot")


def test_the_line_holds_nothing_that_a_shell_could_take_for_its_own() -> None:
    """Within the single quotes there is no quote, no history mark, no newline, and it is short enough for any argv."""
    line = bootstrap.command("n", "~/.turnout", "/opt/python 3/bin/python3")
    inside = line.removeprefix("exec /bin/sh -c '").removesuffix("'")
    assert len(line) - len(inside) == len("exec /bin/sh -c ''")
    assert not set("'!\n\\") & set(inside)
    assert len(line) < 8192


def test_a_python_that_no_quoting_carries_is_refused() -> None:
    """A path with a quote in it is an error of the operator, not a command on the host."""
    with pytest.raises(UsageError, match="python"):
        bootstrap.command("n", "~", "/tmp/$(x)'; rm -rf /; '")


def test_the_packed_file_depends_on_nothing_but_the_sources() -> None:
    """Packed twice it is the same file: its hash means its content."""
    bootstrap.package.cache_clear()
    first = bootstrap.package()
    bootstrap.package.cache_clear()
    assert bootstrap.package() == first


def test_a_damaged_file_on_the_host_is_replaced(tmp_path: Path) -> None:
    """A stored file whose content is not its name is asked for again and never run."""
    command = ["sh", "-c", bootstrap.command("n", str(tmp_path))]
    answers(command, tmp_path)
    (stored,) = (tmp_path / "runner").iterdir()
    content = stored.read_bytes()
    stored.write_bytes(b"raise SystemExit('not me')")
    packed = bootstrap.package()
    stdin = packed.data + encode({"op": "hello", "id": 1})
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"TURNOUT n need\nTURNOUT n ready\n")
    assert stored.read_bytes() == content


def test_a_file_damaged_on_its_way_is_not_kept(tmp_path: Path) -> None:
    """What arrives with another hash is refused and leaves nothing behind."""
    command = ["sh", "-c", bootstrap.command("n", str(tmp_path))]
    data = bytearray(bootstrap.package().data)
    data[100] ^= 1
    done = subprocess.run(command, input=bytes(data), capture_output=True, timeout=60, check=False)
    assert b"TURNOUT n failed: the file was damaged on its way\n" in done.stdout
    assert not list(tmp_path.rglob("*.pyz"))


@pytest.mark.anyio
async def test_a_host_without_a_fit_python_says_what_was_tried(spec: HostSpec, tmp_path: Path) -> None:
    """No Python, or only an old one, makes the host unusable: said at once, with the place that was looked at."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for python in ("/no/such/python3", str(old)):
        with pytest.raises(HostUnusable, match=r"no Python 3\.8 or newer") as caught:
            async with Host(replace(spec, python=python)):
                pass
        assert python in caught.value.message
        assert caught.value.hint is not None


@pytest.mark.anyio
async def test_a_root_that_cannot_be_written_is_said_to_be_so(spec: HostSpec, tmp_path: Path) -> None:
    """Where the remote half cannot be kept the host is unusable, and the reason is the system's own."""
    (tmp_path / "file").touch()
    with pytest.raises(HostUnusable, match="Not a directory"):
        async with Host(replace(spec, root=str(tmp_path / "file" / "root"))):
            pass


@pytest.mark.anyio
@pytest.mark.sshd
async def test_what_a_login_prints_is_not_taken_for_an_answer(make_sshd: object, tmp_path: Path) -> None:
    """A message of the day, colours, 300 KB of rubbish before the remote half speaks: all skipped."""
    server = _login(make_sshd, tmp_path, 'echo "Welcome"; echo "TURNOUT x ready"; head -c 300000 /dev/zero\n')
    async with Host(server.spec(tmp_path / "root")) as host:
        assert (await host.run("echo fine")).stdout == b"fine\n"


@pytest.mark.anyio
@pytest.mark.sshd
async def test_a_login_that_runs_nothing_is_quoted(make_sshd: object, tmp_path: Path) -> None:
    """A host that answers every command with a sentence is not reachable for us, and the sentence is shown."""
    server = _login(make_sshd, tmp_path, 'echo "This account is currently not available."; exit 1\n')
    with pytest.raises(Unreachable, match="currently not available"):
        async with Host(server.spec(tmp_path / "root"), patience_s=1):
            pass


def _login(make_sshd: object, tmp_path: Path, script: str) -> OpenSSH:
    """An OpenSSH server where `script` runs before every command, as an rc file would."""
    login = tmp_path / "login.sh"
    login.write_text(f'#!/bin/sh\n{script}exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    login.chmod(login.stat().st_mode | stat.S_IXUSR)
    server: OpenSSH = make_sshd(ForceCommand=str(login))  # type: ignore[operator]
    assert os.access(login, os.X_OK)
    return server
