"""What a translation says: one entry for every flag and variable of the input, and what came out.

Classes, from harmless to dangerous: `same`, `renamed`, `default` (said nowhere, and the engines differ), `changed`
(carried over, but it means something else: with the arithmetic), `suspicious` (looks wrong in the original), `none`
(no counterpart: with what that costs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CLASSES = ("none", "suspicious", "changed", "default", "renamed", "same")
CLEAN, WARNINGS, REFUSED = 0, 10, 20
HIDDEN = "***"
LONG = 12
_SECRET_NAME = re.compile(r"(?i)(?:^|[_-])(?:token|api[_-]?key|key|secret|password|passwd|credentials?)$|^hf_token$")
_NO_SECRET = re.compile(r"(?i)keyfile|public|key_file|tokenizer|token_?id|max_.*token|num_.*token")


@dataclass(slots=True)
class Entry:
    """One line of the report.

    `written` is the input's flag or variable with its value, `result` what stands for it in the output ("" for
    nothing), `why` the reason or the arithmetic, `cost` how much is lost (0 to 9: what is said first). `notes` are
    further remarks. `said` is the name that `no_counterpart` begins with.
    """

    kind: str
    written: str
    result: str = ""
    why: str = ""
    cost: int = 3
    notes: list[str] = field(default_factory=list)
    variable: bool = False
    given: bool = True

    @property
    def order(self) -> tuple[int, int, str]:
        """Dangerous first."""
        return (CLASSES.index(self.kind) if self.cost < 8 else -1, -self.cost, "")

    def sentence(self) -> str:
        """The entry in one line, for the lists of the JSON form."""
        arrow = f" -> {self.result}" if self.result else ""
        reason = "; ".join(part for part in (self.why, *self.notes) if part)
        return f"{self.written}{arrow}" + (f" ({reason})" if reason else "")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "class": self.kind, "input": self.written, "output": self.result, "why": self.why, "notes": self.notes,
            "given": self.given,
        }  # fmt: skip


@dataclass(slots=True)
class Translation:
    """A translated command.

    `command` is the whole text in the form it came in, `None` when it is refused; then `draft` is what there is.
    `parsed` is what SGLang's own parser makes of the new arguments, without defaults; `arguments` are those arguments
    and `server` the bare command line. `env` is what the command's own prefix sets and what the translation sets or
    renames. `others` counts further vLLM commands in the text.
    """

    form: str
    command: str | None
    draft: str | None
    arguments: list[str]
    server: str
    parsed: dict[str, Any] | None
    env: dict[str, str]
    entries: list[Entry]
    refused: str | None
    sglang: str
    others: int = 0

    @property
    def no_counterpart(self) -> list[str]:
        """What is lost, dangerous first."""
        return [entry.sentence() for entry in self.entries if entry.kind == "none"]

    @property
    def warnings(self) -> list[str]:
        """What an operator must know, dangerous first, beside what is lost."""
        told = [entry for entry in self.entries if entry.kind in ("suspicious", "changed", "default")]
        more = [e for e in self.entries if e.kind in ("same", "renamed") and e.notes]
        return [entry.sentence() for entry in (*told, *more)]

    @property
    def exit_code(self) -> int:
        """0 clean, 10 with warnings, 20 refused. What is only defaulted differently and carried over is clean."""
        if self.refused:
            return REFUSED
        loud = any(entry.kind in ("none", "suspicious", "changed") or entry.notes for entry in self.entries)
        return WARNINGS if loud else CLEAN

    def as_json(self) -> dict[str, Any]:
        """For programs; keys may be added."""
        return {
            "command": self.command, "form": self.form, "parsed": self.parsed, "env": self.env,
            "no_counterpart": self.no_counterpart, "warnings": self.warnings, "refused": self.refused,
            "draft": self.draft, "arguments": self.arguments, "server": self.server, "sglang": self.sglang,
            "others": self.others, "report": [entry.as_json() for entry in self.entries],
        }  # fmt: skip


def is_secret(name: str, value: str = "") -> bool:
    """Whether a flag or variable of this name holds a secret; a reference to one is none."""
    if re.fullmatch(r"\$\{?\w+\}?|\$\(\w+\)|\{\{.*\}\}|<.*>|", value):
        return False
    return bool(_SECRET_NAME.search(name.lstrip("-")) and not _NO_SECRET.search(name)) or bool(
        re.match(r"(?:hf_|sk-|ghp_|github_pat_|glpat-|AKIA)[\w-]{8,}", value)
    )


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """Dangerous first; within a class as they stand in the input."""
    return sorted(entries, key=lambda entry: entry.order)


def redacted(text: str, secrets: Mapping[str, str]) -> str:
    """The text without any of the secrets (their value to what stands for it).

    A short one may be an ordinary word somewhere else (`--api-key vllm`): it is only taken out where it is the secret.
    """
    for secret, instead in sorted(secrets.items(), key=lambda pair: -len(pair[0])):
        if len(secret) >= LONG and re.search(r"\d", secret):
            text = text.replace(secret, instead)
    return text
