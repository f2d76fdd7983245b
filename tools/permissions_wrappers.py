"""Programs that run other programs, taken apart: `sudo`, `env`, `xargs`, `find -exec`, `bash -c`, `ssh host …`.

    calls, doubts = unwrap(call)       # the call itself, where it does something of its own, and those within it

A wrapper whose options or inner command are not known for certain is a doubt, and what is in doubt is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tools.permissions_words import Call, Shell, Word, read

MAX_DEPTH = 8
_SYSTEM = ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/")
"""Where a program is what its name says."""
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})

_PREFIXES: dict[str, tuple[str, int]] = {
    # Options that take a value (in short form), and how many words come before the command.
    "nice": ("n", 0), "ionice": ("cnp", 0), "nohup": ("", 0), "setsid": ("", 0), "time": ("", 0),
    "timeout": ("ks", 1), "stdbuf": ("ioe", 0), "exec": ("a", 0), "command": ("", 0), "builtin": ("", 0),
    "taskset": ("", 1), "numactl": ("", 0), "catchsegv": ("", 0), "chrt": ("", 1), "coproc": ("", 0),
}  # fmt: skip
_LOOKUPS = {"command": ("-v", "-V"), "time": ("-V", "--version")}
_SUDO_VALUES = frozenset("ugpCDhRrtTU")
_SSH_VALUES = frozenset("bBcDeEiIJlLmopQRSwW")
_SSH_PLAIN = frozenset("46AaCfGgKkMNnqsTtVvXxYy")
_SSH_SAFE = frozenset("bcilmp")
"""Options of ssh whose value names no program and no forwarding."""


def unwrap(call: Call, depth: int = 0) -> Shell:
    """The calls that one call amounts to."""
    if depth > MAX_DEPTH:
        return Shell([], [f"`{call.text[:40]}` is nested more than {MAX_DEPTH} deep"])
    name = call.name
    if name.startswith(_SYSTEM):
        name = name.rpartition("/")[2]
        call = replace(call, argv=(Word(name), *call.argv[1:]))
    handler = _HANDLERS.get(name) or (_shell if name in SHELLS else _prefix if name in _PREFIXES else None)
    found = handler(call) if handler is not None else None
    if found is None:
        return Shell([call])
    calls, doubts = [], list(found.doubts)
    for inner in found.calls:
        if inner.argv == call.argv:
            calls.append(inner)
            continue
        deeper = unwrap(inner, depth + 1)
        calls += deeper.calls
        doubts += deeper.doubts
    return Shell(calls, doubts)


def _inner(call: Call, words: Sequence[Word], *, root: bool = False, sets: Sequence[str] | None = None) -> Shell:
    kept = call.sets if sets is None else tuple(sets)
    return Shell([replace(call, argv=tuple(words), root=call.root or root, sets=kept)])


def _doubt(call: Call, why: str) -> Shell:
    return Shell([], [f"`{call.text[:60]}`: {why}"])


def _prefix(call: Call) -> Shell | None:
    """`nice -n 5 COMMAND` and its like."""
    values, before = _PREFIXES[call.name]
    if any(str(word) in _LOOKUPS.get(call.name, ()) for word in call.argv[1:2]):
        return None
    rest = list(call.argv[1:])
    while rest and rest[0].known and rest[0].text.startswith("-") and rest[0].text != "-":
        option = rest.pop(0).text
        if option == "--":
            break
        if not option.startswith("--") and len(option) == 2 and option[1] in values and rest:
            rest.pop(0)
        elif "=" not in option and option not in _FLAGS if option.startswith("--") else option[1:2] not in values:
            return _doubt(call, f"option `{option}` is not known")
    if any(word.may_be_option for word in rest[:before]):
        return _doubt(call, "what it runs is only known when it runs")
    rest = rest[before:]
    return _inner(call, rest) if rest else None


_FLAGS = frozenset(
    {"--preserve-status", "--foreground", "--verbose", "--portability", "--wait", "--fork", "--localalloc"}
)


def _sudo(call: Call) -> Shell | None:
    rest, sets = list(call.argv[1:]), list(call.sets)
    while rest and rest[0].known:
        word = rest[0].text
        if "=" in word and not word.startswith("-"):
            sets.append(word.partition("=")[0])
        elif word in ("-n", "-E", "-H", "-b", "-k", "-S", "--"):
            pass
        elif len(word) == 2 and word[0] == "-" and word[1] in _SUDO_VALUES and len(rest) > 1:
            rest.pop(0)
        elif word.startswith("-"):
            return _inner(call, call.argv, root=True)  # `sudo -i`, `sudo -l`: a call of its own
        else:
            break
        rest.pop(0)
    return _inner(call, rest, root=True, sets=sets) if rest else _inner(call, call.argv, root=True)


def _env(call: Call) -> Shell | None:
    rest, sets = list(call.argv[1:]), list(call.sets)
    while rest:
        word = rest[0]
        if word.text in ("-i", "-", "--ignore-environment", "-0", "--null", "--"):
            pass
        elif word.text in ("-u", "--unset", "-C", "--chdir") and len(rest) > 1:
            rest.pop(0)
        elif word.text.startswith("-"):
            return _doubt(call, f"option `{word}` of env is not known")
        elif "=" in word.text:
            sets.append(word.text.partition("=")[0])
        elif not word.known:
            return _doubt(call, "what it runs is only known when it runs")
        else:
            break
        rest.pop(0)
    return _inner(call, rest, sets=sets) if rest else None


def _xargs(call: Call) -> Shell | None:
    """What xargs runs gets words that only its input knows."""
    rest = list(call.argv[1:])
    while rest and rest[0].text.startswith("-") and rest[0].known:
        option = rest.pop(0).text
        if option in ("-I", "-i", "-n", "-P", "-L", "-d", "-s", "-a", "-E", "--max-args", "--max-procs", "--delimiter"):
            if not rest:
                return _doubt(call, f"option `{option}` has no value")
            rest.pop(0)
        elif option == "--":
            break
        elif not (
            option[:2] in ("-n", "-P", "-L", "-d", "-s", "-I")
            or option in ("-0", "-r", "-t", "-x", "--null", "-0r")
            or option.startswith(("--max-args=", "--max-procs=", "--no-run-if-empty", "--delimiter="))
        ):
            return _doubt(call, f"option `{option}` of xargs is not known")
    return _inner(call, [*(rest or [Word("echo")]), Word("", known=False, loose=True)])


def _find(call: Call) -> Shell | None:
    """Each command after `-exec` and its like; find itself is judged by its other words."""
    own: list[Word] = []
    calls: list[Call] = []
    words = list(call.argv)
    while words:
        word = words.pop(0)
        if word.text not in ("-exec", "-execdir", "-ok", "-okdir"):
            own.append(word)
            continue
        inner: list[Word] = []
        while words and words[0].text not in (";", "+"):
            inner.append(words.pop(0))
        if not words:
            return _doubt(call, f"`{word}` has no end")
        words.pop(0)
        filled = [Word("", known=False, loose=True) if "{}" in w.text else w for w in inner]
        calls.append(replace(call, argv=tuple(filled)))
    if not calls:
        return None
    found = Shell([])
    for each in calls:
        deeper = unwrap(each, 1)
        found.calls += deeper.calls
        found.doubts += deeper.doubts
    return Shell([replace(call, argv=tuple(own)), *found.calls], found.doubts)


def _shell(call: Call) -> Shell | None:
    """`bash -c TEXT` is the text; a shell that reads a file or its input is a call of its own."""
    words = call.argv[1:]
    for place, word in enumerate(words):
        option = word.text
        if not word.known or not option.startswith("-") or option.startswith("--"):
            return None
        if "c" in option[1:]:
            if len(words) <= place + 1 or not words[place + 1].known:
                return _doubt(call, "the text that it runs is only known when it runs")
            return _text(call, words[place + 1].text)
    return None


def _eval(call: Call) -> Shell | None:
    if not all(word.known for word in call.argv[1:]):
        return _doubt(call, "the text that it runs is only known when it runs")
    return _text(call, " ".join(word.text for word in call.argv[1:]))


def _text(call: Call, text: str) -> Shell:
    """A command within a command: read on its own, and run like the one around it."""
    found = read(text)
    found.calls = [
        replace(inner, sets=(*call.sets, *inner.sets), root=call.root or inner.root, host=inner.host or call.host)
        for inner in found.calls
    ]
    return found


def _ssh(call: Call) -> Shell | None:
    """`ssh [options] host command`: the command, judged for that host."""
    rest = list(call.argv[1:])
    host: Word | None = None
    while rest:
        word = rest.pop(0)
        if not word.known:
            return _doubt(call, "the host or an option is only known when it runs")
        if word.text.startswith("-") and len(word.text) > 1:
            letters = word.text[1:]
            while letters and letters[0] in _SSH_PLAIN:
                letters = letters[1:]
            if not letters:
                continue
            if letters[0] not in _SSH_VALUES or letters[0] not in _SSH_SAFE:
                return _doubt(call, f"option `{word}` of ssh can run or forward something here")
            if len(letters) == 1 and rest:
                rest.pop(0)
        elif host is None:
            host = word
        else:
            rest.insert(0, word)
            break
    if host is None or not rest:
        return None
    if not all(word.known for word in rest):
        return _doubt(call, "the text that it runs on the other host is only known when it runs")
    name = host.text.removeprefix("ssh://").rpartition("@")[2].partition(":")[0]
    found = _text(call, " ".join(word.text for word in rest))
    # What runs there is not under our sudo, and does not get our variables.
    far = [replace(inner, host=name, root=False, sets=()) for inner in found.calls]
    return Shell(far, found.doubts)


_HANDLERS: dict[str, Callable[[Call], Shell | None]] = {
    "sudo": _sudo, "doas": _sudo, "env": _env, "xargs": _xargs, "find": _find, "eval": _eval, "ssh": _ssh,
}  # fmt: skip
