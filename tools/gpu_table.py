"""Reads the boxes that plain `nvidia-smi` draws (cards, MIG devices, processes), of drivers from 3xx to 610.

A card takes two rows, three since MIG (driver 450): identity, readings, MIG mode. The process box has GI and CI columns
since then too. A text may hold many tables (`watch`, `-l`): each is one sample. Nothing is inferred from rows that are
cut; lines that are no box rows are passed over.

    part = parse_table(text)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tools.gpu_csv import Line, zombie
from tools.gpu_model import Gpu, GpuProcess, MigDevice, Part, fault, flag, fold_all, number, text, whole

_TITLE = re.compile(
    r"\|\s*NVIDIA-SMI\s+(?P<smi>[\w.]+)(?:\s+(?:Driver|KMD) Version:\s*(?P<driver>[\w.]+))?"
    r"(?:\s+CUDA (?:UMD )?Version:\s*(?P<cuda>[\w./]+))?"
)
_BUS_ID = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_IDENTITY = re.compile(r"\s*(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*")
_BUS = re.compile(rf"\s*(?P<bus>{_BUS_ID}|N/A|ERR!)\s+(?:On|Off|N/A|ERR!)\s*")
_VITALS = re.compile(
    r"\s*(?P<fan>N/A|ERR!|\d+%)\s*(?P<temp>N/A|ERR!|\d+C)\s+(?P<perf>N/A|ERR!|P\d+)\s+"
    r"(?P<power>N/A|ERR!|[\d.]+W)\s*/\s*(?P<limit>N/A|ERR!|[\d.]+W)\s*"
)
_MEMORY = re.compile(r"\s*(?P<used>[\d.]+ ?M[iI]?B|N/A|ERR!)\s*/\s*(?P<total>[\d.]+ ?M[iI]?B|N/A|ERR!)\s*")
_LOAD = re.compile(r"\s*(?P<load>\d+%|N/A|ERR!)\s+\S.*")
_MIG_IDS = re.compile(r"\s*(?P<gpu>\d{1,4})\s+(?P<gi>\d{1,4})\s+(?P<ci>\d{1,4})\s+(?P<dev>\d{1,4})\s*")
_PROCESS = re.compile(
    r"\|\s*(?P<gpu>\d{1,4})\s+(?:(?P<gi>\d+|N/A)\s+(?P<ci>\d+|N/A)\s+)?(?P<pid>\d{1,10})\s+"
    r"(?P<kind>[CGM](?:\+[CGM])*)\s+(?:(?P<name>\S.*?)\s+)?(?P<used>\d+ ?MiB|\d+ ?MB|N/A|ERR!)\s*\|"
)
# A box is some 90 columns wide: longer lines are no rows, and not worth a backtracking match.
_WIDEST = 300
_HEADS = ("Bus-Id", "Memory-Usage", "GPU-Util")


@dataclass(slots=True)
class _Table:
    """One sample: the cards and processes below one title."""

    driver: str | None = None
    cuda: str | None = None
    gpus: list[Gpu] = field(default_factory=list)
    processes: list[GpuProcess] = field(default_factory=list)
    lists_processes: bool = False

    def finished(self) -> Iterator[Gpu]:
        for gpu in self.gpus:
            mine = sum(1 for p in self.processes if p.gpu_index == gpu.index and "C" in (p.kind or ""))
            # A broken card lists none whoever holds it.
            known = self.lists_processes and not gpu.faulted
            yield replace(gpu, driver=self.driver, cuda=self.cuda, processes=mine if known else None)


def parse_table(table_text: str) -> Part:
    """`gpus` and `processes` in one or many nvidia-smi tables; each card once, however often it is drawn."""
    part = read_tables(list(enumerate(table_text.splitlines(), 1)))
    part.gpus = fold_all(part.gpus)
    return part


def read_tables(lines: Iterable[Line]) -> Part:
    """As `parse_table`, over numbered lines, and a card for each time it is drawn."""
    part = Part("nvidia-smi table")
    tables: list[_Table] = [_Table()]
    for at, raw in lines:
        line = raw.strip()
        if line[:1] != "|" or len(line) > _WIDEST:
            continue
        if title := _TITLE.match(line):
            tables.append(_Table(driver=title["driver"], cuda=text(title["cuda"] or "")))
            part.seen(at)
        elif _read_row(line, tables[-1]):
            part.seen(at)
    for table in tables:
        part.gpus += table.finished()
    part.processes = _latest(tables)
    part.counted = bool(part.gpus)
    if part.processes and not part.gpus:
        part.what = "nvidia-smi processes"
    return part


def _latest(tables: list[_Table]) -> list[GpuProcess]:
    """The processes of the last sample of each set of cards: what an earlier sample saw may have ended since."""
    processes: list[GpuProcess] = []
    covered: set[tuple[str | None, str | None]] = set()
    for table in reversed(tables):
        cards = {(gpu.bus_id, gpu.name) for gpu in table.gpus} or {(None, None)}
        if not cards & covered:
            processes = [*table.processes, *processes]
        covered |= cards
    return processes


def _read_row(line: str, table: _Table) -> bool:
    """Takes one box row into the table; False when it says nothing."""
    if process := _PROCESS.match(line):
        table.lists_processes = True
        table.processes.append(_process(process))
        return True
    if "No running processes found" in line:
        table.lists_processes = True
        return True
    cells = line.strip("|").split("|")
    if len(cells) == 3:
        return _read_card(cells, table)
    if len(cells) == 4 and table.gpus:
        return _read_mig_device(cells, table)
    return any(head in line for head in _HEADS)


def _process(row: re.Match[str]) -> GpuProcess:
    name = row["name"]
    return GpuProcess(
        pid=int(row["pid"]),
        name=text(name or ""),
        used_mib=whole(row["used"]),
        kind=row["kind"],
        gpu_index=int(row["gpu"]),
        gi=whole(row["gi"] or ""),
        ci=whole(row["ci"] or ""),
        zombie=zombie(name),
    )


def _read_card(cells: list[str], table: _Table) -> bool:
    identity, bus = _IDENTITY.fullmatch(cells[0]), _BUS.fullmatch(cells[1])
    if identity and bus:
        broken = "ERR!" if identity["name"] == "ERR!" or bus["bus"] == "ERR!" else fault("|".join(cells), telling=False)
        table.gpus.append(
            Gpu(
                index=int(identity["index"]),
                name=text(identity["name"]),
                bus_id=text(bus["bus"]),
                faulted=broken is not None,
                fault=broken,
            )
        )
        return True
    if not table.gpus:
        return False
    if not cells[0].strip() and not cells[1].strip():
        table.gpus[-1] = replace(table.gpus[-1], mig=flag(cells[2]))
        return True
    vitals = _VITALS.fullmatch(cells[0])
    if vitals:
        table.gpus[-1] = _with_vitals(table.gpus[-1], vitals, cells)
    return vitals is not None


def _with_vitals(gpu: Gpu, vitals: re.Match[str], cells: list[str]) -> Gpu:
    """The second row of a card. `ERR!` for the load alone is an old WSL driver, for the power alone a laptop: not a
    fault. For the fan it is one: those cards report a pending reset."""
    memory, load = _MEMORY.fullmatch(cells[1]), _LOAD.fullmatch(cells[2])
    words = [vitals["fan"], vitals["temp"], vitals["perf"]]
    lost = next((why for cell in cells if (why := fault(cell, telling=False))), None)
    broken = lost or gpu.fault or ("ERR! in the readings" if "ERR!" in words else None)
    used, total = (whole(memory["used"]), whole(memory["total"])) if memory else (None, None)
    return replace(
        gpu,
        temperature_c=whole(vitals["temp"]),
        pstate=text(vitals["perf"]),
        power_w=number(vitals["power"]),
        memory_used_mib=used,
        memory_total_mib=total,
        utilization=whole(load["load"]) if load else None,
        faulted=broken is not None,
        fault=broken,
    )


def _read_mig_device(cells: list[str], table: _Table) -> bool:
    ids, memory = _MIG_IDS.fullmatch(cells[0]), _MEMORY.fullmatch(cells[1])
    if not (ids and memory):
        return False
    device = MigDevice(
        gi=int(ids["gi"]),
        ci=int(ids["ci"]),
        device=int(ids["dev"]),
        memory_used_mib=whole(memory["used"]),
        memory_total_mib=whole(memory["total"]),
    )
    table.gpus = [
        replace(gpu, mig_devices=(*gpu.mig_devices, device)) if gpu.index == int(ids["gpu"]) else gpu
        for gpu in table.gpus
    ]
    return True
