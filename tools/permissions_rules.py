"""One rule of a policy, and whether it fits a simple command: `yes`, `no`, or `maybe` where words are not known yet.

The keys are those of `tools/permissions.toml`. An `allow` that fits maybe does not fit; an `ask` or `deny` that does is
taken as a reason to ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import translate
from functools import cache
from typing import Any, Literal

from state.errors import UsageError
from tools.permissions_words import Call, Word

Fit = Literal["yes", "no", "maybe"]
_KEYS = frozenset(
    {"name", "verdict", "why", "host", "programs", "argv", "unless", "only", "args", "words", "sudo", "sets", "exact"}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """See the head of `tools/permissions.toml` for the keys. `exact` compares words as they are, without patterns."""

    name: str
    verdict: Literal["allow", "ask", "deny"]
    why: str = ""
    host: str = "*"
    programs: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()
    sudo: bool = False
    sets: tuple[str, ...] = ()
    exact: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Rule:
        """A rule from its TOML table. Raises `UsageError` for keys and verdicts that mean nothing."""
        unknown = set(entry) - _KEYS
        if unknown or entry.get("verdict") not in ("allow", "ask", "deny") or "name" not in entry:
            what = f"unknown key `{min(unknown)}`" if unknown else f"verdict `{entry.get('verdict')}`"
            raise UsageError(
                f"permission rule `{entry.get('name')}` has {what}", hint="see the head of tools/permissions.toml"
            )
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """The keys that are set, for a log or a file; `of` reads them back."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def exactly(cls, host: str, call: Call) -> Rule:
        """Allows this call, word for word, on this host."""
        argv = tuple(word.text for word in call.argv)
        return cls(
            "kept", "allow", "you allowed it for good", host, argv=argv, sudo=call.root, sets=call.sets, exact=True
        )


def fits(rule: Rule, host: str, call: Call, variables: Sequence[str]) -> Fit:
    """Whether `rule` is about this call on this host."""
    if not (host == rule.host if rule.exact else _like(rule.host, host)):
        return "no"
    if rule.exact:
        same = call.argv == tuple(Word(text) for text in rule.argv)
        return "yes" if same and (call.root, call.sets) == (rule.sudo, rule.sets) else "no"
    if rule.verdict == "allow" and (call.root or not all(_any(variables, name) for name in call.sets)):
        return "no"
    fit = _program(rule, call)
    for part in (_argv(rule, call), _words(rule, call), _unless(rule, call), _options(rule, call)):
        fit = "no" if "no" in (fit, part) else "maybe" if "maybe" in (fit, part) else "yes"
    return fit


def _program(rule: Rule, call: Call) -> Fit:
    if not rule.programs:
        return "yes"
    if not call.name:
        return "no"  # what only the shell will know is nobody's rule, and the default's
    return "yes" if call.name in rule.programs else "no"


def _argv(rule: Rule, call: Call) -> Fit:
    if not rule.argv:
        return "yes"
    patterns, words = list(rule.argv), list(call.argv)
    rest = patterns[-1] == "**"
    if rest:
        patterns.pop()
    sure = True
    for place, pattern in enumerate(patterns):
        if place >= len(words):
            return "maybe" if words and words[-1].loose else "no"
        if words[place].loose:
            return "maybe"
        if words[place].known:
            if not _like(pattern, words[place].text):
                return "no"
        elif not _grows(pattern, words[place].text):
            sure = False
    if len(words) > len(patterns) and not rest:
        return "maybe" if any(word.loose for word in words) else "no"
    return "yes" if sure else "maybe"


def _words(rule: Rule, call: Call) -> Fit:
    """A rule about words that are somewhere in the command. One that may become such a word fits maybe."""
    if not rule.words:
        return "yes"
    if any(word.known and _any(rule.words, word.text) for word in call.argv[1:]):
        return "yes"
    if rule.verdict == "ask":
        return "maybe" if any(not word.known and _may_become(rule.words, word.text) for word in call.argv[1:]) else "no"
    return "maybe" if any(not word.known and (word.loose or len(word.text) < 2) for word in call.argv[1:]) else "no"


def _unless(rule: Rule, call: Call) -> Fit:
    for word in call.argv[1:]:
        if word.known and _any(rule.unless, word.text):
            return "no"
        if not word.known and rule.unless and (word.may_be_option or not all(p.startswith("-") for p in rule.unless)):
            return "maybe"
    return "yes"


def _options(rule: Rule, call: Call) -> Fit:
    """Options among those that are listed, other words like those that are."""
    for word in call.argv[1:]:
        listed = rule.only if word.text.startswith("-") else rule.args
        if listed is None and not (word.may_be_option and rule.only is not None):
            continue
        if not word.known:
            return "maybe"
        if listed is not None and not _any(listed, word.text):
            return "no"
    return "yes"


def _any(patterns: Iterable[str], text: str) -> bool:
    return any(_like(pattern, text) for pattern in patterns)


def _like(pattern: str, text: str) -> bool:
    return _compiled(pattern).fullmatch(text) is not None


def _grows(pattern: str, begin: str) -> bool:
    """Whether everything that begins like this fits the pattern."""
    return any(part.endswith("*") and _like(part, begin) for part in pattern.split("|") if not part.startswith("re:"))


def _may_become(patterns: Iterable[str], begin: str) -> bool:
    """Whether a word that begins like this is likely to end as one of the patterns says, such as `/etc/shad*`."""
    for pattern in patterns:
        core = pattern.strip("*")
        if _grows(pattern, begin) or any(begin.endswith(core[:n]) for n in range(4, len(core))):
            return True
    return False


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern.startswith("re:"):
        return re.compile(pattern[3:])
    return re.compile("|".join(translate(part) for part in pattern.split("|")))
