"""A host as a picture: memory, disks and GPUs as bars, who is on the GPUs, which engines there are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.text import Text

from agent.pace import ago, size
from agent.painter import plain
from agent.screen import screen
from agent.tables import Cell, columns

BAR = 20
FULL = 0.9
MIB = 1 << 20
WHY = 28
"""Characters of the reason why the GPUs of a host are unknown, in a list of hosts."""


def picture(name: str, facts: Mapping[str, Any], console: Console | None = None) -> None:
    """Print it."""
    out = console or screen()
    for line in lines(name, facts):
        out.print(line, soft_wrap=True)


def lines(name: str, facts: Mapping[str, Any]) -> Iterator[Text]:
    """The picture from what the probe found (`tools.probe.facts`)."""
    system = [facts.get("os"), facts.get("kernel"), facts.get("machine")]
    about = [plain(str(part)) for part in system if part]
    about += [f"{facts['cpus']} CPUs"] if facts.get("cpus") else []
    about += [f"up {ago(facts['uptime_s'])}"] if facts.get("uptime_s") else []
    yield Text.assemble((name, "bold"), "  ", " · ".join(about))
    memory = facts.get("memory")
    if memory:
        yield _row("memory", memory["total"] - memory["available"], memory["total"])
    yield from _disks(facts.get("disks", []))
    yield from _gpus(facts)
    yield from _engines(facts)
    yield from _slurm(facts.get("partitions", []))
    for warning in facts.get("warnings", []):
        yield Text(f"! {plain(warning)}", "bold yellow")


def _row(label: str, used: float, total: float, after: str = "") -> Text:
    share = used / total if total else 0.0
    return Text.assemble((f"{label:<9}", "dim"), bar(share), f" {share:4.0%}  {size(used)} of {size(total)}{after}")


def bar(share: float) -> Text:
    """A bar that turns red when it is nearly full."""
    full = round(BAR * min(1.0, max(0.0, share)))
    style = "red" if share >= FULL else "green"
    return Text.assemble(("━" * full, style), ("─" * (BAR - full), "dim"))


def _disks(disks: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """A line for each file system; folders on the same one share it."""
    seen: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for disk in disks:
        seen.setdefault((disk["total"], disk["free"]), []).append(disk)
    for number, ((total, free), same) in enumerate(seen.items()):
        where = ", ".join(plain(disk["path"]) for disk in same)
        few = "  almost no inodes left" if same[0].get("free_inodes", 1 << 20) < 1000 else ""
        yield _row("" if number else "disks", total - free, total, f"  {where}{few}")


def _gpus(facts: Mapping[str, Any]) -> Iterator[Text]:
    gpus = facts.get("gpus", [])
    if not gpus:
        yield Text.assemble(("GPUs".ljust(9), "dim"), plain(facts.get("gpu_error") or _no_gpus(facts)))
        return
    for gpu in gpus:
        key = gpu.get("index")
        text = Text(f"GPU {key if key is not None else '?'}".ljust(9), "dim")
        if gpu.get("faulted"):
            text.append(f"broken: {plain(gpu.get('fault') or '')}", "bold red")
        elif gpu.get("memory_used_mib") is None or not gpu.get("memory_total_mib"):
            text.append("memory unknown", "yellow")
        else:
            used, total = gpu["memory_used_mib"], gpu["memory_total_mib"]
            text.append_text(bar(used / total)).append(
                f" {used / total:4.0%}  {size(used * MIB)} of {size(total * MIB)}"
            )
        text.append(f"  {plain(gpu.get('name') or '')}")
        text.append(
            "".join(_reading(gpu, field, unit) for field, unit in (("utilization", "% busy"), ("temperature_c", "°C")))
        )
        yield text
        for process in facts.get("gpu_processes", []):
            if process["gpu"] == key:
                yield _process(process)
    if facts.get("gpu_error"):
        yield Text(f"! {plain(facts['gpu_error'])}", "bold red")
    if facts.get("gpu_remedy"):
        yield Text(f"  {plain(facts['gpu_remedy'])}", "green")


def _no_gpus(facts: Mapping[str, Any]) -> str:
    """Where no GPU is seen: whether there is none, or nobody can tell."""
    return "unknown" if facts.get("usable_gpus") is None else "none"


def _reading(gpu: Mapping[str, Any], field: str, unit: str) -> str:
    return f"  {gpu[field]}{unit}" if gpu.get(field) is not None else ""


def _process(process: Mapping[str, Any]) -> Text:
    held = f"  {size(process['used_mib'] * MIB)}" if process["used_mib"] is not None else ""
    name = os.path.basename(plain(process["name"] or "unknown"))
    dead = "  dead, but its memory is held" if process["zombie"] else ""
    return Text.assemble(" " * 9, (f"pid {process['pid']}  {name}{held}", ""), (dead, "bold red"))


def _engines(facts: Mapping[str, Any]) -> Iterator[Text]:
    found = [
        Text.assemble(f"{package} {version}", (f"  {plain(python['path'])}", "dim"))
        for python in facts.get("pythons", [])
        for package, version in python["packages"].items()
        if package in ("vllm", "sglang")
    ]
    for engine in facts.get("engines_running", []):
        ports = f" on port {', '.join(map(str, engine['ports']))}" if engine["ports"] else ""
        job = f", job {engine['job']}" if engine["job"] else ""
        found.append(Text(f"{engine['engine']} runs: pid {engine['pid']}{ports}{job}", "cyan"))
    for number, text in enumerate(found or [Text("none installed, none running", "dim")]):
        yield Text.assemble(("" if number else "engines").ljust(9), text)


def _slurm(partitions: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """A line for each partition that jobs can be given to."""
    for number, one in enumerate(partitions):
        nodes = one["nodes"]
        about = [f"{nodes.get('idle', 0)} of {nodes.get('total', 0)} nodes idle", f"time limit {one['limit']}"]
        about += [plain(one["gres"])] if one["gres"] else []
        name = f"{plain(one['name'])}{' (default)' if one['default'] else ''}"
        down = ("", "") if one["up"] else ("  down", "bold red")
        yield Text.assemble(("" if number else "Slurm").ljust(9), name, "  ", (" · ".join(about), "dim"), down)


def listing(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a host."""
    console = screen()
    if not rows:
        console.print("no host added; `local` is always there, `turnout hosts add NAME [USER@]ADDRESS` adds one")
        return
    table: list[list[Cell]] = []
    for row in rows:
        seen = f"{ago(time.time() - row['probed'])} ago" if row["probed"] else "never"
        table.append(
            [row["name"], _address(row), _number_of_gpus(row), str(row["jobs"]), seen, row["fingerprint"] or "none"]
        )
    columns(["host", "address", "GPUs", "jobs", "probed", "key"], table, console)


def _number_of_gpus(row: Mapping[str, Any]) -> str:
    """How many, or why nobody knows."""
    if row["settings"].get("slurm"):
        return "Slurm's"
    if row["gpus"] is not None:
        return str(row["gpus"])
    why = plain(row["gpu_error"] or ("unread" if row["probed"] else "not probed"))
    return f"? ({shorten(why.replace('`', ''), WHY, placeholder=' …')})"


def _address(row: Mapping[str, Any]) -> str:
    settings = row["settings"]
    user = f"{settings['user']}@" if settings.get("user") else ""
    return f"{user}{row['address'] or row['name']}" + (f":{settings['port']}" if settings.get("port") else "")
