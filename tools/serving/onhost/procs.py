"""Processes of this host as /proc tells them: trees, listeners, and which unit, container or job owns one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
from typing import Any, NamedTuple

_UNIT = re.compile(r"/([\w@.:\\-]+\.service)(?:/|$)")
_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{12,64})|/kubepods.*?([0-9a-f]{64})")
# Services that hold what people start by hand: such a process is its own, not the service's.
_SHELLS = re.compile(r"^(?:user@\d+|ssh|sshd|ssh@.*|cron|crond|docker|containerd|dbus|getty@.*)\.service$")
_WRAPPERS = ("bash", "sh", "dash", "zsh", "sudo", "su", "env", "timeout", "nohup", "tini", "dumb-init", "docker-init")
# Of the environment only what names devices, folders and switches; never what may be a secret.
_TELL = re.compile(
    r"^(?:CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE"
    r"|TRANSFORMERS_CACHE|TRANSFORMERS_OFFLINE|PYTHONPATH|VIRTUAL_ENV|LD_LIBRARY_PATH|NCCL_[A-Z_]+|OMP_NUM_THREADS"
    r"|GLOO_SOCKET_IFNAME|VLLM_(?!API_KEY)[A-Z0-9_]+)$"
)


class Refused(Exception):
    """What was asked cannot be done; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Process(NamedTuple):
    """A living process; `ticks` is its start, which tells it from a later one of the same number."""

    pid: int
    parent: int
    ticks: int
    argv: list[str]
    uid: int


def read(pid: int) -> Process | None:
    """The process, or nothing when there is none, or only its corpse."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            argv = os.fsdecode(file.read(1 << 17).rstrip(b"\0")).split("\0")
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else Process(pid, int(fields[1]), int(fields[19]), argv, owner)


def everyone() -> dict[int, Process]:
    """All living processes."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {one.pid: one for one in found if one is not None}


