"""What the machine is and what serves there now, in one answer: read, not judged.

Texts of `nvidia-smi` are returned as they are, each with a limit of five seconds; a tool that hangs in the driver is
asked once and left. Packages are found by their `dist-info` folders, so no interpreter is started and nothing imported.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import time
from typing import Any

from . import ending, proc, quick, slurm

GPU_COLUMNS = (
    "index,uuid,name,pci.bus_id,compute_cap,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu,"
    "power.draw,mig.mode.current,driver_version,pstate"
)
APP_COLUMNS = "gpu_uuid,pid,process_name,used_gpu_memory"
_LIMIT_S = 5.0
_PACKAGES = ("vllm", "sglang", "torch", "transformers", "flashinfer-python", "sgl-kernel")
_ENGINES = {
    "vllm": re.compile(r"(?:^|[/\s])vllm\s+serve\b|\bvllm\.entrypoints\.|^VLLM::"),
    "sglang": re.compile(r"\bsglang\.launch_server\b|(?:^|[/\s])sglang\s+serve\b|^sglang::"),
}
_WRAPPERS = ("bash", "sh", "dash", "zsh", "ssh", "sudo", "grep", "tmux", "screen", "nohup", "timeout", "env")
_PREFIXES = (
    "/usr", "/usr/local", "/opt/conda", "/opt/conda/envs/*", "/opt/venv", "/opt/*/venv", "/opt/*/.venv", "~/miniconda3",
    "~/miniconda3/envs/*", "~/miniforge3", "~/miniforge3/envs/*", "~/anaconda3", "~/anaconda3/envs/*", "~/.venv",
    "~/*venv*", "~/*/.venv", "~/*/venv", "~/.pyenv/versions/*", "~/.virtualenvs/*", "~/.local",
)  # fmt: skip


def facts(root: str) -> dict[str, Any]:
    """Everything; keys as written here. Sizes in bytes, times in seconds."""
    running = engines_running(root)
    return {
        "os": _os_name(), "kernel": platform.release(), "machine": platform.machine(), "hostname": platform.node(),
        "boot": proc.boot_id(), "now": time.time(), "uptime_s": float(_first_word("/proc/uptime") or 0),
        "cpus": len(os.sched_getaffinity(0)), "memory": _memory(), "disks": _disks(root), "gpu": gpu_texts(),
        "pythons": pythons([engine["argv"][0] for engine in running]), "engines_running": running,
        "shm": shared_memory(), "docker": _tool("docker"), "slurm": _tool("sbatch"),
        "partitions": slurm.partitions(),
        "systemd": os.path.isdir("/run/systemd/system"),
    }  # fmt: skip


def _os_name() -> str:
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            values = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    except OSError:
        return platform.system()
    return values.get("PRETTY_NAME", platform.system()).strip('"')


def _first_word(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().split(None, 1)[0]
    except (OSError, IndexError):
        return None


def _memory() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
    return {"total": values["MemTotal"], "available": values.get("MemAvailable", values["MemFree"])}


def _disks(root: str) -> list[dict[str, Any]]:
    found = []
    for name, path in (("root", root), ("home", os.path.expanduser("~")), ("shm", "/dev/shm"), ("tmp", "/tmp")):
        if os.path.isdir(path):
            room = os.statvfs(path)
            total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
            found.append({"name": name, "path": path, "total": total, "free": free, "free_inodes": room.f_favail})
    return found


def _tool(name: str) -> str | None:
    return shutil.which(name)


def gpu_texts() -> dict[str, Any]:
    """`query`, `apps` and `table`: the texts of nvidia-smi; `error` why they are missing. No retry, ever."""
    tool = shutil.which("nvidia-smi") or next(iter(glob.glob("/usr/*/nvidia/*/bin/nvidia-smi")), None)
    if tool is None:
        return {"error": "no `nvidia-smi` on the PATH"}
    found: dict[str, Any] = {"path": tool}
    asked: tuple[tuple[str, list[str]], ...] = (
        ("query", ["--query-gpu=" + GPU_COLUMNS, "--format=csv"]),
        ("apps", ["--query-compute-apps=" + APP_COLUMNS, "--format=csv"]),
        ("table", []),
    )
    for name, arguments in asked:
        result, bodies = quick.run([tool, *arguments], b"", _LIMIT_S, 1 << 20)
        if result["timed_out"]:
            found["error"] = f"nvidia-smi does not answer in {_LIMIT_S:.0f} s: driver may hang"
            break
        found[name] = (bodies[0] + bodies[1]).decode("utf-8", "replace")
        if result["rc"] != 0:
            said = (bodies[2] + bodies[3]).decode("utf-8", "replace").strip() or found[name].strip()
            found.setdefault("errors", {})[name] = "exit code {}: {}".format(result["rc"], said[:500])
    return found


def pythons(also: list[str]) -> list[dict[str, Any]]:
    """Interpreters in the usual places and those of running engines, with the packages that matter here."""
    prefixes = {os.path.realpath(p) for pattern in _PREFIXES for p in glob.glob(os.path.expanduser(pattern))}
    prefixes.update(os.path.dirname(os.path.dirname(path)) for path in also if os.path.isabs(path))
    found = []
    for prefix in sorted(prefixes):
        for library in sorted(glob.glob(os.path.join(prefix, "lib", "python3.*"))):
            version = os.path.basename(library)[len("python") :]
            program = os.path.join(prefix, "bin", "python" + version)
            if os.path.exists(program):
                found.append({"path": program, "version": version, "packages": packages(library)})
    return found


def packages(library: str) -> dict[str, str]:
    """The versions of the packages of interest below one `lib/python3.x`."""
    found = {}
    for folder in ("site-packages", "dist-packages"):
        for path in glob.glob(os.path.join(library, folder, "*.dist-info")):
            name, _, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
            if name.replace("_", "-").lower() in _PACKAGES:
                found[name.replace("_", "-").lower()] = version
    return found


def engines_running(root: str) -> list[dict[str, Any]]:
    """Processes whose command line is a vLLM or SGLang server or one of its workers, with the ports they listen on."""
    found = []
    listening = None
    for pid, process in sorted(proc.everyone().items()):
        argv = _argv(pid)
        line = " ".join(argv)
        name = next((name for name, pattern in _ENGINES.items() if pattern.search(line)), None)
        if name is None or os.path.basename(argv[0]) in _WRAPPERS:
            continue
        listening = _listening() if listening is None else listening
        found.append({
            "engine": name, "pid": pid, "parent": process.parent, "argv": argv, "job": proc.job_of(pid, root),
            "uid": _owner(pid), "ports": sorted({listening[inode] for inode in _sockets(pid) & set(listening)}),
        })  # fmt: skip
    return found


def _argv(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read(65536).rstrip(b"\0")).split("\0")
    except OSError:
        return [""]


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _listening() -> dict[str, int]:
    """Inode to port of every listening TCP socket (state 0A in /proc/net/tcp)."""
    found = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(path):
            with open(path) as file:
                for fields in (line.split() for line in file):
                    if fields[3] == "0A":
                        found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _sockets(pid: int) -> set[str]:
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return set()
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def shared_memory() -> list[dict[str, Any]]:
    """Files in /dev/shm of names that engines leave behind: size, age by this host's clock, and whether held."""
    paths = [path for path in glob.glob("/dev/shm/*") if ending.known_shm(path)]
    if not paths:
        return []
    held = {path for pid in proc.everyone() for path in proc.files_in(pid, "/dev/shm")}
    found = []
    for path in sorted(paths):
        try:
            info = os.stat(path)
        except FileNotFoundError:
            continue
        age = max(0.0, time.time() - info.st_mtime)
        found.append({"path": path, "size": info.st_size, "uid": info.st_uid, "age_s": age, "held": path in held})
    return found
