"""What jobs reported over time: how fast they went, and the numbers in their log lines (loss, acceptance, tokens/s).

    for curve in curves(recording.entries):
        curve.job, curve.name, curve.points         # [(time, value), ...]
    measured("step 40 loss 5.31 accuracy 0.42, 310 tok/s")

A log line is free text, so only numbers beside a name that people plot are taken. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agent.replay import Entry

PLOTTED = re.compile(
    r"loss|acc|throughput|tok|rate|\blr\b|grad|perplex|\bppl\b|usage|running|queue|waiting|hit|speed|reward|score", re.I
)
"""Names of numbers that are worth a curve."""
_NAMED = re.compile(
    r"(?P<name>#?[A-Za-z][\w#/.%-]*(?: [A-Za-z#(][\w#/.%()-]*){0,4})\s?[:=]?\s?"
    r"(?P<number>[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)(?P<unit>\s?%|\s?[A-Za-z]+/s)?(?![\w:/])"
)
_SPEED = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?)\s?(?P<unit>[A-Za-z]{1,8}/s)(?!\w)")
MAX_CURVES = 48
MAX_NAME = 32


@dataclass(slots=True)
class Curve:
    """One number of one job. `points` are (seconds since the epoch, value), by time."""

    job: str
    name: str
    unit: str = ""
    points: list[tuple[float, float]] = field(default_factory=list)


def curves(entries: Iterable[Entry]) -> list[Curve]:
    """All curves of at least two points, in the order of their first. Counts become rates: units per second."""
    found: dict[tuple[str, str], Curve] = {}
    counted: dict[str, tuple[float, float]] = {}
    for entry in entries:
        if entry.kind != "job.reported":
            continue
        p, job = entry.payload, str(entry.payload.get("id"))
        done = p.get("done")
        if isinstance(done, (int, float)):
            before = counted.get(job)
            if before is not None and done > before[1] and entry.time > before[0]:
                unit = f"{p.get('unit') or 'units'}/s"
                curve = found.setdefault((job, "speed"), Curve(job, "speed", unit))
                curve.points.append((entry.time, (done - before[1]) / (entry.time - before[0])))
            counted[job] = entry.time, float(done)
        for name, (value, unit) in measured(str(p.get("line", ""))).items():
            curve = found.setdefault((job, name), Curve(job, name, unit))
            curve.points.append((entry.time, value))
    return [curve for curve in found.values() if len(curve.points) > 1][:MAX_CURVES]


def measured(line: str) -> dict[str, tuple[float, str]]:
    """The numbers of a log line that are worth a curve, by name, with their units."""
    found: dict[str, tuple[float, str]] = {}
    for match in _NAMED.finditer(line[:500]):
        name = match["name"].rpartition(". ")[2].strip(" .").lower()
        unit = (match["unit"] or "").strip()
        shown = name[-MAX_NAME:]
        if PLOTTED.search(name) and shown not in found:
            found[shown] = _number(match["number"]), unit
    for match in _SPEED.finditer(line[:500]):
        if not any(unit == match["unit"] for _, unit in found.values()):
            found.setdefault(match["unit"], (_number(match["number"]), match["unit"]))
    return found


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def rows(result: Any, *, least: int = 3, most: int = 64) -> dict[str, list[float]]:
    """The lists of numbers in a todo's result, by their keys joined with dots: what a chart of bars can show."""
    found: dict[str, list[float]] = {}

    def look(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                look(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list) and least <= len(value) <= most and all(type(n) in (int, float) for n in value):
            found[path] = [float(n) for n in value]

    look(result, "")
    return found
