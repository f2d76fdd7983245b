"""The tools that benchmarks/remote.py is compared with, each driven the fastest way it offers.

    PEERS/bin/python benchmarks/peers.py ansible-raw HOST.json 50

Runs with the Python of the environment that holds the peers, so it imports nothing of Turnout. Prints one JSON line,
like benchmarks/contestants.py. Libraries connect before their clock starts; for programs the
clock includes their start, as an operator would wait for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HOSTS = 8
"""Connections of those that take one for each entry of a list of hosts; OpenSSH sheds handshakes above 10 at once."""


def openssh_mux(host: dict[str, Any], count: int, folder: Path) -> tuple[float, int]:
    """One ControlMaster and `xargs -P8`: what a shell script can do."""
    (folder / "known").write_text(f"[{host['address']}]:{host['port']} {host['host_key']}\n")
    ssh = [
        "ssh", "-F", "none", "-S", str(folder / "mux"), "-i", host["identity"], "-p", str(host["port"]),
        "-o", f"UserKnownHostsFile={folder / 'known'}", f"{host['user']}@{host['address']}",
    ]  # fmt: skip
    subprocess.run([ssh[0], "-M", "-N", "-f", *ssh[1:]], check=True)
    began = time.perf_counter()
    numbers = "\n".join(map(str, range(count)))
    command = ["xargs", "-P8", "-I{}", *ssh, "true"]
    done = subprocess.run(command, input=numbers, text=True, stderr=subprocess.PIPE)
    seconds = time.perf_counter() - began
    subprocess.run([*ssh[:5], "-O", "exit", ssh[-1]], check=True, stderr=subprocess.DEVNULL)
    return seconds, len(done.stderr.splitlines())


def parallel_ssh(host: dict[str, Any], count: int, folder: Path) -> tuple[float, int]:
    """`ParallelSSHClient` over eight entries for the same host, whose connections it keeps from round to round."""
    from pssh.clients import ParallelSSHClient

    client = ParallelSSHClient(
        [host["address"]] * HOSTS, user=host["user"], port=host["port"], pkey=host["identity"], allow_agent=False
    )

    def a_round() -> int:
        outputs = client.run_command("true")
        client.join(outputs)
        return sum(output.exit_code != 0 for output in outputs)

    a_round()
    began = time.perf_counter()
    failures = sum(a_round() for _ in range(count // HOSTS))
    return time.perf_counter() - began, failures


def fabric(host: dict[str, Any], count: int, folder: Path) -> tuple[float, int]:
    """Eight `Connection`s, each in a thread of its own; more sessions on fewer connections made errors."""
    from fabric import Connection

    links = [
        Connection(
            host["address"], host["user"], host["port"],
            connect_kwargs={"key_filename": host["identity"], "allow_agent": False, "look_for_keys": False},
        )
        for _ in range(HOSTS)
    ]  # fmt: skip

    def run(link: Connection, times: int) -> int:
        return sum(not link.run("true", hide=True, warn=True).ok for _ in range(times))

    with ThreadPoolExecutor(HOSTS) as pool:
        list(pool.map(run, links, [1] * HOSTS))
        began = time.perf_counter()
        failures = sum(pool.map(run, links, [count // HOSTS] * HOSTS))
        seconds = time.perf_counter() - began
    for link in links:
        link.close()
    return seconds, failures


def ansible(host: dict[str, Any], count: int, folder: Path, module: str) -> tuple[float, int]:
    """One ad-hoc call over `count` aliases of the host, eight forks, shared connections and pipelining on."""
    common = (
        f"ansible_host={host['address']} ansible_port={host['port']} ansible_user={host['user']} "
        f"ansible_ssh_private_key_file={host['identity']} ansible_python_interpreter=/usr/bin/python3"
    )
    (folder / "hosts").write_text("".join(f"alias{n} {common}\n" for n in range(count)))
    settings = {
        "ANSIBLE_HOST_KEY_CHECKING": "false", "ANSIBLE_PIPELINING": "true", "ANSIBLE_HOME": str(folder),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }  # fmt: skip
    program = str(Path(sys.executable).with_name("ansible"))
    command = [program, "all", "-i", str(folder / "hosts"), "-m", module, "-a", "true", "-f", str(HOSTS), "-o"]
    began = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    return seconds, count - sum("rc=0" in line for line in done.stdout.splitlines())


LIBRARIES = ("parallel-ssh", "fabric")
PEERS: dict[str, Callable[[dict[str, Any], int, Path], tuple[float, int]]] = {
    "openssh-mux": openssh_mux,
    "parallel-ssh": parallel_ssh,
    "fabric": fabric,
    "ansible-raw": lambda host, count, folder: ansible(host, count, folder, "raw"),
    "ansible-command": lambda host, count, folder: ansible(host, count, folder, "command"),
}


def main() -> None:
    """Run the peer that the command line names."""
    name, host, count = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="tb-") as folder:
        seconds, failures = PEERS[name](json.loads(Path(host).read_text()), int(count), Path(folder))
    told: dict[str, Any] = {"seconds": seconds, "failures": failures}
    if name in LIBRARIES:  # of programs this process is only the one that started them
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        told["peak_mb"] = round(int(peak.split()[1]) * 1024 / 1e6, 1)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