def tree(root: int, table: dict[int, Process] | None = None) -> list[Process]:
    """A process and all below it, parents first."""
    table = everyone() if table is None else table
    below: dict[int, list[int]] = {}
    for one in table.values():
        below.setdefault(one.parent, []).append(one.pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop(0)
        if pid in table:
            found.append(table[pid])
            waiting += below.get(pid, [])
    return found


def alive(processes: Iterable[Process]) -> list[Process]:
    """Those that still live."""
    now = [(one, read(one.pid)) for one in processes]
    return [one for one, seen in now if seen is not None and seen.ticks == one.ticks]


def listeners(port: int) -> list[tuple[str, str]]:
    """Address (as /proc writes it, its length tells IPv4 from IPv6) and inode of every socket that listens there."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        found += [(r[1].split(":")[0], r[9]) for r in rows if r[3] == "0A" and int(r[1].split(":")[1], 16) == port]
    return found


def sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return set()
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def owners(port: int) -> list[int]:
    """The processes that listen on a port."""
    wanted = {inode for _, inode in listeners(port)}
    return sorted(pid for pid in everyone() if sockets(pid) & wanted) if wanted else []


def holders(given: dict[str, Any]) -> dict[str, Any]:
    """Who listens on `port`: a line for each process, or for a socket whose process this user may not see."""
    found = [_line(pid) for pid in owners(int(given["port"]))]
    return {"holders": found or ["a process of another user"] * bool(listeners(int(given["port"])))}


def connections(pids: Iterable[int], port: int) -> int:
    """Established connections to a port that these processes hold; in a container that is its own port."""
    holders = list(pids)
    mine = {inode for pid in holders for inode in sockets(pid)}
    count = 0
    for path in (f"/proc/{pid}/net/{table}" for pid in holders[:1] for table in ("tcp", "tcp6")):
        try:
            with open(path) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        count += sum(r[3] == "01" and int(r[1].split(":")[1], 16) == port and r[9] in mine for r in rows)
    return count


def run(*words: str, limit_s: float = 30.0) -> str:
    """The output of a command; empty when it fails or is not there."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=limit_s)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def belongs(pid: int) -> dict[str, Any]:
    """The `unit` or `container` that a process runs in, as its control groups tell; neither for a plain process."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            text = file.read()
    except OSError:
        return {}
    held = _CONTAINER.search(text)
    if held:
        return {"container": (held.group(1) or held.group(2))[:12], "pod": "kubepods" in text}
    for line in text.splitlines():
        names = [name for name in _UNIT.findall(line) if not _SHELLS.match(name)]
        if names:
            return {"unit": names[-1], "user_unit": "/user@" in line}
    return {}


def systemctl(*words: str, user: bool = False) -> list[str]:
    """The command line of systemctl for a unit of the system or of the user."""
    return ["systemctl", *(["--user"] if user else []), *words]


def describe(given: dict[str, Any]) -> dict[str, Any]:
    """Who a server is: `pid` (or that of `unit`, `container`, or of who listens on `port`), argv, form, restart policy.

    `form` is `unit`, `container`, `pod` or `process`; `pattern` is what the server's command line has. Of the
    environment only what names devices and folders is told.
    """
    process = _server(_pid_of(given), str(given.get("pattern") or ""))
    pid = process.pid
    where = {"unit": given["unit"]} if given.get("unit") else belongs(pid)
    found: dict[str, Any] = {
        "pid": pid, "ticks": process.ticks, "argv": process.argv, "uid": process.uid, "cwd": _link(pid, "cwd"),
        "exe": _link(pid, "exe"), "env": _environment(pid), "form": "process", "unit": None, "container": None,
        "restart": None, "me": os.geteuid(), "parent": _line(process.parent),
    }  # fmt: skip
    if where.get("unit"):
        user = bool(where.get("user_unit"))
        restart = run(*systemctl("show", "-p", "Restart", "--value", where["unit"], user=user))
        file = run(*systemctl("show", "-p", "FragmentPath", "--value", where["unit"], user=user))
        found.update(form="unit", unit=where["unit"], user_unit=user, restart=restart or None, unit_file=file or None)
    elif where.get("container"):
        inspect = run("docker", "inspect", "-f", "{{json .HostConfig.RestartPolicy.Name}}", where["container"])
        found.update(form="pod" if where["pod"] else "container", container=where["container"])
        found["restart"] = json.loads(inspect) if inspect else None
        found["published"] = run("docker", "port", where["container"]).splitlines()
    return found


def _server(pid: int, pattern: str) -> Process:
    """The process, or the first below it whose command line matches: a unit or container may begin with a shell."""
    for process in tree(pid):
        if not pattern:
            return process
        if os.path.basename(process.argv[0]) not in _WRAPPERS and re.search(pattern, " ".join(process.argv)):
            return process
    if read(pid) is None:
        raise Refused(f"there is no process {pid}", "look again: it may have been restarted meanwhile")
    raise Refused(f"process {_line(pid)} is not the server that is looked for", "is it the right port, unit or host?")


def _pid_of(given: dict[str, Any]) -> int:
    if given.get("pid"):
        return int(given["pid"])
    if given.get("unit"):
        pid = run(*systemctl("show", "-p", "MainPID", "--value", given["unit"]))
        if pid.isdigit() and int(pid):
            return int(pid)
        raise Refused(f"the unit `{given['unit']}` runs no process", f"`systemctl status {given['unit']}`")
    if given.get("container"):
        pid = run("docker", "inspect", "-f", "{{.State.Pid}}", given["container"])
        if pid.isdigit() and int(pid):
            return int(pid)
        raise Refused(f"the container `{given['container']}` does not run", "`docker ps -a` lists them")
    found = owners(int(given["port"]))
    if not found:
        raise Refused(f"nobody listens on port {given['port']}", "is the port right, and may this user see it?")
    return found[0]


def _environment(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [os.fsdecode(part).partition("=") for part in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in pairs if _TELL.match(name)}


def _link(pid: int, name: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return None


def _line(pid: int) -> str:
    found = read(pid)
    return f"{pid} {' '.join(found.argv)[:200]}" if found else str(pid)
