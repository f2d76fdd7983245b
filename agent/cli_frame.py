"""What every command stands in: shared options, one place where errors become text and exit codes, lines to stdout.

    sys.exit(guard(lambda: ..., json=True))

Expected errors are shown as what was seen and what to do; only a bug leaves a traceback, and that goes to a file. It
imports neither the database nor SSH nor rich, so that `--help` stays quick. The exit codes are in docs/cli.md.
"""

from __future__ import annotations

import json as json_module
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from state.errors import TurnoutError, UsageError

if TYPE_CHECKING:
    from state.db import Database

BUG = 70
LEFT_AT_ONCE = 130

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Db = Annotated[str | None, typer.Option("--db", metavar="PATH|URL", help="The database to use.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Answer every question with yes.")]
OneSession = Annotated[
    str | None, typer.Option("--session", "-s", metavar="ID", help="Of this session; the latest by default.")
]


def say(line: str = "") -> None:
    """One line on stdout. Raises `BrokenPipeError` when the reader is gone; `guard` ends the command quietly then."""
    sys.stdout.write(line + "\n")


def say_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    say(json_module.dumps(value, ensure_ascii=False))


def note(line: str) -> None:
    """A remark for the person on stderr, beside the output proper."""
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def may_ask() -> bool:
    """Whether somebody is there to answer: both ends must be a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on the terminal, in full. Without one there is nobody to ask: raises `UsageError`, which names `--yes`."""
    if yes:
        return True
    if not may_ask():
        raise UsageError(
            f"this wants an answer, and there is no terminal to ask on: {question}", hint="add `--yes` to say yes"
        )
    sys.stdout.flush()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_live(wanted: bool | None) -> bool:
    """Whether to show the live picture: as wanted, else on a terminal that can move its cursor."""
    return wanted if wanted is not None else sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


@contextmanager
def database(url: str | None, *, make: bool = False) -> Iterator[Database]:
    """The opened database; only what begins something may `make` one. Debug logs are set up before one is written."""
    from agent import logs
    from state.db import Database

    logs.configure_once()
    db = Database.open(url, make=make)
    try:
        yield db
    finally:
        db.close()


def guard(command: Callable[[], int | None], *, json: bool) -> int:
    """Run a command. Returns its exit code, having said on stderr (and as JSON) what went wrong, if anything did."""
    try:
        code = command() or 0
        sys.stdout.flush()
    except typer.TyperException as error:  # a command line that cannot be read
        message = error.format_message()
        hint = _help_hint(error)
        text = message if not message or message.startswith("Usage:") else UsageError(message, hint=hint).render()
        return _failed(text, message, hint, error.exit_code, json=json)
    except typer.Exit as leave:
        return leave.exit_code
    except KeyboardInterrupt:
        return LEFT_AT_ONCE
    except BrokenPipeError:  # the reader had enough: `turnout sessions | head`
        _forget_reader()
        return 0
    except Exception as error:  # noqa: BLE001 - the outermost place: what is not expected is a bug and is told as one
        expected = _expected(error)
        if expected is not None:
            return _failed(expected.render(), expected.message, expected.hint, expected.exit_code, json=json)
        message = f"this is a bug in Turnout: {type(error).__name__}: {error}"
        hint = f"the traceback is in `{_keep_traceback()}`; jobs on hosts go on, `turnout resume` finds them again"
        return _failed(TurnoutError(message, hint=hint).render(), message, hint, BUG, json=json)
    return code


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Write to stdout, or not at all when nobody reads it: for commands whose exit code says more than that."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_reader()


def _forget_reader() -> None:
    """From here on stdout goes nowhere, also what is still in its buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _expected(error: BaseException) -> TurnoutError | None:
    """The error that says what to do: this one, or the first within a task group's."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _expected(inner)) is not None), None)
    return error if isinstance(error, TurnoutError) else None


def _failed(text: str, message: str, hint: str | None, code: int, *, json: bool) -> int:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    if json:
        say_json({"error": message, "hint": hint})
        sys.stdout.flush()
    return code


def _help_hint(error: typer.TyperException) -> str | None:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path} --help` shows what it takes" if context is not None else None


def _keep_traceback() -> Path:
    """Write the traceback of the exception being handled to the state directory, readable by its owner only."""
    from state.db import state_dir

    folder = state_dir() / "bugs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{' '.join(sys.argv)}\n\n{traceback.format_exc()}")
    return path


def target(option: str, text: str) -> Path:
    """The path of a file to be written. Raises `UsageError` where it cannot be, before anything is done for it."""
    path = Path(text).expanduser()
    if not path.parent.is_dir():
        raise UsageError(
            f"`{option} {text}`: there is no folder `{path.parent}`", hint=f"make it: `mkdir -p {path.parent}`"
        )
    if path.is_dir():
        raise UsageError(f"`{option} {text}` is a folder", hint=f"name a file in it, such as `{path / 'session'}`")
    return path


def pairs(given: Sequence[str]) -> Mapping[str, str]:
    """`["k=v", ...]` as a mapping. Raises `UsageError` for one without `=`."""
    for text in given:
        if "=" not in text or text.startswith("="):
            raise UsageError(f"`--set {text}` has no `=`", hint="write `--set name=value`")
    return dict(text.split("=", 1) for text in given)
