"""Finds signs in a log of any size, in linear time and bounded memory.

Bytes are cut into whole lines a quarter of a megabyte at a time and searched for literals; only lines that hold one are
decoded and matched. Nothing is read from behind the head of a line: there stands what users wrote. What the signs mean
together is decided in `logs`.

    for chunk in chunks(pieces):
        for hit in scan(chunk, first_line): ...
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

from tools.serving.log_install import INSTALL
from tools.serving.log_marks import FRAMES, MARKS
from tools.serving.log_memory import MEMORY
from tools.serving.log_model import MODEL
from tools.serving.log_runtime import RUNTIME
from tools.serving.log_setup import SETUP
from tools.serving.log_signs import Hit, Role, Sign, sign

# What a line says about a failure, most telling first: of one line one sign is taken.
FAILURES = (Role.CAUSE, Role.CLUE, Role.SYMPTOM, Role.TROUBLE, Role.EXCEPTION)
CHUNK = 1 << 18
LINE_MAX = 2048

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
# The first word of rank decides; an exception's name outranks a level quoted in its message.
_LEVEL = re.compile(
    r"(?<![=\w])(?:(?P<low>DEBUG|INFO|WARNING|WARN|\w+Warning(?=:)|W\d{4}(?= ))|ERROR|CRITICAL|FATAL|\w+(?:Error|"
    r"Exception))\b"
)
# A wrapper that logs a server's stderr line by line calls tracebacks INFO.
_RELOGGED = re.compile(r"(?:INFO|DEBUG)\b.{0,80}?\b\w{1,60}Error: ")
_USER_TEXT = re.compile(r"Received request \S+|[Rr]eceive: obj=|[Ff]inish: obj=|\bprompt: ['\"]|\btext=['\"]")
_EXCEPTION = sign(
    Role.EXCEPTION,
    "unrecognised error",
    ("Error", "Exception"),
    r"(?:^|[\])|] |: | F )(?P<what>(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)(?::\s.*|\s*$))",
    "read the traceback around it: `{what}`",
)
SIGNS = (*MARKS, *FRAMES, *MEMORY, *SETUP, *MODEL, *INSTALL, *RUNTIME, _EXCEPTION)
# Most chunks of a healthy log hold none of these, so most needles need not be searched there.
_COARSE = (b"rror", b"xception", b"ailed", b"not ", b"annot", b"ould", b"memory")


def _by_gate() -> dict[bytes, dict[bytes, list[Sign]]]:
    gates: dict[bytes, dict[bytes, list[Sign]]] = {}
    for one in SIGNS:
        for needle in one.needles:
            gate = next((word for word in _COARSE if word in needle), needle)
            gates.setdefault(gate, {}).setdefault(needle, []).append(one)
    return gates


_GATES = _by_gate()
_STARTS = [needle for one in SIGNS if one.role in (Role.START, Role.AGAIN) for needle in one.needles]
_ORDER = {id(one): place for place, one in enumerate(SIGNS)}


def chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, about a quarter of a megabyte at a time, without NUL and colour. Of a longer line head and tail."""
    rest = b""
    for piece in pieces:
        for start in range(0, len(piece), CHUNK):
            rest += piece[start : start + CHUNK]
            cut = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
            if cut:
                yield _plain(rest[:cut])
                rest = rest[cut:]
            elif len(rest) > CHUNK:
                rest = rest[:LINE_MAX]
    if rest:
        yield _plain(rest)


def _plain(chunk: bytes) -> bytes:
    chunk = chunk.replace(b"\x00", b"") if b"\x00" in chunk else chunk
    return _ANSI.sub(b"", chunk) if b"\x1b" in chunk else chunk


def scan(chunk: bytes, first: int) -> Iterator[Hit]:
    """The signs in a chunk whose first line is numbered `first`, in the order of their lines."""
    for part in _runs(chunk):
        lines = _distinct(part, first)
        first += part.count(b"\n")
        joined = b"\n".join(head for _, head in lines)
        starts = list(accumulate((len(head) + 1 for _, head in lines), initial=0))
        found: dict[int, list[Sign]] = {}
        for needle, signs in _needles_in(joined):
            for place in _places(joined, needle, starts):
                found.setdefault(place, []).extend(signs)
        for place in sorted(found, key=lambda place: (lines[place][0], place)):
            number, head = lines[place]
            yield from _hits(number, head.decode("utf-8", "replace").rstrip(), found[place])


def _runs(chunk: bytes) -> Iterator[bytes]:
    """A chunk cut before each line that begins a run, so that each run keeps the first of its own repeated lines."""
    cuts = {0}
    for needle in _STARTS:
        at = chunk.find(needle)
        while at >= 0:
            cuts.add(chunk.rfind(b"\n", 0, at) + 1)
            at = chunk.find(needle, at + 1)
    edges = [*sorted(cuts), len(chunk)]
    for start, end in pairwise(edges):
        yield chunk[start:end]


def _needles_in(joined: bytes) -> Iterator[tuple[bytes, list[Sign]]]:
    for gate, needles in _GATES.items():
        if gate in joined:
            yield from needles.items()


def _distinct(chunk: bytes, first: int) -> list[tuple[int, bytes]]:
    """Numbered heads of lines. Lines that differ in digits only are one line repeated: of those the first and the
    last, which is what keeps routine and error floods cheap."""
    firsts: dict[bytes, tuple[int, bytes]] = {}
    lasts: dict[bytes, tuple[int, bytes]] = {}
    for number, line in enumerate(chunk.split(b"\n"), first):
        for bar in line.split(b"\r") if b"\r" in line else (line,):
            head = bar[:LINE_MAX]
            shape = head.translate(None, b"0123456789")
            if shape in firsts:
                lasts[shape] = (number, head)
            else:
                firsts[shape] = (number, head)
    return [*firsts.values(), *lasts.values()]


def _places(joined: bytes, needle: bytes, starts: list[int]) -> Iterator[int]:
    """Which of the joined lines hold a needle."""
    at = joined.find(needle)
    while at >= 0:
        place = bisect_right(starts, at) - 1
        yield place
        at = joined.find(needle, starts[place + 1])


def _hits(line: int, text: str, signs: list[Sign]) -> Iterator[Hit]:
    if _USER_TEXT.search(text, 0, 400):
        return
    level = _LEVEL.search(text, 0, 200)
    quiet = bool(level and level["low"]) and not _RELOGGED.search(text, 0, 400)
    failure: tuple[int, Hit] | None = None
    for one in sorted({id(s): s for s in signs}.values(), key=lambda s: _ORDER[id(s)]):
        about_failure = one.role in FAILURES
        if about_failure and quiet and not one.any_level:
            continue
        if match := one.matches(text):
            hit = Hit(line, text, one, match)
            if not about_failure:
                yield hit
            elif failure is None or FAILURES.index(one.role) < failure[0]:
                failure = FAILURES.index(one.role), hit
    if failure:
        yield failure[1]
