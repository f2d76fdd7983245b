"""Reads the line-wise texts about GPUs: `nvidia-smi -L`, `-q`, `pmon`, `dmon`, `topo -m`, and gpustat.

The two boxes and the CSV have readers of their own (`gpu_table`, `gpu_csv`). XML is not read.

    for part in read_listings(lines): ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tools.gpu_csv import Line, zombie
from tools.gpu_model import Gpu, GpuProcess, MigDevice, Part, fault, flag, number, text, whole

_LISTED = re.compile(r"GPU (?P<index>\d{1,4}): (?P<name>.*\S)\s+\(UUID: (?P<uuid>[^)]+)\)")
_LISTED_MIG = re.compile(r"MIG (?P<profile>\S+)\s+(?:Device\s+)?(?P<device>\d{1,4}):\s+\(UUID: (?P<uuid>[^)]+)\)")
_GPUSTAT = re.compile(
    r"\[(?P<index>\d{1,4})\]\s*(?P<name>[^|]+)\|\s*(?P<temp>\d+|\?+|N/A)\s*(?:'C|°C)?[^|,]*"
    r"(?:,\s*(?P<load>\d+|\?+|N/A)\s*%)?[^|]*\|\s*(?P<used>\d+|\?+)\s*/\s*(?P<total>\d+|\?+)\s*MB\s*(?:\|(?P<users>.*))?"
)
_USER = re.compile(r"(?P<who>[^\s()]+|\(null\))\((?P<used>\d+)M\)|(?P<alone>\(null\))")
_SECTION = re.compile(r"GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
_INDEX = re.compile(r"\d{1,4}")
_TOPO = re.compile(r"GPU(?P<index>\d{1,4})\s+(?:X|NV\d+|SYS|NODE|PHB|PXB|PIX)\s")


def read_listings(lines: Sequence[Line]) -> Iterator[Part]:
    """A part for each kind of listing found among numbered lines."""
    for reader in (_list, _gpustat, _query, _monitor, _topo):
        part = reader(lines)
        if part.line:
            yield part


def _list(lines: Sequence[Line]) -> Part:
    part = Part("nvidia-smi list", counted=True)
    for at, line in lines:
        if found := _LISTED.match(line.strip()):
            part.gpus.append(Gpu(index=int(found["index"]), name=found["name"], uuid=found["uuid"]))
            part.seen(at)
        elif part.gpus and (mig := _LISTED_MIG.match(line.strip())):
            device = MigDevice(device=int(mig["device"]), uuid=mig["uuid"], profile=mig["profile"])
            card = part.gpus.pop()
            part.gpus.append(
                Gpu(
                    index=card.index,
                    name=card.name,
                    uuid=card.uuid,
                    mig=True,
                    mig_devices=(*card.mig_devices, device),
                )
            )
    return part


def _gpustat(lines: Sequence[Line]) -> Part:
    part = Part("gpustat", counted=True)
    for at, line in lines:
        found = _GPUSTAT.match(line.strip())
        if not found:
            continue
        part.seen(at)
        index, users = int(found["index"]), list(_USER.finditer(found["users"] or ""))
        for user in users:
            name = user["who"] or user["alone"]
            pid = re.search(r"/(\d{1,10})$", name)
            if pid:
                process = GpuProcess(
                    pid=int(pid[1]),
                    name=text(name[: pid.start()]),
                    used_mib=whole(user["used"] or ""),
                    gpu_index=index,
                    zombie=zombie(name[: pid.start()]),
                )
                part.processes.append(process)
            if "(null)" in name:
                part.notes.append(f"GPU {index} is held by a process without a name or an owner: it may have ended")
        part.gpus.append(
            Gpu(
                index=index,
                name=text(found["name"]),
                temperature_c=whole(found["temp"]),
                utilization=whole(found["load"] or ""),
                memory_used_mib=whole(found["used"]),
                memory_total_mib=whole(found["total"]),
                processes=len(users) if found["users"] is not None else None,
            )
        )
    return part


def _query(lines: Sequence[Line]) -> Part:
    """`nvidia-smi -q`: indented `key : value` below a line `GPU <bus id>`."""
    part = Part("nvidia-smi query", counted=True)
    head: dict[str, str] = {}
    section: dict[str, list[str]] | None = None
    sections: list[tuple[str, dict[str, list[str]]]] = []
    path: list[tuple[int, str]] = []
    for at, line in lines:
        if found := _SECTION.fullmatch(line.strip()):
            section, path = {}, []
            sections.append((found["bus"], section))
            part.seen(at)
            continue
        key, colon, value = (word.strip() for word in line.partition(":"))
        depth = len(line) - len(line.lstrip())
        if section is None:
            head[key] = value
        elif depth == 0 and key and not colon:
            section = None
        elif key:
            path = [(d, k) for d, k in path if d < depth] + [(depth, key)]
            section.setdefault("/".join(k for _, k in path), []).append(value)
    for bus, fields in sections:
        _card(bus, fields, head, part)
    return part


def _card(bus: str, fields: dict[str, list[str]], head: dict[str, str], part: Part) -> None:
    def one(*paths: str) -> str:
        return next((fields[path][0] for path in paths if path in fields), "")

    broken = _fault(fields, one("GPU Recovery Action"))
    processes = _held_by(bus, fields)
    part.processes += processes
    part.gpus.append(
        Gpu(
            bus_id=bus,
            name=text(one("Product Name")),
            uuid=text(one("GPU UUID")),
            memory_total_mib=whole(one("FB Memory Usage/Total")),
            memory_used_mib=whole(one("FB Memory Usage/Used")),
            memory_free_mib=whole(one("FB Memory Usage/Free")),
            utilization=whole(one("Utilization/GPU", "Utilization/Gpu")),
            temperature_c=whole(one("Temperature/GPU Current Temp")),
            power_w=number(one("GPU Power Readings/Instantaneous Power Draw", "Power Readings/Power Draw")),
            pstate=text(one("Performance State")),
            driver=text(head.get("KMD Version", head.get("Driver Version", "")).split(" [")[0]),
            cuda=text(head.get("CUDA UMD Version", head.get("CUDA Version", "")).split(" [")[0]),
            mig=flag(one("MIG Mode/Current")),
            mig_devices=_mig_devices(fields),
            processes=sum("C" in (p.kind or "") for p in processes) if "Processes" in fields else None,
            faulted=broken is not None,
            fault=broken,
        )
    )


def _held_by(bus: str, fields: dict[str, list[str]]) -> list[GpuProcess]:
    columns = [fields.get(f"Processes/Process ID{key}", []) for key in ("", "/Name", "/Used GPU Memory", "/Type")]
    return [
        GpuProcess(
            pid=whole(pid), name=text(name), used_mib=whole(used), kind=kind, gpu_bus_id=bus, zombie=zombie(name)
        )
        for pid, name, used, kind in zip_longest(*columns, fillvalue="")
    ]


def _fault(fields: dict[str, list[str]], recovery: str) -> str | None:
    """Any value that says reset or lost, an error word for a reading, or what the driver itself recommends."""
    for path, values in fields.items():
        telling = path.endswith(("GPU Current Temp", "Utilization/GPU", "Utilization/Gpu", "Performance State"))
        for value in values:
            if why := fault(value, telling=telling):
                return why
    return None if recovery in ("", "None", "N/A") else f"driver asks for recovery action `{recovery}`"


def _mig_devices(fields: dict[str, list[str]]) -> tuple[MigDevice, ...]:
    def at(i: int, *paths: str) -> int | None:
        column = next((fields[f"MIG Device/{path}"] for path in paths if f"MIG Device/{path}" in fields), [])
        return whole(column[i]) if i < len(column) else None

    return tuple(
        MigDevice(
            device=whole(index),
            gi=at(i, "GPU Instance ID"),
            ci=at(i, "Compute Instance ID"),
            memory_used_mib=at(i, "Shared FB Memory Usage/Used", "FB Memory Usage/Used"),
            memory_total_mib=at(i, "Shared FB Memory Usage/Total", "FB Memory Usage/Total"),
        )
        for i, index in enumerate(fields.get("MIG Device/Index", []))
    )


def _monitor(lines: Sequence[Line]) -> Part:
    """`nvidia-smi dmon` and `pmon`: rows below `# gpu ...`. `-` is not measured, and a `-` pid is no process."""
    part = Part("nvidia-smi dmon", counted=True)
    columns: list[str] = []
    processes: dict[tuple[int | None, int], GpuProcess] = {}
    for at, line in lines:
        words = line.split()
        if len(words) > 3 and (words[:2] == ["#", "gpu"] or words[0] == "#gpu"):
            columns = words[1:] if words[0] == "#" else ["gpu", *words[1:]]
            part.what = "nvidia-smi pmon" if "pid" in columns else "nvidia-smi dmon"
            part.seen(at)
        elif columns and len(words) >= len(columns) and _INDEX.fullmatch(words[0]):
            row = dict(zip(columns, [*words[: len(columns) - 1], " ".join(words[len(columns) - 1 :])], strict=True))
            index, pid = int(row["gpu"]), whole(row.get("pid", ""))
            if pid is not None:
                name = text(row.get("command", ""))
                used = whole(row.get("fb", ""))
                kind = text(row.get("type", ""))
                processes[index, pid] = GpuProcess(pid=pid, name=name, used_mib=used, kind=kind, gpu_index=index)
            load = None if "pid" in row else whole(row.get("sm", ""))
            temperature = whole(row.get("gtemp", row.get("temp", "")))
            used = whole(row.get("fb", "")) if "pid" not in row else None
            power = number(row.get("pwr", ""))
            gpu = Gpu(index=index, utilization=load, temperature_c=temperature, power_w=power, memory_used_mib=used)
            # pmon has a row for each process: those are no samples of the card.
            if "pid" not in row or all(known.index != index for known in part.gpus):
                part.gpus.append(gpu)
    part.processes = list(processes.values())
    return part


def _topo(lines: Sequence[Line]) -> Part:
    part = Part("nvidia-smi topo", counted=True)
    for at, line in lines:
        if found := _TOPO.match(line.strip()):
            part.gpus.append(Gpu(index=int(found["index"])))
            part.seen(at)
    return part
