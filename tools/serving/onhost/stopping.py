"""Ends a server: lets what runs finish, stops it the way it was started, and proves that nothing of it is left.

A unit is stopped by systemd and a container by docker, since whoever started it would start it again. After that the
host is watched for a moment: a server that comes back is told with its parent, and is not called stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any

from . import asking, gpus, procs

QUIET_S = 0.1
"""A server counts as drained when it says so for this long."""


def stop(given: dict[str, Any]) -> dict[str, Any]:
    """Stop the server that `pid`, `unit`, `container` or `port` names; the account of it.

    `drain_s`: how long running requests may take, see `drain`. `grace_s`: between TERM and
    KILL. `settle_s`: how long to watch whether it comes back. `ticks`: the start of the process that is meant.
    `unless_gone`: nobody there is an answer (`was_running` false), which is what a second run finds.
    """
    if given.get("unit"):  # whatever its process is by now
        given = {key: value for key, value in given.items() if key not in ("pid", "ticks")}
    try:
        found = procs.describe(given)
    except procs.Refused:
        if given.get("unless_gone"):
            return {"was_running": False, **_proof([], None, [])}
        raise
    if given.get("ticks") and found["ticks"] != given["ticks"]:
        return {"was_running": False, "note": f"process {found['pid']} is another one now", **_proof([], None, [])}
    family = procs.tree(found["pid"])
    before, shared = gpus.used_mib(), _shared(family)
    drained, known = drain(given, family), set(procs.everyone())
    began = time.monotonic()
    _end(found, family, float(given.get("grace_s") or 60))
    took = round(time.monotonic() - began, 3)
    account = {
        "was_running": True, "form": found["form"], "pid": found["pid"], "processes": len(family), **drained,
        "stop_s": took, **_proof(family, before, shared),
    }  # fmt: skip
    _settle(found, known, float(given.get("settle_s", 3)))
    return account


def drain(given: dict[str, Any], family: list[procs.Process]) -> dict[str, Any]:
    """Wait until no request runs: `drained` (nothing when that cannot be told), and how many were left.

    With a `url`, requests are counted by its metrics. Without one, or where they say nothing (a router keeps new
    requests off it, so it cannot be asked any more), connections to its `port` are: an engine closes those that are
    idle within some seconds.
    """
    limit, began, quiet = float(given.get("drain_s") or 0), time.monotonic(), 0.0
    left: float | None = None
    pids = [one.pid for one in family]
    while given.get("url") or given.get("port"):
        left = asking.busy(given["url"], given["busy"]) if given.get("url") else None
        if left is None and given.get("port"):
            left = procs.connections(pids, int(given["port"]))
        now = time.monotonic()
        if left is None:
            break
        quiet = quiet or now if left == 0 else 0.0
        if (quiet and now - quiet >= QUIET_S) or now - began >= limit:
            break
        time.sleep(0.02)
    return {
        "drained": None if left is None else left == 0, "requests_left": left,
        "drain_s": round(time.monotonic() - began, 3),
    }  # fmt: skip


def _end(found: dict[str, Any], family: list[procs.Process], grace_s: float) -> None:
    if found["form"] == "pod":
        raise procs.Refused(f"process {found['pid']} is in a pod", "scale its deployment to 0 with kubectl")
    if found["form"] == "unit":
        _do(procs.systemctl("stop", found["unit"], user=bool(found.get("user_unit"))), grace_s + 60)
    elif found["form"] == "container":
        _do(["docker", "stop", "-t", str(int(grace_s)), found["container"]], grace_s + 60)
    else:
        _terminate(found["pid"], family, grace_s)
    for process in procs.alive(family):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    _wait(family, 10.0)


def _terminate(pid: int, family: list[procs.Process], grace_s: float) -> None:
    """TERM to the server, which ends its own; once it has ended, to what it left (a shell ends without its child)."""
    end = time.monotonic() + grace_s
    for one in (pid, *(process.pid for process in family if process.pid != pid)):
        if one != pid and not any(process.pid == one for process in procs.alive(family)):
            continue
        try:
            os.kill(one, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise procs.Refused(f"process {one} is not ours to stop", "run as its user, or root") from error
        _wait([process for process in family if process.pid == one], end - time.monotonic())


def _do(words: list[str], limit_s: float) -> None:
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise procs.Refused(f"`{' '.join(words)}`: {error}", "run it by hand, with the rights it needs") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()[-400:]
        raise procs.Refused(f"`{' '.join(words)}` failed: {said}", "run it by hand, with the rights it needs")


def _wait(family: list[procs.Process], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while procs.alive(family) and time.monotonic() < end:
        time.sleep(0.02)


def _shared(family: list[procs.Process]) -> list[str]:
    """Files in /dev/shm that these processes hold."""
    found: set[str] = set()
    for process in family:
        try:
            with open(f"/proc/{process.pid}/maps") as file:
                paths = {line.split(None, 5)[5].rstrip("\n") for line in file if "/dev/shm/" in line}
        except OSError:
            continue
        found |= {path for path in paths if path.startswith("/dev/shm/") and not path.endswith("(deleted)")}
    return sorted(found)


def _proof(family: list[procs.Process], before: list[int] | None, shared: list[str]) -> dict[str, Any]:
    """Nothing is left: no process, no GPU memory held by one, no shared memory file of theirs."""
    left = procs.alive(family)
    if left:
        pids = ", ".join(str(one.pid) for one in left[:5])
        raise procs.Refused(
            f"{len(left)} processes do not die: {pids}",
            "one that hangs in the driver needs a reboot: `ps -o pid,stat,wchan -p PID`",
        )
    mine = {one.pid for one in family}
    end = time.monotonic() + 20
    while mine & set(gpus.holders()) and time.monotonic() < end:  # the driver gives memory back a little later
        time.sleep(0.2)
    still = sorted(mine & set(gpus.holders()))
    if still:
        raise procs.Refused(f"GPU memory is still held by {still}", "`nvidia-smi` shows it; a zombie needs a reboot")
    held = set(_shared(list(procs.everyone().values()))) if shared else set()
    removed = [path for path in shared if path not in held and _remove(path)]
    return {"gpu_before_mib": before, "gpu_after_mib": gpus.used_mib(), "shared_memory_removed": removed}


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _settle(found: dict[str, Any], known: set[int], seconds: float) -> None:
    """Watch whether the same command comes back. Raises Refused when it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        back = [one for one in procs.everyone().values() if one.argv == found["argv"] and one.pid not in known]
        if back:
            where = procs.belongs(back[0].pid)
            who = where.get("unit") or where.get("container") or "its parent, process " + procs._line(back[0].parent)
            raise procs.Refused(
                f"it was stopped and came back as process {back[0].pid}: restarted by {who}",
                "stop what restarts it, or name it: a systemd unit by `unit`, a container by `container`",
            )
        time.sleep(0.05)
