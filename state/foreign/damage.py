"""What a broken file still gives: JSON that is torn, glued, full of NUL bytes or wrongly encoded, and a list of losses.

    losses = Losses()
    values = decode(line, losses, place)     # usually one; none or several when the line is damaged

Sources of the damage that this knows: a crash in the middle of a line, an append behind a cut line, a power cut that
leaves the size and no content, half of a surrogate pair from a program that cut a text by UTF-16 units.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import orjson

MAX_LOSSES = 10_000
MAX_TRIES = 400
"""Places within a damaged line where a whole record may begin, at most: the rest of a monster is given up."""

_BEGINNING = re.compile(r'\{\s*"')
_NULS = re.compile(rb"\x00+")
_HALF = re.compile(r"[\ud800-\udfff]")
_ENDS = b" \t\r\n"


class Losses:
    """What could not be had, in the order in which it was met. `watch` hears now and then how much of a source is read.

    The share is that of one file, 0 to 1; a transcript of Claude Code is read twice, and the first reading is a third.
    """

    def __init__(self, watch: Callable[[float], None] | None = None) -> None:
        self.lines: list[dict[str, str]] = []
        self.more = 0
        self.watch = watch or (lambda share: None)

    def add(self, place: str, reason: str) -> None:
        if len(self.lines) < MAX_LOSSES:
            self.lines.append({"place": place, "reason": reason})
        else:
            self.more += 1

    def told(self) -> list[dict[str, str]]:
        """All of them; beyond `MAX_LOSSES` only their number."""
        rest = [{"place": "", "reason": f"{self.more} further losses are not listed"}] if self.more else []
        return [*self.lines, *rest]


def decode(raw: bytes, losses: Losses, place: str, *, at: int = 0, last: bool = False) -> list[Any]:
    """The JSON values of one line. `at` is its offset in the file, `last` says that the file ends with it."""
    try:
        return [orjson.loads(raw)]
    except orjson.JSONDecodeError:
        return _mend(raw, losses, place, at, last)


def clean(value: Any) -> Any:
    """The same value without what a database refuses: halves of surrogate pairs and NUL characters in texts."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", _join_halves(value)).replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {clean(key): clean(inner) for key, inner in value.items()}
    return [clean(inner) for inner in value] if isinstance(value, list) else value


def whole_number(value: Any) -> int:
    """A count as it was recorded; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and value == value and abs(value) < 1e15 else 0


def _join_halves(text: str) -> str:
    """Pairs that were written as two escapes become the character that they are."""
    if not _HALF.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _mend(raw: bytes, losses: Losses, place: str, at: int, last: bool) -> list[Any]:
    """What a line gives that is no JSON as it stands; whatever it does not give is told."""
    values: list[Any] = []
    start = 0
    for nuls in [*_NULS.finditer(raw), None]:
        end = nuls.start() if nuls else len(raw)
        values += _pieces(raw[start:end], losses, place, at + start, last=last and nuls is None)
        if nuls:
            losses.add(f"{place}, byte {at + nuls.start()}", f"{nuls.end() - nuls.start()} NUL bytes and no content")
            start = nuls.end()
    return values


def _pieces(raw: bytes, losses: Losses, place: str, at: int, *, last: bool) -> list[Any]:
    """The records in a piece without NUL bytes: glued ones are taken apart, the whole ones beside a torn one kept."""
    text, replaced = _as_text(raw)
    position = len(raw) - len(raw.lstrip(_ENDS))
    values: list[Any] = []
    while position < len(text.rstrip()):
        value, end = _one(text, position)
        if end is None:
            end = _next_whole(text, position)
            size = len(text[position:end].encode("utf-8", "surrogatepass"))
            where = f"{place}, byte {at + len(text[:position].encode('utf-8', 'surrogatepass'))}"
            cut_off = last and end == len(text)
            losses.add(where, f"the file ends inside this record: {size} bytes of it" if cut_off else _torn(size))
        else:
            values.append(clean(value))
        position = end + len(text[end:]) - len(text[end:].lstrip())
    if replaced and values:
        losses.add(f"{place}, byte {at}", "bytes that are no UTF-8 were replaced")
    if len(values) > 1:
        losses.add(f"{place}, byte {at}", f"{len(values)} records stood in one line; they were taken apart")
    return values


def _torn(size: int) -> str:
    return f"{size} bytes that are no whole record were left out"


def _as_text(raw: bytes) -> tuple[str, bool]:
    try:
        return raw.decode("utf-8"), False
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), True


_reader = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def _one(text: str, position: int) -> tuple[Any, int | None]:
    try:
        return _reader.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None, None


def _next_whole(text: str, after: int) -> int:
    """Where the next record begins from which on everything to the end of the line is whole; else the end."""
    for tries, beginning in enumerate(_BEGINNING.finditer(text, after + 1)):
        start = beginning.start()
        if tries >= MAX_TRIES:
            break
        if _whole_to_the_end(text, start):
            return start
    return len(text)


def _whole_to_the_end(text: str, position: int) -> bool:
    while position < len(text.rstrip()):
        value, end = _one(text, position)
        if end is None or not isinstance(value, dict):
            return False
        position = end + len(text[end:]) - len(text[end:].lstrip())
    return True
