"""A shell command as the simple commands that it would run, each with its words and how sure they are.

    shell = read("FOO=1 ls \"$dir\" | grep x > out")
    shell.calls        # [ls, grep, > out], in the order of the text
    shell.doubts       # why it could not be read in full; empty when it could

The grammar is tree-sitter's for bash. Everything that runs something is walked: pipes, lists, loops, functions,
substitutions, here-documents and redirections (a redirection is a call of the program `>` or `<`). It runs nothing and
judges nothing; programs that run other programs are taken apart in `tools/permissions_wrappers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from tree_sitter import Language, Node, Parser

MAX_BYTES = 64 << 10
"""Nobody reads a longer command before agreeing to it."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_GLOB = re.compile(r"(?<!\\)[*?\[]")
_ESCAPED = re.compile(r"\\(.|\n)", re.DOTALL)
_SPREADS = {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
_LITERAL = {"raw_string", "ansi_c_string", "comment"}
_PLAIN = {"word", "number", "file_descriptor", "variable_name", "test_operator", "regex", "extglob_pattern"}


@dataclass(frozen=True, slots=True)
class Word:
    """One word. Unless it is `known`, `text` is only how it begins, and when it is `loose` it may become many words."""

    text: str
    known: bool = True
    loose: bool = False

    @property
    def may_be_option(self) -> bool:
        """Whether it could begin with a dash once the shell is through with it."""
        return self.loose or self.text.startswith("-") or not (self.text or self.known)

    def __str__(self) -> str:
        return self.text if self.known else f"{self.text}…"


@dataclass(frozen=True, slots=True)
class Call:
    """One simple command: its words, the variables set for it, and what it is run through (`sudo`, `xargs`, a host)."""

    argv: tuple[Word, ...]
    text: str
    sets: tuple[str, ...] = ()
    root: bool = False
    host: str | None = None

    @property
    def name(self) -> str:
        """The program, without its folder; empty when only the shell will know."""
        first = self.argv[0] if self.argv else Word("", known=False)
        return first.text if first.known else ""


@dataclass(slots=True)
class Shell:
    """What `read` found."""

    calls: list[Call] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


@cache
def _parser() -> Parser:
    import tree_sitter_bash

    return Parser(Language(tree_sitter_bash.language()))


def read(command: str) -> Shell:
    """Read a command. What cannot be read for certain is said in `doubts`; nothing is raised."""
    shell = Shell()
    data = command.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        shell.doubts.append(f"it has {len(data):,} bytes, more than the {MAX_BYTES:,} that are read")
    elif _CONTROLS.search(command):
        shell.doubts.append("it holds control characters")
    else:
        root = _parser().parse(data).root_node
        if root.has_error:
            shell.doubts.append(f"it is no complete shell command{_near(root)}")
        else:
            _walk(root, shell)
            if _has_unseen(root):
                shell.doubts.append("it may run something that cannot be told from text")
            if not shell.calls:
                shell.doubts.append("there is no command in it")
    return shell


def _near(root: Node) -> str:
    """Where the grammar gave up, in words."""
    for node in _all(root):
        if node.is_error or node.is_missing:
            text = _text(node).strip()[:40]
            return f" at line {node.start_point.row + 1}" + (f", near `{text}`" if text else "")
    return ""


def _all(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack += reversed(at.children)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _walk(root: Node, shell: Shell) -> None:
    """Every simple command, assignment and redirection below `root`, however deep, in the order of the text."""
    for node in _all(root):
        if _joins_lines(node):
            shell.doubts.append("it cannot be told where one of its lines ends")
        if node.type == "command":
            _command(node, shell)
        elif node.type in ("declaration_command", "unset_command"):
            words = [_word(child) for child in node.children]
            shell.calls.append(Call(tuple(words), _text(node)))
        elif node.type == "variable_assignment" and not _belongs(node):
            shell.calls.append(Call((Word("export"), _word(node)), _text(node)))
        elif node.type == "test_command":
            shell.calls.append(Call((Word("test"),), _text(node)))
        elif node.type == "file_redirect":
            _redirect(node, shell)
        elif node.type == "function_definition":
            shell.doubts.append("it defines a function, so that names no longer mean what they say")


def _joins_lines(node: Node) -> bool:
    """Whether a command goes over the end of a line without a backslash: the grammar does so before `\\word`."""
    if node.type in _PLAIN:
        return "\n" in _text(node).replace("\\\n", "")
    if node.type not in ("command", "declaration_command", "unset_command", "file_redirect", "herestring_redirect"):
        return False
    data, start = node.text or b"", node.start_byte
    ends = [(before.end_byte, after.start_byte) for before, after in pairwise(node.children)]
    return any(b"\n" in data[end - start : begin - start].replace(b"\\\n", b"") for end, begin in ends)


def _has_unseen(root: Node) -> bool:
    """Whether more substitutions are written than the grammar saw: some within `${…}` or behind `<<-` escape it.

    A mark that is quoted by a backslash counts as well, so that some harmless texts are doubted.
    """
    text, quiet = bytearray(root.text or b""), bytearray(root.text or b"")
    commands = processes = 0
    stack = [(root, False)]
    while stack:
        node, quoted = stack.pop()
        place = slice(node.start_byte - root.start_byte, node.end_byte - root.start_byte)
        if node.type in _LITERAL or (node.type == "heredoc_body" and _is_literal(node)):
            text[place] = quiet[place] = b"." * (node.end_byte - node.start_byte)
            continue
        if node.type in ("string", "heredoc_body"):
            quoted = True
            quiet[place] = b"." * (node.end_byte - node.start_byte)
        commands += node.type in ("command_substitution", "arithmetic_expansion")
        processes += node.type == "process_substitution" and not quoted
        stack += [(child, quoted) for child in node.children]
    written = text.count(b"$(") + -(-text.count(b"`") // 2)
    return written > commands or quiet.count(b"<(") + quiet.count(b">(") > processes


def _is_literal(body: Node) -> bool:
    """Whether nothing in a here-document is expanded, because its end mark is quoted."""
    marks = [child for child in (body.parent.children if body.parent else []) if child.type == "heredoc_start"]
    return any(_text(mark)[:1] in "'\"\\" for mark in marks)


def _belongs(node: Node) -> bool:
    """Whether an assignment is part of a command or declaration that is looked at as a whole."""
    return node.parent is not None and node.parent.type in ("command", "declaration_command")


def _command(node: Node, shell: Shell) -> None:
    sets, words = [], []
    for child in node.children:
        if child.type == "variable_assignment":
            sets.append(_text(child).partition("=")[0].rstrip("+").partition("[")[0])
        elif child.type == "command_name":
            words.append(_word(child.children[0]) if child.children else Word("", known=False))
        elif child.type == "subshell":
            shell.doubts.append(f"`{_text(node)[:40]}` has parentheses where none belong")
        elif not child.type.endswith("_redirect"):
            words.append(_word(child))
    shell.calls.append(Call((*words, *_late_words(node)), _text(node), tuple(sets)))


def _late_words(node: Node) -> Iterator[Word]:
    """Words that stand behind a redirection and belong to the command before it: `find . >log -delete`."""
    inner, outer = node, node.parent
    while outer is not None and outer.type == "redirected_statement" and outer.children[0] == inner:
        for redirect in outer.children[1:]:
            if redirect.type == "file_redirect":
                yield from (_word(word) for word in _targets(redirect)[1:])
        inner, outer = outer, outer.parent


def _targets(redirect: Node) -> list[Node]:
    """What stands behind the sign of a redirection: its file or stream, and words that belong elsewhere."""
    return [child for child in redirect.children if child.is_named and child.type != "file_descriptor"]


def _redirect(node: Node, shell: Shell) -> None:
    kind = next((c.type for c in node.children if not c.is_named), "?")
    targets = _targets(node)
    body = node.parent.children[0] if node.parent is not None else node
    if len(targets) > 1 and body.type != "command":
        shell.doubts.append(f"`{_text(node)[:40]}` has words behind it that belong to no command")
    if kind in (">&", "<&", ">&-", "<&-") and (not targets or targets[0].type == "number"):
        return  # one stream into another, or closed
    target = _word(targets[0]) if targets else Word("", known=False)
    shell.calls.append(Call((Word("<" if kind in ("<", "<&") else ">"), target), _text(node)))


def _word(node: Node) -> Word:
    """The word that a node stands for, as far as it is known before the shell runs."""
    kind = node.type
    if kind in _PLAIN:
        return _bare(_text(node))
    if kind == "raw_string":
        return Word(_text(node)[1:-1])
    if kind == "ansi_c_string":
        inner = _text(node)[2:-1]
        return Word(inner) if "\\" not in inner else Word("", known=False)
    if kind in ("string", "translated_string"):
        return _quoted(node)
    if kind in ("concatenation", "variable_assignment"):
        return _joined(node)
    if kind in _SPREADS or node.child_count:
        return Word("", known=False, loose=kind != "arithmetic_expansion")
    return Word(_text(node))


def _bare(text: str) -> Word:
    """A word without quotes: a pattern in it becomes the names that fit, which begin as it does."""
    glob = _GLOB.search(text)
    kept = text[: glob.start()] if glob else text
    return Word(_ESCAPED.sub(lambda m: "" if m[1] == "\n" else m[1], kept), known=glob is None)


def _quoted(node: Node) -> Word:
    """A string in double quotes stays one word, whatever is in it; known up to the first expansion."""
    data = node.text or b""
    begin = node.start_byte
    first = next((c for c in node.children if c.is_named and c.type != "string_content"), None)
    start = data.index(b'"') + 1
    inner = data[start : first.start_byte - begin] if first is not None else data[start:-1]
    text = re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], inner.decode("utf-8", "replace"))
    return Word(text, known=first is None)


def _joined(node: Node) -> Word:
    """Words with nothing between them. Braces and expansions outside of quotes may make several of one."""
    text, known, splits = "", True, node.type != "variable_assignment"
    for child in node.children:
        if splits and child.type == "word" and _text(child) == "{":
            return Word(text, known=False, loose=True)
        part = _word(child)
        if part.loose and splits:
            return Word(text, known=False, loose=True)
        if known:
            text += part.text
        known = known and part.known
    return Word(text, known=known)
