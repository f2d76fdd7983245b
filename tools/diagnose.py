"""What is this text? Names a server log, any GPU listing or a kernel log, and says what it means and what to do.

One entry for `turnout diagnose FILE|-`: the text goes to the readers of `tools.gpus` and `tools.serving.logs`, and what
they find is laid out as JSON. Pure: nothing is run, asked or changed. A log may be of any size and hold any bytes; of a
GPU text beyond a megabyte or two (weeks of samples) head and tail are read.

    diagnose(Path("server.log").read_bytes(), source="server.log").as_json()
    with open("huge.log", "rb") as f: diagnose(iter(lambda: f.read(1 << 20), b""))
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from tools.gpu_model import GpuProcess, Reading
from tools.gpus import read
from tools.serving.logs import LogReading, read_log

GPU_HEAD, GPU_TAIL = 1 << 18, 1 << 20
PIECE = 1 << 20
_BOMS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_FENCE = re.compile(rb"^[ \t]*(?:```|~~~)", re.MULTILINE)
_KERNEL = re.compile(r"oom-kill:|Out of memory: Killed process|NVRM: Xid")
_BOTH = {"gpu fault", "unrecognised error", "permission denied"}
_BOX_LINE = re.compile(rb"^\|.*$", re.MULTILINE)
_PROSE_HEAD = re.compile(rb"\s*(?:#{1,6} |\*\*|- |>)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a text is and means. `log` and `gpu` are the readings behind it; `source` its name for messages."""

    what: str
    log: LogReading
    gpu: Reading
    source: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The server's state; for a GPU tool that failed itself, `failed`; else `unknown`."""
        if self._is_log:
            return self.log.state
        return "failed" if self.what == "nvidia-smi message" else "unknown"

    @property
    def kind(self) -> str | None:
        return self.log.kind if self._is_log else self.gpu.kind

    @property
    def remedy(self) -> str | None:
        return self.log.remedy if self._is_log else self.gpu.remedy

    @property
    def _is_log(self) -> bool:
        return self.what == "server log" or (self.what == "kernel log" and self.gpu.what == "unknown")

    def as_json(self) -> dict[str, object]:
        """Plain values, ready for `json.dumps`. Keys that do not apply are `None` or empty, never left out."""
        log, gpu = self.log, self.gpu
        evidence = (*log.evidence, *gpu.evidence) if self._is_log else gpu.evidence
        return {
            "what": self.what,
            "source": self.source,
            "engine": log.engine if self._is_log else None,
            "state": self.state,
            "kind": self.kind,
            "family": log.family if self._is_log else gpu.kind,
            "remedy": self.remedy,
            "stage": log.stage,
            "throughput": log.throughput,
            "evidence": [{"line": line, "text": text} for line, text in evidence],
            "also": [{"line": line, "kind": kind, "text": text} for line, kind, text in log.also if self._is_log],
            "notes": [*self.notes, *(log.notes if self._is_log else ()), *gpu.notes],
            **_gpu_json(gpu),
        }


def _gpu_json(gpu: Reading) -> dict[str, object]:
    used = [card.memory_used_mib for card in gpu.gpus]
    return {
        "gpu_count": gpu.gpu_count,
        "gpus": [card.as_json() for card in gpu.gpus],
        "usable": gpu.usable,
        "faulted": gpu.faulted,
        "idle": [key for key, card in zip(gpu.keys, gpu.gpus, strict=True) if card.idle],
        "busy": [key for key, card in zip(gpu.keys, gpu.gpus, strict=True) if card.busy],
        "mig": any(card.mig for card in gpu.gpus),
        "mig_devices": sum(len(card.mig_devices) for card in gpu.gpus),
        "memory_used_mib": sum(u for u in used if u is not None) if used and None not in used else None,
        "processes": [_process_json(process) for process in gpu.processes],
        "unknown_rows": gpu.unknown_rows,
        "zombies": [process.pid for process in gpu.processes if process.zombie],
        "parts": list(gpu.parts),
        "cases": [
            {"what": c.what, "kind": c.kind, "remedy": c.remedy, "evidence": [t for _, t in c.evidence]} | _gpu_json(c)
            for c in gpu.cases
        ],
    }


def _process_json(process: GpuProcess) -> dict[str, object]:
    gpu = process.gpu_index if process.gpu_index is not None else process.gpu_uuid or process.gpu_bus_id
    return asdict(process) | {"gpu": gpu}


def diagnose(text: bytes | str | Iterable[bytes], *, source: str | None = None) -> Diagnosis:
    """Reads any text: whole, or as pieces of bytes (then a log of any size takes a few megabytes). Never raises on
    what the text holds.
    """
    window = _Window()
    log = read_log(window.watch(_pieces(text)))
    definite = log.engine is not None and log.state != "unknown"
    gpu = read(window.boxes() if definite else window.text())
    cut = window.cut and not definite
    notes: tuple[str, ...] = ("long text: GPU readings are from its head and tail",) if cut else ()
    what = _what(log, gpu)
    if what == "unknown":
        notes += (_instead(log, window),)
    return Diagnosis(what=what, log=log, gpu=gpu, source=source, notes=notes)


def _instead(log: LogReading, window: _Window) -> str:
    """What is seen in a text that is neither a log nor a GPU listing."""
    if not window.text().strip():
        return "the text is empty"
    return f"it names {log.engine}, and no line of it is a log's" if log.engine else "no line of it is a log's"


def _what(log: LogReading, gpu: Reading) -> str:
    """A process list names engines, and a driver's fault is in both kinds of text: then the GPU reading wins."""
    if log.engine is None and any(_KERNEL.search(line) for _, line in log.evidence):
        return "kernel log"
    doubtful = log.state == "unknown" or (log.engine is None and log.family in _BOTH)
    if gpu.what != "unknown" and doubtful:
        return gpu.what
    return "server log" if log.state != "unknown" or (log.engine and log.written) else "unknown"


class _Window:
    """Lets pieces through and keeps their head and tail for the GPU readers."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self.cut = False

    def watch(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            room = GPU_HEAD - len(self._head)
            self._head += piece[:room]
            self._tail += piece[room:]
            if len(self._tail) > 2 * GPU_TAIL:
                self._tail, self.cut = self._tail[-GPU_TAIL:], True
            yield piece

    def text(self) -> str:
        head, tail = self._head, self._tail
        if self.cut:
            # Half lines at the cut would read as rows of a card that is not there.
            head, tail = head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]
        return (head + tail).decode("utf-8", "replace")

    def boxes(self) -> str:
        """Only what looks like nvidia-smi's table, as start scripts print it before the server speaks."""
        return b"\n".join(_BOX_LINE.findall(self._head)).decode("utf-8", "replace")


def _pieces(text: bytes | str | Iterable[bytes]) -> Iterator[bytes]:
    """UTF-8 bytes in pieces. UTF-16 (PowerShell's `>`) is recoded; of Markdown only what stands in fences is kept."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    if not isinstance(text, bytes):
        yield from text
        return
    for bom, encoding in _BOMS:
        if text.startswith(bom):
            text = text.decode(encoding, "replace").encode("utf-8", "replace")
    if _PROSE_HEAD.match(text) and _FENCE.search(text, 0, 1 << 16):
        text = _fenced(text)
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _fenced(text: bytes) -> bytes:
    """The lines inside Markdown fences, the others emptied, so that line numbers stay."""
    kept, inside = [], False
    for line in text.split(b"\n"):
        if _FENCE.match(line):
            inside = not inside
            kept.append(b"")
        else:
            kept.append(line if inside else b"")
    return b"\n".join(kept)
