"""Reads any text about GPUs: which cards there are, which of them are broken, and who holds their memory.

Understood: nvidia-smi's table, CSV, `-L`, `-q`, `pmon`, `dmon`, `topo`, its error messages, gpustat lines, Xid lines of
the kernel log; several of them in one text; several hosts under headings or `host: ` prefixes. ROCm's tools are not
read. Nothing here runs a command: the live probe gives its output to `parse_query_gpu`, `parse_compute_apps` and
`parse_table`, which stand here for callers.

    reading = read(open("smi.txt").read())
    reading.usable, reading.faulted, reading.processes
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tools.gpu_csv import Line, parse_compute_apps, parse_query_gpu, read_csv
from tools.gpu_listing import read_listings
from tools.gpu_messages import FAULT, OFF_BUS, REMEDIES, RESET, Message, read_messages
from tools.gpu_model import HELD_MIB, Gpu, GpuProcess, MigDevice, Part, Reading, fold_all
from tools.gpu_table import parse_table, read_tables

__all__ = [
    "Gpu",
    "GpuProcess",
    "MigDevice",
    "Reading",
    "parse_compute_apps",
    "parse_query_gpu",
    "parse_table",
    "read",
]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_HEADING = re.compile(
    r"(?:={2,}>?|-{2,}>?|#{2,})\s*(?:host:?\s*)?(?P<host>[A-Za-z][\w.-]*)\s*(?:<?=+|<?-+|#+)|"
    r"(?P<ansible>[\w.-]+) \| (?:CHANGED|SUCCESS|FAILED)[^>]*>>"
)
_PREFIX = re.compile(r"(?P<host>[A-Za-z][\w.-]*): ?(?P<rest>.*)")
_NO_SUCH_PROCESS = re.compile(
    r"kill: (?:\()?(\d{1,10})\)?.*No such process|kill (\d{1,10})\D+no such process", re.IGNORECASE
)
_LINE_MAX = 20_000


def read(source: str) -> Reading:
    """What a text says about GPUs; `what` is `unknown` when it says nothing. Never raises on any text.

    A text joined from several by lines of `---` gives one reading a piece in `cases`.
    """
    clean = _ANSI.sub("", source).replace("\x00", "")
    lines = [(at, line[:_LINE_MAX]) for at, line in enumerate(clean.splitlines(), 1) if line.strip()]
    cases = tuple(case for piece in _pieces(lines) if (case := _read_piece(piece)).what != "unknown")
    if len(cases) < 2:
        return _read_piece(lines)
    counts = [case.gpu_count for case in cases]
    worst = next((case for case in cases if case.kind), cases[0])
    return Reading(
        what=cases[0].what,
        gpus=tuple(gpu for case in cases for gpu in case.gpus),
        processes=tuple(process for case in cases for process in case.processes),
        gpu_count=None if None in counts else sum(count or 0 for count in counts),
        unknown_rows=sum(case.unknown_rows for case in cases),
        kind=worst.kind,
        remedy=worst.remedy,
        evidence=tuple(line for case in cases for line in case.evidence),
        notes=(f"{len(cases)} texts joined by `---`: see `cases`",),
        parts=tuple(case.what for case in cases),
        cases=cases,
    )


def _pieces(lines: Sequence[Line]) -> list[list[Line]]:
    pieces: list[list[Line]] = [[]]
    for at, line in lines:
        if line.strip() == "---":
            pieces.append([])
        else:
            pieces[-1].append((at, line))
    return pieces


def _read_piece(lines: Sequence[Line]) -> Reading:
    parts = [part for host, group in _hosts(lines) for part in _parts(group, host)]
    parts.sort(key=lambda part: part.line)
    messages = read_messages(lines)
    if not parts and not messages:
        return Reading(what="unknown", notes=_foreign(lines))
    gpus = fold_all(gpu for part in parts for gpu in part.gpus)
    gpus = fold_all([*gpus, *(m.gpu for m in messages if m.gpu)])
    processes = _marked(_unique((process for part in parts for process in part.processes), gpus), lines)
    gpus = [_with_processes(gpu, processes, alone=len(gpus) == 1) for gpu in gpus]
    kind, remedy = _verdict(messages, gpus, processes)
    return Reading(
        what=parts[0].what if parts else messages[0].what,
        gpus=tuple(gpus),
        processes=tuple(processes),
        gpu_count=_count(parts, messages, gpus),
        unknown_rows=sum(part.unknown_rows for part in parts),
        kind=kind,
        remedy=remedy,
        evidence=tuple((m.line, m.text) for m in messages),
        notes=tuple(dict.fromkeys([*(note for part in parts for note in part.notes), *_notes(gpus, processes)])),
        parts=tuple(dict.fromkeys([*(part.what for part in parts), *(m.what for m in messages)])),
    )


def _hosts(lines: Sequence[Line]) -> list[tuple[str | None, list[Line]]]:
    """Lines by host: below headings (`== gpu1 ==`, `gpu1 | CHANGED | rc=0 >>`) or behind `gpu1: ` on every line."""
    prefixed = [(at, _PREFIX.fullmatch(line)) for at, line in lines]
    if len(prefixed) > 1 and all(found for _, found in prefixed):
        groups: dict[str | None, list[Line]] = {}
        for at, found in prefixed:
            if found:
                groups.setdefault(found["host"], []).append((at, found["rest"]))
        return list(groups.items())
    pieces: list[tuple[str | None, list[Line]]] = [(None, [])]
    for at, line in lines:
        if heading := _HEADING.fullmatch(line.strip()):
            pieces.append((heading["host"] or heading["ansible"], []))
        else:
            pieces[-1][1].append((at, line))
    return pieces


def _parts(lines: Sequence[Line], host: str | None) -> list[Part]:
    found = [part for part in (read_tables(lines), read_csv(lines), *read_listings(lines)) if part.line]
    for part in found if host else ():
        part.gpus = [replace(gpu, host=host) for gpu in part.gpus]
        part.processes = [replace(process, host=host) for process in part.processes]
    return found


def _unique(processes: Iterable[GpuProcess], gpus: Sequence[Gpu]) -> list[GpuProcess]:
    """Each process once a card, though a table names the card by index and CSV by UUID; later readings win."""
    known: dict[tuple[object, ...], GpuProcess] = {}
    for process in processes:
        card = next((gpu for gpu in gpus if gpu.host == process.host and _on(process, gpu, alone=False)), None)
        if card and process.gpu_index is None:
            process = replace(process, gpu_index=card.index)
        place = (card.key,) if card else (process.gpu_index, process.gpu_uuid, process.gpu_bus_id)
        known[(process.host, *place, process.pid)] = process
    return list(known.values())


def _marked(processes: list[GpuProcess], lines: Sequence[Line]) -> list[GpuProcess]:
    """A pid that `kill` does not know holds GPU memory without living: a leftover, or of another PID namespace."""
    gone = {int(found[1] or found[2]) for _, line in lines if (found := _NO_SUCH_PROCESS.search(line))}
    return [replace(process, zombie=True) if process.pid in gone else process for process in processes]


def _with_processes(gpu: Gpu, processes: Sequence[GpuProcess], *, alone: bool) -> Gpu:
    mine = [p for p in processes if p.host == gpu.host and _on(p, gpu, alone=alone) and "C" in (p.kind or "C")]
    return replace(gpu, processes=len(mine)) if gpu.processes is None and mine else gpu


def _on(process: GpuProcess, gpu: Gpu, *, alone: bool) -> bool:
    """Whether a process is on a card: by a name that both have; the only card has every process that fits it."""
    pairs = [(process.gpu_uuid, gpu.uuid), (process.gpu_bus_id, gpu.bus_id), (process.gpu_index, gpu.index)]
    known = [a == b for a, b in pairs if a is not None and b is not None]
    return all(known) if known else alone


def _count(parts: Sequence[Part], messages: Sequence[Message], gpus: Sequence[Gpu]) -> int | None:
    """How many cards there are. A list of processes, or one card of an unknown number, does not tell."""
    if not parts:
        return next((m.gpu_count for m in messages if m.gpu_count is not None), None)
    highest = max((gpu.index for gpu in gpus if gpu.index is not None), default=-1)
    listed = gpus and any(part.counted for part in parts) and not any(m.gpu for m in messages)
    return len(gpus) if listed and highest < len(gpus) else None


def _verdict(
    messages: Sequence[Message], gpus: Sequence[Gpu], processes: Sequence[GpuProcess]
) -> tuple[str | None, str | None]:
    if messages:
        return messages[0].kind, messages[0].remedy
    broken = next((gpu for gpu in gpus if gpu.faulted), None)
    if broken:
        said = (broken.fault or "").lower()
        kind = RESET if "reset" in said else OFF_BUS if "lost" in said or "bus" in said else FAULT
        return kind, f"GPU `{broken.key}` says `{broken.fault}`: {REMEDIES[kind]}"
    pids = [process.pid for process in processes if process.zombie]
    if pids:
        return (
            "gpu memory held by a dead process",
            f"pid {', '.join(map(str, pids))}: look for a child that keeps the context, then for who holds the device "
            "(`fuser -v /dev/nvidia*`, also outside the container); if nobody does, reset the card or reboot the host",
        )
    return None, None


def _notes(gpus: Sequence[Gpu], processes: Sequence[GpuProcess]) -> list[str]:
    notes = [
        f"GPU {gpu.key} holds {gpu.memory_used_mib} MiB but lists no process: another PID namespace, or a leftover"
        for gpu in gpus
        if gpu.processes == 0 and not gpu.mig and (gpu.memory_used_mib or 0) > HELD_MIB
    ]
    if sum(1 for gpu in gpus if gpu.key is None) > 1:
        notes.append("rows name no index, bus id or UUID: each is taken for a card, though they may be samples of one")
    if any(gpu.samples > 1 and not gpu.uuid and not gpu.bus_id for gpu in gpus):
        notes.append("cards are told apart by index only: repeated rows are taken for samples of one host")
    if any(process.zombie is None and process.pid for process in processes if process.name is None):
        notes.append("some processes have no readable name: they may live in another PID namespace")
    return notes


def _foreign(lines: Sequence[Line]) -> tuple[str, ...]:
    if any("ROCm System Management" in line or "ROCM-SMI" in line for _, line in lines[:50]):
        return ("this is rocm-smi output: AMD cards are not read",)
    return ()
