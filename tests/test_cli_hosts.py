"""Hosts from the command line, against a real OpenSSH server: keys are shown, pinned, verified and only then used."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from rich.console import Console

from agent.host_picture import lines, listing, picture
from tests.cli_helpers import EXAMPLES, SLEEPS, begin, job_runs, last, playbook, turnout, until
from tests.hosting import OpenSSH

pytest_plugins = ("tests.servers",)


def address(sshd: OpenSSH) -> str:
    return f"{getpass.getuser()}@127.0.0.1:{sshd.port}"


def add(sshd: OpenSSH, tmp_path: Path, *more: str) -> Any:
    identity = ["--identity", str(sshd.folder / "client"), "--root", str(tmp_path / "remote")]
    return turnout("hosts", "add", "gpu1", address(sshd), *identity, *more)


def hosts() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(turnout("hosts", "list", "--json").stdout)
    return rows


@pytest.mark.sshd
def test_a_host_is_added_only_when_its_key_is_agreed_to(sshd: OpenSSH, tmp_path: Path) -> None:
    """Without a terminal the key is shown and not taken; a wrong fingerprint is refused; the right one is pinned."""
    asked = add(sshd, tmp_path)
    assert asked.returncode == 2
    assert "shows the key ssh-ed25519 SHA256:" in asked.stderr
    wrong = add(sshd, tmp_path, "--fingerprint", "SHA256:" + "A" * 43)
    assert wrong.returncode == 5
    assert hosts() == []
    shown = next(word for word in asked.stderr.split() if word.startswith("SHA256:"))
    added = add(sshd, tmp_path, "--fingerprint", shown, "--gpus", "0")
    assert added.returncode == 0, added.stderr
    assert "disks" in added.stdout
    (row,) = hosts()
    assert (row["name"], row["fingerprint"], row["jobs"]) == ("gpu1", shown, 0)
    assert row["gpus"] == 0, "none may be used, which is not the same as nobody knows"
    assert row["probed"] is not None


@pytest.mark.sshd
def test_a_run_goes_to_the_host_and_its_logs_come_from_there(sshd: OpenSSH, tmp_path: Path) -> None:
    """`run --host` uses the added host, and `logs` reads from it."""
    assert add(sshd, tmp_path, "--yes").returncode == 0
    done = turnout("run", str(EXAMPLES / "contingency.yaml"), "--host", "gpu1", "--json")
    assert done.returncode == 0, done.stderr
    assert {job["host"] for job in json.loads(turnout("jobs", "--json").stdout)} == {"gpu1"}
    assert turnout("logs", "serve_plain").stdout == "the drafter gives 0.66x, less than 1.0x\n"
    assert (tmp_path / "remote" / "jobs" / f"{last(done.stdout)['session']}.bench.1" / "log").exists()


@pytest.mark.sshd
def test_a_changed_key_is_trusted_only_on_purpose(sshd: OpenSSH, tmp_path: Path) -> None:
    """After a reinstall nothing connects, both fingerprints are shown, and `hosts trust` pins the new one."""
    assert add(sshd, tmp_path, "--yes").returncode == 0
    before = hosts()[0]["fingerprint"]
    sshd.stop()
    sshd.new_host_key()
    sshd.start()
    refused = turnout("hosts", "probe", "gpu1")
    assert refused.returncode == 5
    assert "has changed" in refused.stderr
    again = add(sshd, tmp_path, "--yes")
    assert again.returncode == 5
    assert "turnout hosts trust gpu1" in again.stderr
    asked = turnout("hosts", "trust", "gpu1")
    assert asked.returncode == 2
    assert before in asked.stderr
    assert turnout("hosts", "trust", "gpu1", "--yes").returncode == 0
    assert hosts()[0]["fingerprint"] != before
    assert json.loads(turnout("hosts", "probe", "gpu1", "--json").stdout)["host"] == "gpu1"


@pytest.mark.sshd
def test_a_host_with_jobs_is_not_forgotten(sshd: OpenSSH, tmp_path: Path) -> None:
    """`hosts remove` refuses while a job runs there and names it."""
    assert add(sshd, tmp_path, "--yes").returncode == 0
    driver = begin("run", playbook(tmp_path, SLEEPS.replace("local", "gpu1")), "--json")
    job = until(driver, job_runs)["id"]
    refused = turnout("hosts", "remove", "gpu1", "--yes")
    assert refused.returncode == 2
    assert job in refused.stderr
    assert turnout("kill", job, "--yes").returncode == 0
    driver.communicate(timeout=60)
    assert turnout("hosts", "remove", "gpu1", "--yes").returncode == 0
    assert hosts() == []
    assert turnout("doctor", "--json").returncode == 0


FACTS = {
    "os": "Ubuntu 24.04",
    "kernel": "6.8.0",
    "machine": "x86_64",
    "cpus": 128,
    "uptime_s": 3 * 86_400,
    "memory": {"total": 1 << 40, "available": 1 << 39},
    "disks": [
        {"name": "root", "path": "/data", "total": 100 << 30, "free": 2 << 30, "free_inodes": 10},
        {"name": "home", "path": "/home/op", "total": 100 << 30, "free": 2 << 30, "free_inodes": 10},
    ],
    "gpus": [
        {"index": 0, "name": "NVIDIA H200", "memory_total_mib": 143771, "memory_used_mib": 130000, "utilization": 97},
        {"index": 1, "name": "NVIDIA H200", "faulted": True, "fault": "GPU is lost"},
    ],
    "gpu_processes": [{"pid": 4242, "name": "/usr/bin/python3", "used_mib": 129000, "gpu": 0, "zombie": False}],
    "gpu_error": None,
    "gpu_remedy": None,
    "pythons": [{"path": "/opt/venv/bin/python", "version": "3.12", "packages": {"vllm": "0.11.0", "torch": "2.8"}}],
    "engines_running": [{"engine": "vllm", "pid": 4242, "argv": [], "ports": [8000], "job": None}],
    "warnings": ["GPU 1: broken, not leased"],
}


def test_the_picture_of_a_host_shows_who_is_where() -> None:
    """Disks that share a file system are one bar; each GPU shows its memory and its processes; faults stand out."""
    text = "\n".join(line.plain.rstrip() for line in lines("gpu1", FACTS))
    for expected in (
        "gpu1  Ubuntu 24.04 · 6.8.0 · x86_64 · 128 CPUs · up 3 d",
        "50%  512 GiB of 1.0 TiB",
        "98%  98.0 GiB of 100 GiB  /data, /home/op  almost no inodes left",
        "90%  127 GiB of 140 GiB  NVIDIA H200  97% busy",
        "pid 4242  python3  126 GiB",
        "broken: GPU is lost",
        "vllm 0.11.0  /opt/venv/bin/python",
        "vllm runs: pid 4242 on port 8000",
        "! GPU 1: broken, not leased",
    ):
        assert expected in text
    assert text.count("/data") == 1


def test_a_host_without_gpus_says_why() -> None:
    """What could not be read is told in the place where it would stand; nothing is invented."""
    console = Console(record=True, width=100)
    picture("cpu1", {"gpus": [], "gpu_error": "no `nvidia-smi` on the PATH", "disks": []}, console)
    assert "no `nvidia-smi` on the PATH" in console.export_text()
    picture("cpu1", {"gpus": [], "gpu_error": None, "usable_gpus": None}, console)
    assert "GPUs     unknown" in console.export_text()
    picture("cpu1", {"gpus": [], "gpu_error": None, "usable_gpus": []}, console)
    assert "GPUs     none" in console.export_text()


def test_the_list_of_hosts_says_why_gpus_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """A host without nvidia-smi is told apart from one that was never probed, and from one that has no GPU."""
    row = {"address": "", "settings": {}, "jobs": 0, "fingerprint": None, "probed": 1.0}
    hang = "nvidia-smi does not answer in 5 s: driver may hang"
    listing([
        {**row, "name": "a", "gpus": None, "gpu_error": "no `nvidia-smi` on the PATH"},
        {**row, "name": "b", "gpus": None, "gpu_error": hang},
        {**row, "name": "c", "gpus": None, "gpu_error": None, "probed": None},
        {**row, "name": "d", "gpus": 0, "gpu_error": None},
    ])  # fmt: skip
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "? (no nvidia-smi on the PATH)" in shown["a"]
    assert "? (nvidia-smi does not answer …)" in shown["b"]
    assert "? (not probed)" in shown["c"]
    assert "?" not in shown["d"]


@pytest.mark.parametrize(
    ("made", "mode", "said"),
    [
        (None, 0, "there is no private key"),
        ("hello\n", 0o600, "is no private key that can be used"),
        ("public", 0o600, "is no private key that can be used"),
        ("passphrase", 0o600, "Passphrase must be specified"),
        ("private", 0o644, "others may read the private key"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_before_the_host_is_asked(
    tmp_path: Path, made: str | None, mode: int, said: str
) -> None:
    """`--identity` must be a private key of one's own: else the host is not added, and the error names the file."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    texts = {
        "public": key.export_public_key().decode(),
        "private": key.export_private_key().decode(),
        "passphrase": key.export_private_key("pkcs8-pem", passphrase="secret").decode(),
    }
    file = tmp_path / "id"
    if made is not None:
        file.write_text(texts.get(made, made))
        file.chmod(mode)
    refused = turnout("hosts", "add", "gpu1", "nobody@127.0.0.1:1", "--identity", str(file), "--yes")
    assert refused.returncode == 2
    assert said in refused.stderr
    assert f"`{file}`" in refused.stderr
    assert hosts() == []
