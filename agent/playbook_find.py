"""Finds playbooks: by path, or by the name of one that is shipped or lies in the operator's own folder.

Shipped playbooks are read as files beside our packages and never imported. Names are folder names with `-` for `_`; the
operator's own (`~/.config/turnout/playbooks`, or below `XDG_CONFIG_HOME`) go before shipped ones of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from agent.playbook_errors import did_you_mean, listed
from agent.playbook_yaml import read
from state.errors import PlaybookError, UsageError

FILE = "playbook.yaml"
_SUFFIXES = (".yaml", ".yml")


def user_folder() -> Path:
    """Where an operator keeps playbooks of their own."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "turnout" / "playbooks"


def shipped_folder() -> Path:
    """Where the playbooks that came with Turnout lie."""
    return Path(str(files("playbooks")))


def find(name_or_path: str | Path) -> Path:
    """The file of a playbook. Raises `UsageError` with what there is when nothing goes by that name."""
    name = str(name_or_path)
    named = _named()
    if _normal(name) in named:
        return named[_normal(name)]
    path = Path(name).expanduser()
    for candidate in (path, path / FILE, *(path.with_name(path.name + suffix) for suffix in _SUFFIXES if path.name)):
        if candidate.is_file():
            return candidate
    raise UsageError(_missing(name, path, named), hint=f"give the path of a YAML file, or one of {listed(named)}")


def _missing(name: str, path: Path, named: Mapping[str, Path]) -> str:
    """What was looked for in vain: a folder's playbook, a file, or a name; with what was probably meant."""
    if path.is_dir():
        return f"`{path}` has no `{FILE}`"
    if path.suffix not in _SUFFIXES and len(path.parts) < 2:
        return f"no playbook is named `{name}`{did_you_mean(name, named)}"
    if not path.parent.is_dir():
        return f"there is no file `{path}`, nor a folder `{path.parent}`"
    beside = {
        str(path.with_name(p.name)) for p in path.parent.iterdir() if p.suffix in _SUFFIXES or (p / FILE).is_file()
    }
    return f"there is no file `{path}`{did_you_mean(str(path), sorted(beside))}"


def catalogue() -> list[tuple[str, str, Path]]:
    """Name, title and file of every playbook that can be run by name; the title says so when a file cannot be read."""
    return [(name, _title(path), path) for name, path in sorted(_named().items())]


def _title(path: Path) -> str:
    try:
        title = read(path).data.get("title")
    except PlaybookError as error:
        return f"(does not load: {error.message})"
    return title if isinstance(title, str) else ""


def _normal(name: str) -> str:
    return name.replace("_", "-")


def _named() -> dict[str, Path]:
    """The playbooks that have a name; the operator's overwrite the shipped ones."""
    found: dict[str, Path] = {}
    for folder in (shipped_folder(), user_folder()):
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if (entry / FILE).is_file():
                found[_normal(entry.name)] = entry / FILE
            elif entry.suffix in _SUFFIXES and entry.is_file():
                found[_normal(entry.stem)] = entry
    return found
