"""Every error Turnout raises, in one tree.

Each says what was tried, what was seen and what to do. Values stand in backticks; what to do is the `hint`.

    TurnoutError
    ├── UsageError              the operator asked for something that cannot be (exit code 2)
    │   └── PlaybookError       a playbook that does not load, with file and line
    ├── StateError              the stored state does not allow it
    │   ├── NotFound            no such session, todo, job or host
    │   ├── GraphError          an edit the todo graph refuses
    │   │   └── CycleError      ... because of a cycle, with its path
    │   └── SessionBusy         another process owns the session
    ├── HostError               a host does not do what it must
    │   ├── Unreachable         no connection: unknown, never failed
    │   ├── HostKeyError        the host's key is not the one we know
    │   └── HostUnusable        reached, but jobs cannot run there (no Python, no room, ...)
    ├── JobError                a job or a quick command did not do what was asked
    ├── ToolError               told to the model, which may try again; never a crash
    └── ModelError              a model did not answer, or not with what can be used
        └── BudgetSpent         the money, tokens or time set for it are used up

Nothing here imports anything of ours. `render` gives the text a person sees; tracebacks are for bugs.
"""

from __future__ import annotations

from collections.abc import Sequence


class TurnoutError(Exception):
    """Base of all expected errors. `message` says what was tried and seen, `hint` what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def render(self) -> str:
        """The text for a person: the message and, after an empty line, the hint."""
        return f"error: {self.message}" + (f"\n\nhint: {self.hint}" if self.hint else "")


class UsageError(TurnoutError):
    """The operator asked for something that cannot be."""

    exit_code = 2


class PlaybookError(UsageError):
    """A playbook that does not load. `line` counts from 1; `None` when the file as a whole is meant."""

    def __init__(self, message: str, *, file: str, line: int | None = None, hint: str | None = None) -> None:
        super().__init__(f"`{file}`{f' line {line}' if line else ''}: {message}", hint=hint)
        self.file = file
        self.line = line


class StateError(TurnoutError):
    """The stored state does not allow what was asked."""


class NotFound(StateError):
    """No session, todo, job or host by that name."""

    exit_code = 2


class GraphError(StateError):
    """An edit that the todo graph refuses."""


class CycleError(GraphError):
    """An edge that would close a cycle. `path` starts and ends with the same todo."""

    def __init__(self, path: Sequence[str]) -> None:
        super().__init__(
            "these todos wait for each other: " + " -> ".join(f"`{p}`" for p in path),
            hint="remove one of the `after` entries along this path",
        )
        self.path = list(path)


class SessionBusy(StateError):
    """Another living process owns the session."""

    exit_code = 4


class HostError(TurnoutError):
    """A host does not do what it must."""

    exit_code = 5


class Unreachable(HostError):
    """No connection, or it broke. What runs on the host is unknown, not failed."""


class HostKeyError(HostError):
    """The host's key is unknown, or not the one that was pinned."""


class HostUnusable(HostError):
    """The host answers, but jobs cannot run there: no Python, no room, no home directory."""


class JobError(TurnoutError):
    """A job or a quick command did not do what was asked."""


class ToolError(TurnoutError):
    """Something the model should read and may correct; the session goes on."""


class ModelError(TurnoutError):
    """A model did not answer, or not with an answer that can be used. `kind` is that of `model.failed` in the log.

    `retry_after_s` is what the server asked for; `retryable` whether asking again can help; `usage` what it cost.
    """

    exit_code = 6

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        hint: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        usage: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.usage = usage


class BudgetSpent(ModelError):
    """What was set aside for model calls is used up; nothing is wrong, and nothing is lost."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, kind="budget", hint=hint)
