"""`turnout replay --check`: a stored session or a recording against today's code; `--accept` rewrites a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent import recording
from agent.check import Verdict, check
from agent.cli_frame import database, note, say, say_json
from agent.look import find_session
from state import export
from state.errors import UsageError
from state.log import read
from state.models import Message


def check_(db: str | None, wanted: str | None, *, accept: bool, json: bool) -> int:
    """Check the session with its subagents, and say what differs. Returns 1 where something does.

    The database at `db` is opened only for a stored session: a file is checked without anything beside it.

    Raises `NotFound`, and `UsageError` for a file that is no export and for `--accept` without a file.
    """
    path = None if wanted is None or not is_file(wanted) else Path(wanted).expanduser()
    if accept and path is None:
        raise UsageError(
            "a stored session is not rewritten: its log is what happened", hint="`--accept` wants an exported file"
        )
    if accept and path is not None:
        return _accept(path, json=json)
    sessions = recording.read(path) if path is not None else _stored(db, wanted)
    verdicts = [check(messages) for messages in sessions.values() if is_ours(messages)]
    if not verdicts:
        raise UsageError(
            "this session was recorded by another program: there is no code of Turnout to check it against",
            hint="`turnout replay` shows it",
        )
    if json:
        say_json(as_json(verdicts))
    else:
        _tell(verdicts)
    return 1 if any(verdict.difference for verdict in verdicts) else 0


def is_file(wanted: str) -> bool:
    """Whether a path is meant and not a session."""
    return "/" in wanted or "." in wanted or Path(wanted).exists()


def is_ours(messages: Sequence[Message]) -> bool:
    """Whether a log was made by our own code and not imported."""
    return bool(messages) and messages[0].payload.get("kind") != "imported"


def _stored(db: str | None, wanted: str | None) -> Mapping[str, list[Message]]:
    with database(db) as opened:
        return opened.read(
            lambda conn: {id: list(read(conn, id)) for id in export.family(conn, find_session(conn, wanted))}
        )


def as_json(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The main session's verdict, and those of its subagents."""
    return {**verdicts[0].as_json(), "subagents": [verdict.as_json() for verdict in verdicts[1:]]}


def _tell(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        for remark in verdict.notes:
            note(remark)
        said = f"session {verdict.session}: {verdict.compared} of {verdict.messages} messages were made again"
        say(f"{said}, " + ("and one differs" if verdict.difference else "and none differs"))
        if verdict.difference is not None:
            for line in verdict.difference.lines():
                say(line)


def _accept(path: Path, *, json: bool) -> int:
    done = recording.accept(path)
    if json:
        say_json({"messages": done.messages, "changed": done.changed, "open_jobs": done.open_jobs})
    else:
        say(f"{path}: {done.messages} messages, {done.changed} of them are others now")
        for job in done.open_jobs:
            note(f"nobody answered for job `{job}`: the recording ends while it runs")
    return 0
