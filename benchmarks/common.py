"""What every benchmark shares: facts of the machine, how busy others keep it, medians, and the result file.

    with workplace() as folder, openssh(folder) as spec:
        ...
        save("remote", folder, [Aim("commands", rate, ">=", 100, "/s")], {"per_second": rate}, rounds=raw)

A result holds every raw figure beside what was made of it. It measures nothing itself and knows no benchmark.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.hosting import OpenSSH
from tools.ssh import HostSpec

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("anyio", "asyncssh", "cryptography", "sqlalchemy", "sqlmodel", "typer")
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure with what it should be: `value` against `bound`, `sense` being `<` or `>=`, in `unit`."""

    what: str
    value: float
    sense: str
    bound: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of its bound."""
        return self.value >= self.bound if self.sense == ">=" else self.value < self.bound


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder on disk that is gone afterwards; `TMPDIR` chooses the disk."""
    with tempfile.TemporaryDirectory(prefix="turnout-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def openssh(folder: Path) -> Iterator[HostSpec]:
    """A host behind an OpenSSH server of our own: own keys, default limits of sessions, and an empty home.

    The home keeps the rc files of whoever measures out of the figures: bash reads them for every command below sshd.
    """
    home = folder / "home"
    place = folder / "sshd"
    home.mkdir()
    place.mkdir()
    server = OpenSSH(
        place, {"SetEnv": f"HOME={home}", "MaxStartups": "100", "Subsystem": "sftp internal-sftp", "PermitUserRC": "no"}
    )
    server.start()
    try:
        yield server.spec(folder / "root")
    finally:
        server.stop()


def spec_to_json(spec: HostSpec) -> str:
    """For a contestant in a process of its own."""
    return json.dumps(dataclasses.asdict(spec))


def spec_from_json(text: str) -> HostSpec:
    """What `spec_to_json` wrote."""
    return HostSpec(**{**(fields := json.loads(text)), "tags": tuple(fields["tags"])})


# -- the machine


def machine(folder: Path) -> dict[str, Any]:
    """What the figures were taken on, with the cost of one fsync below `folder`, where databases and jobs lie."""
    cpu = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    total = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(total[1]) / 2**20, 1) if total else None,
        "kernel": platform.release(),
        "file_system": _file_system(folder),
        "fsync_ms": round(_fsync_ms(folder), 3),
    }


def _file_system(folder: Path) -> str:
    told = subprocess.run(["df", "--output=fstype", folder], capture_output=True, text=True, check=True)
    return told.stdout.split()[-1]


def _fsync_ms(folder: Path) -> float:
    """Median milliseconds of writing 4 KiB to a file and syncing it."""
    path, times = folder / "fsync", []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(times) * 1000


def versions() -> dict[str, str]:
    """Of Python, OpenSSH, and the libraries that the figures depend on."""
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.split()[0].strip(",")
    return {"python": platform.python_version(), "openssh": ssh, **{name: metadata.version(name) for name in LIBRARIES}}


def revision() -> str | None:
    """The commit that is measured, `-dirty` when the code differs from it; None outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    code = [*git, "status", "--porcelain", "state", "tools", "agent"]
    dirty = "-dirty" if commit and subprocess.run(code, capture_output=True, text=True).stdout else ""
    return commit + dirty or None


def idle() -> float:
    """The share of the processors that nobody uses while we only look, 0 to 1: how quiet the machine is."""
    before = _cpu_times()
    time.sleep(_LOOK_S)
    spent = [after - since for since, after in zip(before, _cpu_times(), strict=True)]
    return round((spent[3] + spent[4]) / max(1, sum(spent)), 2)


def wait_until_quiet(patience_s: float) -> float:
    """Wait, at most so long, for the machine to be nine tenths idle three looks in a row; the last look."""
    deadline = time.monotonic() + patience_s
    quiet, share = 0, idle()
    while quiet < 3 and time.monotonic() < deadline:
        share = idle()
        quiet = quiet + 1 if share >= 0.9 else 0
    return share


def _cpu_times() -> list[int]:
    """Ticks of user, nice, system, idle, iowait, irq, softirq, steal since boot, over all processors (proc(5))."""
    return [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def peak_mb() -> float:
    """The most memory this process ever held, in MB of 10^6 bytes. Not `ru_maxrss`: that inherits the parent's."""
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return round(int(peak[1]) * 1024 / 1e6, 1)


def memory_mb(pid: int, what: str = "Rss") -> float:
    """`Rss` or `Pss` of a process now, in MB of 10^6 bytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{what}:\s*(\d+) kB", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """Seconds of a processor that a process and its ended children have used: fields 14 to 17 of its stat (proc(5))."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, stat[stat.rindex(")") + 2 :].split()[11:15])) / os.sysconf("SC_CLK_TCK")


# -- results


def median(values: Sequence[float]) -> float:
    """The median, to four significant figures: the rest is noise."""
    return significant(statistics.median(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed."""
    return significant(sorted(values)[min(len(values) - 1, int(share * len(values)))])


def significant(value: float) -> float:
    """`value` to four significant figures."""
    return float(f"{value:.4g}")


def save(name: str, folder: Path, aims: Sequence[Aim], figures: Mapping[str, Any], **more: Any) -> Path:
    """Write `results/<name>.json`, print the aims, and bring the tables of docs/benchmarks.md up to date."""
    from benchmarks import report  # it reads what is written here

    result = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(folder),
        "load": os.getloadavg(),
        "revision": revision(),
        "versions": versions(),
        "aims": [{**dataclasses.asdict(aim), "met": aim.met} for aim in aims],
        "figures": figures,
        **more,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(report.table_of(result)))
    report.write()
    return path
