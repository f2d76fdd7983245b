"""What only a run can know, as a value for a dry run: it prints as the template that will be filled in.

str(Unknown("todos").find.port) == "{{ todos.find.port }}"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.templates import BUILTINS


class Unknown(Mapping[str, Any]):
    """A result by its path. It has every key, is true and equals whatever it is compared with: first branches show."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getitem__(self, key: str) -> Unknown:
        return Unknown(f"{self._path}.{key}")

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1

    def __call__(self, *_: Any, **__: Any) -> Unknown:
        return Unknown(f"{self._path}()")

    def __str__(self) -> str:
        return f"{{{{ {self._path} }}}}"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self._path)


def unknown_to_a_dry_run() -> dict[str, Unknown]:
    """All names that only a run fills in."""
    return {name: Unknown(name) for name in BUILTINS}
