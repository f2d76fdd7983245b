"""`turnout diagnose`: what a log or a GPU listing means, for a person or as one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any

from rich.text import Text

from agent.cli_frame import say_json
from agent.painter import plain
from agent.screen import screen
from state.errors import UsageError
from tools.diagnose import diagnose as read_text

PIECE = 1 << 20
MAX_EVIDENCE = 12
_STATES = {"failed": "bold red", "ready": "bold green", "serving": "bold green", "loading": "cyan", "unknown": "yellow"}


def diagnose(file: str, *, json: bool) -> int:
    """Read `file` (`-`: stdin), of any size. Raises `UsageError` when it cannot be read."""
    try:
        if file == "-":
            reading = read_text(_pieces(sys.stdin.buffer), source="stdin")
        else:
            with open(file, "rb") as stream:
                reading = read_text(_pieces(stream), source=file)
    except OSError as error:
        raise UsageError(f"cannot read `{file}`: {error.strerror}", hint="give a file, or `-` for stdin") from error
    found = reading.as_json()
    if json:
        say_json(found)
    else:
        _tell(found)
    return 0


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: stream.read(PIECE), b"")


def _tell(found: dict[str, Any]) -> None:
    console = screen()

    def line(label: str, value: Any, style: str = "") -> None:
        if value not in (None, "", [], "unknown"):
            console.print(Text.assemble((f"{label:<9}", "dim"), (plain(str(value)), style)), soft_wrap=True)

    line("this is", found["what"] if found["what"] != "unknown" else "neither a server's log nor a GPU listing")
    line("engine", found["engine"])
    line("state", found["state"], _STATES.get(found["state"], ""))
    line("cause", found["kind"], "bold")
    line("stage", found["stage"])
    line("rate", found["throughput"])
    line("gpus", _gpus(found))
    line("remedy", found["remedy"], "green")
    for number, proof in enumerate(found["evidence"][:MAX_EVIDENCE]):
        line("because" if number == 0 else "", f"line {proof['line']}: {proof['text']}")
    for number, other in enumerate(found["also"][:MAX_EVIDENCE]):
        line("also" if number == 0 else "", f"line {other['line']}: {other['kind']}: {other['text']}", "dim")
    for remark in found["notes"]:
        line("note", remark, "yellow")
    if found["what"] == "unknown":
        line("give", "a log of vLLM or SGLang, what nvidia-smi or gpustat prints, or the kernel's log", "green")


def _gpus(found: dict[str, Any]) -> str:
    if not found["gpus"]:
        return ""
    words = [f"{len(found['gpus'])} seen"]
    words += [f"{name} {', '.join(map(str, found[name]))}" for name in ("busy", "idle", "faulted") if found[name]]
    if found["zombies"]:
        words.append(f"dead processes holding memory: {', '.join(map(str, found['zombies']))}")
    return "; ".join(words)
