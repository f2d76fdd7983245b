"""Shell text as commands and words with their places, by tree-sitter's bash grammar, which forgives broken text.

    for command in commands("A=1 nohup vllm serve M --port 80 > log &"):
        [word.text for word in command.words]      # nohup, vllm, serve, M, --port, 80
        command.assignments                        # {"A": Word("1")}

What people paste is no clean shell: placeholders in angle brackets, `{{ templates }}`, a space after a continuation's
backslash, a missing backslash. `tidy` mends what can be mended without changing a character's place and says what it
mended. Offsets count characters of the text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tree_sitter
import tree_sitter_bash

_WORDS = {
    "word", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "simple_expansion",
    "expansion", "command_substitution", "number", "brace_expression", "process_substitution", "arithmetic_expansion",
    "test_operator", "regex", "extglob_pattern", "array", "subscript",
}  # fmt: skip
_PLACEHOLDER = re.compile(r"<(?=[A-Za-z])[\w .:/+-]{0,60}(?<=[\w.])>")
_TEMPLATE = re.compile(r"\{\{[^{}\n]{0,200}\}\}")
_LOOSE_BACKSLASH = re.compile(r"\\[ \t\r]+\n")
_LOST_BREAK = re.compile(r"(?<=[ \t])\\[ \t]+(?=--?[a-zA-Z])")
_ODD_SPACE = re.compile("[\u00a0\u2007\u202f\u200b\ufeff]")
_OTHER_SHELL = re.compile(r"[ \t]([`^])(\r?\n)(?=[ \t]*[-\w/\"'{])")
_COMMENT_BETWEEN = re.compile(r"(\\\n)((?:[ \t]*(?:#[^\n]*)?\n)+)(?=[ \t]*--?[a-zA-Z])")
_MISSING_BACKSLASH = re.compile(r"(?<=[^\\\s])([ \t]*\r?\n)(?=[ \t]+-[a-zA-Z]|[ \t]*--[a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Word:
    """One word: what the program gets (variables as written), how it was written, and where."""

    text: str
    raw: str
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. `start` is that of its first word, `end` that of its last."""

    words: tuple[Word, ...]
    assignments: Mapping[str, Word] = field(default_factory=dict)
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """Parsed text: ask it for the command at a place. `notes` say what was mended."""

    text: str
    tree: Any
    notes: tuple[str, ...] = ()


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def tidy(text: str) -> tuple[str, list[str]]:
    """The text with every character in its place, but continuations as they were meant; and what was mended."""
    notes: list[str] = []

    def loose(match: re.Match[str]) -> str:
        if "a backslash is followed by a space" not in notes:
            notes.append("a backslash is followed by a space")
        return " " * (len(match[0]) - 2) + "\\\n"

    def comment(match: re.Match[str]) -> str:
        what = "a comment" if "#" in match[2] else "an empty line"
        note = f"{what} stands between continued lines, where the shell ends the command"
        notes.extend([note] if note not in notes else [])
        return match[1] + " " * len(match[2])

    if _ODD_SPACE.search(text):
        notes.append("spaces that the shell does not take for spaces stand between words")
        text = _ODD_SPACE.sub(" ", text)
    if "\\\n" not in text and _OTHER_SHELL.search(text):
        notes.append("lines are continued as in PowerShell or cmd")
        text = _OTHER_SHELL.sub(lambda match: f" \\{match[2]}", text)
    if _LOST_BREAK.search(text):
        notes.append("a backslash and a space stand where a line was continued")
        text = _LOST_BREAK.sub(lambda match: " " * len(match[0]), text)
    text = _LOOSE_BACKSLASH.sub(loose, text)
    return _COMMENT_BETWEEN.sub(comment, text), notes


def join_lines(text: str) -> tuple[str, list[str]]:
    """Lines that begin with a flag belong to the command above them, also where the backslash was forgotten."""
    joined, count = _MISSING_BACKSLASH.subn(lambda match: " " * len(match[1]), text)
    return joined, ["a line's backslash is missing"] if count else []


def parse(text: str) -> Script:
    """Parse shell text of any quality."""
    mended, notes = tidy(text)
    plain = _TEMPLATE.sub(lambda match: "T" * len(match[0]), mended)
    plain = _PLACEHOLDER.sub(lambda match: "P" * len(match[0]), plain)
    ascii_text = plain.encode("ascii", "replace").replace(b"\r", b" ").replace(b"\x00", b" ")
    return Script(text=mended, tree=_parser().parse(ascii_text), notes=tuple(notes))


