"""What is known about GPUs: the values that every reader of GPU text fills in.

Unknown is `None`, never 0: a driver that will not say how much memory is used has not said that none is. Nothing here
reads text except single cells (`number`, `fault`); the readers are `gpu_csv`, `gpu_table`, `gpu_listing` and, over
them all, `gpus`.

    gpu = Gpu(index=0, memory_used_mib=20755, utilization=6)
    fold([gpu, later_sample_of_the_same_card])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

# Below this a card counts as empty: the driver, ECC tables, MIG bookkeeping and a desktop take some hundred MiB.
HELD_MIB = 1024
# Below this a card counts as resting: an idle server still shows a few per cent now and then.
BUSY_PERCENT = 10

_NUMBER = re.compile(r"([-+]?\d{1,15}(?:\.\d{1,9})?)\s*(%|MiB|MB|GiB|GB|KiB|W|C|MHz|us|ms)?")
_TO_MIB = {"GiB": 1024.0, "GB": 1024.0, "KiB": 1 / 1024}
_LOST = re.compile(r"requires reset|is lost|fallen off the bus|no longer on the bus", re.IGNORECASE)
_BROKEN = re.compile(r"ERR!|\[?Unknown Error\]?", re.IGNORECASE)


def number(cell: str) -> float | None:
    """The number in one cell, `None` for `[N/A]`, `ERR!`, a bracketed word or a value cut in its unit (`20755 Mi`).

    GiB and KiB become MiB; other units are dropped (NVML's "MB" is MiB).
    """
    found = _NUMBER.fullmatch(cell.strip())
    return float(found[1]) * _TO_MIB.get(found[2] or "", 1.0) if found else None


def whole(cell: str) -> int | None:
    """`number`, rounded: memory in MiB, utilization in percent, an index, a pid."""
    value = number(cell)
    return None if value is None else round(value)


def text(cell: str) -> str | None:
    """The words of a cell, `None` when it only says that they are not known."""
    cell = cell.strip()
    unknown = not cell or cell in {"-", "N/A", "ERR!", "(null)"} or (cell[0] == "[" and cell[-1] == "]")
    return None if unknown else cell


def flag(cell: str) -> bool | None:
    """`Enabled`, `Disabled` or unknown; a pending change (`Enabled*`) reads as what holds now."""
    return {"enabled": True, "disabled": False}.get(cell.strip().rstrip("*").lower())


def fault(cell: str, *, telling: bool) -> str | None:
    """What a cell says of a broken card, or `None`.

    `telling` is true for cells that every working card fills in (temperature, memory, utilization). Fan and power
    read `ERR!` or `[Unknown Error]` on healthy laptops and virtual machines, so there those words prove nothing.
    """
    found = _LOST.search(cell) or (_BROKEN.search(cell) if telling else None)
    return cell.strip().strip("[]") if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A compute instance of a card in MIG mode. Devices with the same `gi` share one memory pool: count it once."""

    gi: int | None = None
    ci: int | None = None
    device: int | None = None
    uuid: str | None = None
    profile: str | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds GPU memory. `zombie`: True suspected, False not, `None` cannot be told from the text."""

    pid: int | None = None
    name: str | None = None
    used_mib: int | None = None
    kind: str | None = None
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    gpu_bus_id: str | None = None
    gi: int | None = None
    ci: int | None = None
    zombie: bool | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card as last seen. Memory in MiB, utilization in percent, temperature in degrees Celsius, power in watts.

    `peak_*` are the highest values over `samples` readings. `processes` counts compute processes; `None` when the
    text lists no processes at all.
    """

    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    host: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    utilization: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    pstate: str | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    faulted: bool = False
    fault: str | None = None
    processes: int | None = None
    samples: int = 1
    peak_utilization: int | None = None
    peak_memory_used_mib: int | None = None

    @property
    def key(self) -> int | str | None:
        """The shortest thing that names this card to a person: index, else bus id, else UUID."""
        return self.index if self.index is not None else self.bus_id or self.uuid

    @property
    def busy(self) -> bool | None:
        """Seen in use: memory held, work done or a process there. `None` when neither memory nor load is known."""
        if self.processes or _above(self._peak_used, HELD_MIB) or _above(self._peak_load, BUSY_PERCENT):
            return True
        return None if self._peak_used is None and self._peak_load is None else False

    @property
    def idle(self) -> bool | None:
        """Free to take. Only memory and processes over several samples prove it: load flaps between 0 and 100 %."""
        if self.busy or self.faulted:
            return False
        return True if self.samples > 1 and self._peak_used is not None else None

    @property
    def _peak_used(self) -> int | None:
        return _highest(self.peak_memory_used_mib, self.memory_used_mib)

    @property
    def _peak_load(self) -> int | None:
        return _highest(self.peak_utilization, self.utilization)

    def same_card(self, other: Gpu) -> bool:
        """Whether no identity contradicts and one agrees. Model and size count too: identical hosts repeat bus ids."""
        if self.name and other.name and not _same_name(self.name, other.name):
            return False
        fixed: list[tuple[object, object]] = [(self.host, other.host), (self.memory_total_mib, other.memory_total_mib)]
        names = [(self.uuid, other.uuid), (self.bus_id, other.bus_id), (self.index, other.index)]
        if not any(a is not None and b is not None for a, b in names[:2]):
            # Only the index is left, which each host counts from 0: let the settings speak as well.
            fixed += [(self.mig, other.mig), (self.driver, other.driver)]
        known = [(a, b) for a, b in names if a is not None and b is not None]
        return bool(known) and all(a == b for a, b in known + [f for f in fixed if None not in f])

    @property
    def mig_memory_used_mib(self) -> int | None:
        """What the MIG instances hold together. Compute instances of one GPU instance show the same pool."""
        pools = {device.gi: device.memory_used_mib for device in self.mig_devices}
        known = [used for used in pools.values() if used is not None]
        return sum(known) if known and len(known) == len(pools) else None

    def as_json(self) -> dict[str, object]:
        """Everything above as plain values."""
        return asdict(self) | {
            "peak_utilization": self._peak_load,
            "peak_memory_used_mib": self._peak_used,
            "mig_memory_used_mib": self.mig_memory_used_mib,
            "busy": self.busy,
            "idle": self.idle,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one GPU text says. `gpu_count` is 0 only when it is known that there is none, `None` when not known.

    `kind` and `remedy` are set when the tool itself failed or a card is broken. `cases` holds the readings of a text
    that joins several by lines of `---`; `unknown_rows` counts process rows that name no process.
    """

    what: str
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    gpu_count: int | None = None
    unknown_rows: int = 0
    kind: str | None = None
    remedy: str | None = None
    evidence: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    cases: tuple[Reading, ...] = ()

    @property
    def keys(self) -> list[int | str]:
        """What to call each card: `Gpu.key`, else its row."""
        return [f"row {row}" if gpu.key is None else gpu.key for row, gpu in enumerate(self.gpus, 1)]

    @property
    def usable(self) -> list[int | str]:
        """The cards that are not faulted; they may be busy."""
        return [key for key, gpu in zip(self.keys, self.gpus, strict=True) if not gpu.faulted]

    @property
    def faulted(self) -> list[int | str]:
        return [key for key, gpu in zip(self.keys, self.gpus, strict=True) if gpu.faulted]


@dataclass(slots=True)
class Part:
    """What one reader found: `line` is where it first found something, counted from 1."""

    what: str
    line: int = 0
    gpus: list[Gpu] = field(default_factory=list)
    processes: list[GpuProcess] = field(default_factory=list)
    unknown_rows: int = 0
    counted: bool = False
    notes: list[str] = field(default_factory=list)

    def seen(self, line: int) -> None:
        self.line = self.line or line


# A fault that is gone is gone (a card recovers by a reset), and peaks are taken over all samples.
_NOT_CARRIED = {"fault", "peak_utilization", "peak_memory_used_mib"}


def fold(samples: Sequence[Gpu]) -> Gpu:
    """One card from several readings of it: latest known values, number of samples, highest load and memory."""
    last = samples[-1]
    unread = [f.name for f in fields(Gpu) if getattr(last, f.name) in (None, ()) and f.name not in _NOT_CARRIED]
    known: dict[str, Any] = {
        name: next((v for s in reversed(samples) if (v := getattr(s, name)) is not None), None) for name in unread
    }
    known["mig_devices"] = next((s.mig_devices for s in reversed(samples) if s.mig_devices), ())
    return replace(
        last,
        **known,
        samples=sum(sample.samples for sample in samples),
        peak_utilization=_highest(*(sample._peak_load for sample in samples)),
        peak_memory_used_mib=_highest(*(sample._peak_used for sample in samples)),
    )


def fold_all(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Readings in time order to cards in order of first sight."""
    cards: dict[tuple[object, ...], list[Gpu]] = {}
    for gpu in gpus:
        weak = (gpu.mig, gpu.driver) if gpu.uuid is None and gpu.bus_id is None else ()
        key = (gpu.host, gpu.uuid, gpu.bus_id, gpu.index, gpu.name, gpu.memory_total_mib, *weak)
        nameless = gpu.key is None
        cards.setdefault((*key, len(cards)) if nameless else key, []).append(gpu)
    merged: list[Gpu] = []
    for samples in cards.values():
        card = fold(samples)
        twin = next((i for i, known in enumerate(merged) if known.same_card(card)), None)
        if twin is None:
            merged.append(card)
        else:
            merged[twin] = _join(merged[twin], card)
    return merged


def _join(first: Gpu, second: Gpu) -> Gpu:
    """Two texts about the same card (a table and a list, say): one fills in what the other leaves out."""
    return replace(
        fold([first, second]),
        faulted=first.faulted or second.faulted,
        fault=first.fault or second.fault,
        samples=max(first.samples, second.samples),
    )


def _same_name(one: str, other: str) -> bool:
    """The table cuts long model names: `NVIDIA GeForce RTX 2080 ...`."""
    if other.endswith("..."):
        one, other = other, one
    return other.startswith(one.removesuffix("...").rstrip()) if one.endswith("...") else one == other


def _above(value: int | None, limit: int) -> bool:
    return value is not None and value > limit


def _highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
