"""A start of vLLM as it was found in a text: its arguments, its environment, and how to put another in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tools.serving.flags.report import Entry
from tools.serving.flags.words import Word, quote

MODULE = "sglang.launch_server"
IMAGE = "lmsysorg/sglang"
Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of a launch; `ours` when the command's own prefix sets it.

    `outside`: its value is not in the text (a secret, the caller's environment), and `value` is a reference to it.
    """

    name: str
    value: str
    ours: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Renewed:
    """What the translation gives back to the text: arguments in pairs of flag and values, and the environment.

    `variables` maps the name of each old variable to its new text (`NAME=VALUE`, "" when it goes); those that stay are
    not in it. `settings` are new ones that no old one became.
    """

    arguments: Sequence[tuple[str, Sequence[str]]]
    variables: Mapping[str, str]
    settings: Mapping[str, str]
    version: str

    def words(self) -> list[str]:
        """The arguments as words."""
        return [word for flag, values in self.arguments for word in (flag, *values)]


@dataclass(slots=True)
class Launch:
    """One start of vLLM. `render` gives the edits of the text that put SGLang in its place.

    `config` is the whole text where that is a configuration file. `positional`: a word without a flag is the model.
    """

    form: str
    words: list[Word]
    render: Callable[[Renewed], list[Edit]]
    environment: list[Variable] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    positional: bool = True
    config: str = ""


def applied(text: str, edits: Sequence[Edit]) -> str:
    """The text with all edits made, the last first."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def lines(program: str, new: Renewed, *, indent: str = "  ", width: int = 110, spread: bool | None = None) -> str:
    """A command for people: in one line where it fits (and was), else a flag a line."""
    flags = [" ".join([flag, *map(quote, values)]) for flag, values in new.arguments]
    whole = " ".join([program, *flags])
    if spread is None:
        spread = len(whole) > width
    if not spread:
        return whole
    return f" \\\n{indent}".join([program, *flags])


def python_of(program: str) -> str:
    """The Python beside a `vllm` program; of an installation of vLLM the one that SGLang's would have."""
    folder, _, name = program.rpartition("/")
    if name.startswith("python"):
        return own_python(program)
    return f"{re.sub('(?i)vllm', 'sglang', folder)}/python" if folder else "python"


def own_python(program: str) -> str:
    """An interpreter of an installation of vLLM as SGLang's would be."""
    folder, slash, name = program.rpartition("/")
    return f"{re.sub('(?i)vllm', 'sglang', folder)}{slash}{name}"


def shifted(launch: Launch, start: int) -> Launch:
    """A launch that was found in a part of a text which begins at `start`."""
    inner = launch.render
    return replace(launch, render=lambda new: [(a + start, b + start, text) for a, b, text in inner(new)])


def image_for(version: str) -> str:
    """SGLang's image of that version; of one that is no release the newest."""
    return f"{IMAGE}:v{version}" if re.fullmatch(r"\d+(?:\.\d+)+(?:\.post\d+)?", version) else f"{IMAGE}:latest"