def command_at(script: Script, place: int) -> Command | None:
    """The command around a place; `None` within a comment or outside of any."""
    node = script.tree.root_node.descendant_for_byte_range(place, place + 1)
    while node is not None and node.type != "command":
        if node.type in ("comment", "heredoc_body"):
            return None
        node = node.parent
    return None if node is None else _command(script, node)


def in_heredoc(script: Script, place: int) -> tuple[int, int] | None:
    """Where the heredoc around a place begins and ends."""
    node = script.tree.root_node.descendant_for_byte_range(place, place + 1)
    while node is not None and node.type != "heredoc_body":
        node = node.parent
    return None if node is None else (node.start_byte, node.end_byte)


def in_comment(script: Script, place: int) -> bool:
    """Whether a place lies in a comment."""
    node = script.tree.root_node.descendant_for_byte_range(place, place + 1)
    return bool(node is not None and node.type == "comment")


def _command(script: Script, node: Any) -> Command:
    words: list[Word] = []
    assignments: dict[str, Word] = {}
    for child in node.children:
        if child.type == "variable_assignment":
            name, _, _ = script.text[child.start_byte : child.end_byte].partition("=")
            assignments[name] = word(script.text, child.start_byte + len(name) + 1, child.end_byte)
        elif child.type == "command_name" or child.type in _WORDS or child.type == "ERROR":
            words.append(word(script.text, child.start_byte, child.end_byte))
    return _after_redirections(script, node, words, assignments)


def _after_redirections(script: Script, node: Any, words: list[Word], given: dict[str, Word]) -> Command:
    """Words that follow a redirection are the command's too: `vllm serve M > log --port 80`."""
    if node.parent is not None and node.parent.type == "redirected_statement":
        for sibling in node.parent.children:
            if sibling.type == "file_redirect":
                inner = [child for child in sibling.children if child.type in _WORDS]
                words += [word(script.text, child.start_byte, child.end_byte) for child in inner[1:]]
    words.sort(key=lambda one: one.start)
    first, last = (words[0].start, words[-1].end) if words else (node.start_byte, node.end_byte)
    return Command(words=tuple(words), assignments=given, start=first, end=last)


def word(text: str, start: int, end: int) -> Word:
    """The word written between two places."""
    raw = text[start:end]
    return Word(text=unquote(raw), raw=raw, start=start, end=end)


_PIECE = re.compile(r"""\$'((?:\\.|[^'\\])*)'|'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.|\n)|([^'"\\]+)|(.)""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def unquote(raw: str) -> str:
    """What the shell makes of a word, but for its expansions."""
    if not any(mark in raw for mark in "'\"\\"):
        return raw
    parts = []
    for ansi, single, double, escaped, bare, other in _PIECE.findall(raw):
        if ansi:
            parts.append(re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), ansi))
        elif double:
            parts.append(re.sub(r'\\([$`"\\\n])', lambda match: "" if match[1] == "\n" else match[1], double))
        elif escaped:
            parts.append("" if escaped == "\n" else escaped)
        else:
            parts.append(single or bare or other)
    return "".join(parts)


def split(text: str) -> list[Word]:
    """A text that is one command and nothing else (a unit's ExecStart, a compose command) as words."""
    script = parse(text)
    found = command_at(script, len(text) - len(text.lstrip()))
    if found is not None and found.end >= len(text.rstrip()) and not found.assignments:
        return list(found.words)
    return loose_split(text)


def loose_split(text: str) -> list[Word]:
    """Words by spaces and quotes alone, for text that is not shell: no operator means anything."""
    return [
        word(text, match.start(), match.end())
        for match in re.finditer(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\]|['"\\])+""", text, re.DOTALL)
        if match[0] != "\\\n"
    ]


_BARE = re.compile(r"[\w@%+=:,./{}\[\]-]+|\{\{.*\}\}", re.ASCII)
_EXPANSION = re.compile(r"\$\(?\w+\)?|\$\{[^}]+\}")


def quote(text: str) -> str:
    """A word as a shell wants it; `$VAR` and `${VAR}` stay expansions, within double quotes."""
    if text and re.fullmatch(r"(?:~/)?[\w@%+=:,./-]+", text, re.ASCII):
        return text
    if re.fullmatch(r"\$\(.+\)|`[^`]+`", text, re.DOTALL):
        return f'"{text}"'
    if _EXPANSION.search(text) and not re.search(r"[`'\"\\]", text):
        return f'"{text}"'
    if re.fullmatch(r"[\w@%+=:,./-]*\{\{[^'\"$`\\]*\}\}[\w@%+=:,./-]*", text):
        return text
    return shlex.quote(text)


def quoted(words: Sequence[str]) -> str:
    """Words joined as a shell wants them."""
    return " ".join(map(quote, words))
