"""An operator's lasting decisions, in a file that can be read and edited: `permissions.toml` in the state directory.

    keep(rules_path(), decision.lasting)       # "always for this rule"
    policy = Policy.shipped().with_kept(kept(rules_path()))

Rules are appended, whole and at once, with every string quoted; the file belongs to its owner alone. These functions
read and write files: call them off the event loop.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

from state.db import state_dir
from state.errors import UsageError
from tools.permissions_rules import Rule

_HEAD = "# What you allowed for good, as Turnout asked for it. A rule may be deleted here, or written by hand.\n"


def rules_path() -> Path:
    """Where they are kept."""
    return state_dir() / "permissions.toml"


def kept(path: Path) -> list[Rule]:
    """The kept rules, newest first. Raises `UsageError` for a file that is no TOML or has a rule that means nothing."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}", hint="mend it, or move it away") from None
    return [Rule.of(entry) for entry in reversed(data.get("rule", []))]


def keep(path: Path, rules: Iterable[Rule]) -> None:
    """Add rules to those that are kept."""
    text = "".join(_toml(rule) for rule in rules)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, ((_HEAD if os.fstat(file).st_size == 0 else "") + text).encode())
        os.fsync(file)
    finally:
        os.close(file)


def _toml(rule: Rule) -> str:
    # A JSON string is a TOML string: quotes, backslashes and line ends are escaped alike.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in rule.as_json().items()]
    return "\n[[rule]]\n" + "\n".join(lines) + "\n"
