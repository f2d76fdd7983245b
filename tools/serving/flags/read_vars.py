"""The variables of a script: what it sets, and words that stand for several arguments put in their place.

    known = assignments('PORT=${PORT:-8000}\\nARGS=(--port "$PORT")')
    expand(split('vllm serve M "${ARGS[@]}"'), known)

A value is what the script's last assignment says; what depends on conditions, on other programs or on the caller is not
known, and is said not to be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tools.serving.flags.words import Word, loose_split

MOST = 2000
MOST_TEXT = 400_000
_SCALAR = re.compile(
    r"(?m)^[ \t]*(?:export[ \t]+|local[ \t]+|readonly[ \t]+|declare[ \t]+(?:-\w+[ \t]+)?)?([A-Za-z_]\w*)(\+?)="
    r"""((?:"(?:\\.|[^"\\])*"|'[^']*'|\$\([^()\n]*\)|\$\{[^}\n]*\}|[^\s;&|"'()])*)(?=[ \t]*(?:$|[;#&]))"""
)
_DEFAULTED = re.compile(r"""(?m)^[ \t]*:[ \t]+["']?\$\{([A-Za-z_]\w*):?=([^}\n]*)\}""")
_ARRAY = re.compile(r"(?m)(?:^[ \t]*|&&[ \t]*|;[ \t]*)(?:declare[ \t]+-a[ \t]+|local[ \t]+)?([A-Za-z_]\w*)(\+?)=\(")
_IN_ARRAY = re.compile(r"""\)|#[^\n]*|"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^)#"'\\]+|.""", re.DOTALL)
_SPREAD = re.compile(
    r"\"?\$\{(\w+)(?:\[[@*]\])\}\"?|"
    r"\$(\w+)|\$\{(\w+)(?::?-([^}]*))?\}|\"?\$([@*])\"?|\"?\$\{@[^}]*\}\"?"
)


@dataclass(slots=True)
class Known:
    """What a script sets: plain variables, arrays as words, and those that are added to later."""

    plain: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    grown: set[str] = field(default_factory=set)


def assignments(text: str) -> Known:
    """The variables that are set at the beginning of lines."""
    known = Known()
    if "=" not in text:
        return known
    for number, match in enumerate(_SCALAR.finditer(text[:MOST_TEXT])):
        if number > MOST:
            break
        name, added, raw = match[1], match[2], match[3]
        value = _own_default(name, "".join(_value(raw)))
        if added:
            value = known.plain.get(name, "") + value
            known.grown.add(name)
        if len(value) < 8192:
            known.plain[name] = value
    for match in _DEFAULTED.finditer(text[:MOST_TEXT]):
        known.plain.setdefault(match[1], match[2])
    for number, match in enumerate(_ARRAY.finditer(text[:MOST_TEXT])):
        if number > 200:
            break
        _array(known, match, text)
    return known


def _value(raw: str) -> list[str]:
    return [word.text for word in loose_split(raw)]


def _own_default(name: str, value: str) -> str:
    """`PORT=${PORT:-8000}` and `PORT="${1:-8000}"` are 8000 unless the caller says otherwise."""
    match = re.fullmatch(r"\$\{(\w+):?[-=](.*)\}", value, re.DOTALL)
    return match[2] if match and (match[1] == name or match[1].isdigit()) else value


def _array(known: Known, match: re.Match[str], text: str) -> None:
    name, parts, place = match[1], [], match.end()
    while place < len(text) and place - match.end() < 20_000:
        piece = _IN_ARRAY.match(text, place)
        if piece is None or piece[0] == ")":
            break
        parts.append(" " if piece[0].startswith("#") else piece[0])
        place = piece.end()
    words = [word for word in loose_split("".join(parts)) if word.text != "\\"]
    if "&&" in match[0] and not match[2] and name in known.arrays:
        known.grown.add(name)
        return
    if match[2] or name in known.arrays:
        known.grown.add(name)
        words = [*known.arrays.get(name, []), *words] if match[2] else words
    known.arrays[name] = words


def expand(words: Sequence[Word], known: Known, *, depth: int = 0) -> tuple[list[Word], list[str]]:
    """The words with those that stand for several put in; notes about what is not known or may differ."""
    found: list[Word] = []
    notes: list[str] = []
    for word in words:
        match = _SPREAD.fullmatch(word.raw)
        inner = _inner(match, known, word, after=found) if match and depth < 3 else None
        if inner is None:
            found.append(word)
            continue
        name = match[1] or match[2] or match[3] if match else ""
        more, told = expand([replace(one, start=word.start, end=word.end) for one in inner], known, depth=depth + 1)
        found += more
        notes += told
        notes.append(f"`{word.raw}` was put in as the script sets it")
        if name in known.grown:
            notes.append(f"`{name}` is set in several places, perhaps under conditions: see what holds here")
    return found, notes


def _inner(match: re.Match[str], known: Known, word: Word, *, after: Sequence[Word]) -> list[Word] | None:
    """The words that one stands for; `None` when it is a plain value or not known."""
    name = match[1]
    if name is not None:
        return known.arrays.get(name)
    name = match[2] or match[3]
    if name is None or word.raw.startswith('"'):
        return None
    value = known.plain.get(name, match[4] or "")
    flag_waits = bool(after) and after[-1].text.startswith("-") and "=" not in after[-1].text
    if value.lstrip().startswith("-") and not (flag_waits and " " not in value.strip()):
        return loose_split(value)
    if name in known.plain and not value.strip() and not flag_waits:
        return []
    return None
