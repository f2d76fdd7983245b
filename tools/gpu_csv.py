"""Reads the CSV of `nvidia-smi --query-gpu=...` and `--query-compute-apps=...`, any columns, with or without header.

Column names come from the header, else from a `--query-...=` in the command line that stands before the rows, else
from the caller; rows without any of them are read only as far as their cells name themselves (a UUID, a bus id, a
model name). Two columns of MiB without names stay unread: used and free look alike.

    parse_query_gpu("index, memory.used [MiB]\\n0, 1 MiB\\n")
    parse_compute_apps(text, columns=("gpu_uuid", "pid", "process_name", "used_memory"))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tools.gpu_model import Gpu, GpuProcess, Part, fault, flag, fold_all, number, text, whole

Line = tuple[int, str]

# nvidia-smi's own property names and their older spellings (`nvidia-smi --help-query-gpu`, drivers 450 to 610).
_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
    "kmd_version": "driver_version",
    "used_gpu_memory": "used_memory",
    "compute_capability": "compute_cap",
}
# A working card fills these in, so an error word there is about the card. See `gpu_model.fault`.
_TELLING = {"temperature.gpu", "utilization.gpu", "memory.used", "memory.total", "memory.free", "pstate"}
_COLUMN = re.compile(r"[a-z][\w.]*(?: \[[^\]]+\])?", re.IGNORECASE)
_COMMAND = re.compile(r"--query-(gpu|compute-apps|accounted-apps|[a-z-]+)[= ]\"?'?([\w.,]+)")
_UUID = re.compile(r"(?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F][0-9a-fA-F-]{7,}(?:/\d+/\d+)?")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_MODEL = re.compile(r"(?:NVIDIA|Tesla|GeForce|Quadro|GRID|TITAN|RTX|Orin|Thor)\b[\w .-]*")
_HEADERS = {
    "timestamp", "index", "count", "name", "uuid", "serial", "pci.bus_id", "driver_version", "pstate", "compute_cap",
    "power.draw", "used_memory", "process_name", "pid", "temperature.gpu", "fan.speed", "persistence_mode",
}  # fmt: skip
_FAMILIES = ("memory.", "utilization.", "temperature.", "clocks.", "power.", "mig.", "ecc.", "pci.", "pcie.", "vgpu")
# Rows about the past: processes that have ended, memory pages taken out of use.
_HISTORY = {"max_memory_usage", "retired_pages.address"}
_APPS = ("uuid", "pid", "process_name", "used_memory")
_ZOMBIE_NAMES = {"Unknown Error", "[Unknown Error]", "(null)"}


def parse_query_gpu(csv_text: str, columns: Sequence[str] | None = None) -> list[Gpu]:
    """The cards in `--query-gpu` output, one per card however often it is sampled."""
    return fold_all(read_csv(_lines(csv_text), columns).gpus)


def parse_compute_apps(csv_text: str, columns: Sequence[str] | None = None) -> list[GpuProcess]:
    """The rows of `--query-compute-apps` output; a row that hides its process (no permission) has `pid` `None`."""
    return read_csv(_lines(csv_text), columns or _APPS, keep_unknown=True).processes


def zombie(name: str | None) -> bool | None:
    """A process whose name the driver cannot read may be a context that outlived it. `[Not Found]` may as well be a
    process of another PID namespace: cannot be told."""
    if name is None or name == "[Not Found]":
        return None
    return name in _ZOMBIE_NAMES


def read_csv(lines: Iterable[Line], columns: Sequence[str] | None = None, *, keep_unknown: bool = False) -> Part:
    """All CSV rows among numbered lines, as rows: not yet folded into cards. Other lines are passed over."""
    part = Part("nvidia-smi csv")
    names = _canonical(columns) if columns else None
    for at, line in lines:
        if command := _COMMAND.search(line):
            names = _canonical(command[2].split(","))
            continue
        cells = line.split(",")
        if _is_header(cells):
            names = _canonical(cells)
            part.seen(at)
            continue
        found = _row(cells, names)
        if found is None:
            continue
        part.seen(at)
        if isinstance(found, Gpu):
            part.gpus.append(found)
            part.counted = True
            if names is None and len(part.gpus) == 1:
                part.notes.append("columns have no names here: give the header or the command, and more is read")
        elif found.pid is None and not keep_unknown:
            part.unknown_rows += 1
        else:
            part.processes.append(found)
    if (part.processes and not part.gpus) or part.unknown_rows:
        part.what = "nvidia-smi processes"
    return part


def _lines(csv_text: str) -> list[Line]:
    return list(enumerate(csv_text.splitlines(), 1))


def _canonical(columns: Iterable[str]) -> tuple[str, ...]:
    bare = (column.split(" [")[0].strip().lower() for column in columns)
    return tuple(_ALIASES.get(column, column) for column in bare)


def _is_header(cells: list[str]) -> bool:
    if not all(_COLUMN.fullmatch(cell.strip()) for cell in cells):
        return False
    return any(name in _HEADERS or (name.startswith(_FAMILIES) and "." in name) for name in _canonical(cells))


def _row(raw: list[str], names: tuple[str, ...] | None) -> Gpu | GpuProcess | None:
    cells = [cell.strip() for cell in raw]
    if len(cells) == 1 and not (names and len(names) == 1 and cells[0]):
        return None
    if names is None:
        names = _guess(cells)
        if names is None:
            return None
    if _HISTORY & set(names):
        return None
    if "pid" in names:
        return _process(_join_name(raw, names), names)
    if len(cells) > len(names) or not any(_plausible(cell) for cell in cells):
        return None
    if len(cells) < len(names):
        # The stream was cut: the last cell may be half a number.
        cells = cells[:-1]
    return _gpu(dict(zip(names, cells, strict=False)))


def _plausible(cell: str) -> bool:
    """Whether a cell can stand in CSV of nvidia-smi: prose with commas must not become a card."""
    shapes = number(cell) is not None or (cell[:1] == "[" and cell[-1:] == "]")
    return bool(shapes or cell == "N/A" or _UUID.fullmatch(cell) or _BUS.fullmatch(cell))


def _guess(cells: list[str]) -> tuple[str, ...] | None:
    """Names for a row that has none, as far as its cells tell."""
    if _UUID.fullmatch(cells[0]) and len(cells) >= 4 and (cells[1][:1] == "[" or whole(cells[1]) is not None):
        return _APPS
    names = ["" for _ in cells]
    for i, cell in enumerate(cells):
        if _UUID.fullmatch(cell):
            names[i] = "uuid"
        elif _BUS.fullmatch(cell):
            names[i] = "pci.bus_id"
        elif _MODEL.fullmatch(cell):
            names[i] = "name"
        elif cell.endswith("%"):
            names[i] = "utilization.memory" if "utilization.gpu" in names else "utilization.gpu"
        elif cell.endswith(" W") and "power.draw" not in names:
            names[i] = "power.draw"
    if not {"uuid", "pci.bus_id", "name"} & set(names):
        return None
    if not names[0] and whole(cells[0]) is not None and "." not in cells[0]:
        names[0] = "index"
    return tuple(names)


def _join_name(cells: list[str], names: tuple[str, ...]) -> list[str]:
    """A process name may hold commas and is not quoted: what is left over between the other columns is the name."""
    extra = len(cells) - len(names)
    column = "process_name" if "process_name" in names else "name"
    if extra <= 0 or column not in names:
        return cells
    at = names.index(column)
    return [*cells[:at], ",".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]


def _process(cells: list[str], names: tuple[str, ...]) -> GpuProcess | None:
    row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
    pid_cell = row.get("pid", "")
    if not _plausible(pid_cell):
        return None
    name = row.get("process_name", row.get("name", ""))
    pid = whole(pid_cell)
    return GpuProcess(
        pid=pid,
        name=text(name),
        used_mib=whole(row.get("used_memory", "")),
        gpu_uuid=text(row.get("uuid", "")),
        gpu_bus_id=text(row.get("pci.bus_id", "")),
        zombie=zombie(name or None) if pid is not None else None,
    )


def _gpu(row: dict[str, str]) -> Gpu:
    def cell(column: str) -> str:
        return row.get(column, "")

    broken = next((why for column, value in row.items() if (why := fault(value, telling=column in _TELLING))), None)
    return Gpu(
        index=whole(cell("index")),
        name=text(cell("name")),
        uuid=text(cell("uuid")),
        bus_id=text(cell("pci.bus_id")),
        memory_total_mib=whole(cell("memory.total")),
        # A card that asks for a reset reads 0 MiB: that is no measurement.
        memory_used_mib=None if broken else whole(cell("memory.used")),
        memory_free_mib=None if broken else whole(cell("memory.free")),
        utilization=whole(cell("utilization.gpu")),
        temperature_c=whole(cell("temperature.gpu")),
        power_w=number(cell("power.draw")),
        pstate=text(cell("pstate")),
        compute_capability=text(cell("compute_cap")),
        driver=text(cell("driver_version")),
        mig=flag(cell("mig.mode.current")),
        faulted=broken is not None,
        fault=broken,
    )
