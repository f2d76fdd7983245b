"""The commands that start a session, go on with it, look at it, and take it from one machine to another.

Their words and options, and nothing more: as in `agent/__main__.py`, what a command does is imported when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from agent import cli_frame
from agent.cli_frame import Db, Json, OneSession, Yes

Watch = Annotated[
    bool | None, typer.Option("--watch/--no-watch", help="The live picture; by default when on a terminal.")
]
SomeSession = Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Its id, or a beginning of it.")]
JobOrTodo = Annotated[str, typer.Argument(metavar="JOB|TODO", help="A job's id or a todo's, or a beginning of it.")]


def chat(
    session: SomeSession = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the screen.")] = False,
    yes: Yes = False,
    db: Db = None,
) -> int:
    """Talk to a session, a new one by default.

    On a screen, or in plain lines for pipes and scripts. Leaving leaves jobs running.
    """
    from agent import cli_chat

    return cli_chat.chat(db, session, plain=plain, yes=yes)


def run(
    playbook: Annotated[str, typer.Argument(metavar="PLAYBOOK", help="A playbook's name, or the path of its file.")],
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Sets the parameter `host`.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Sets a parameter; may be repeated.")
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would run.")] = False,
    watch: Watch = None,
    json: Json = False,
    db: Db = None,
) -> int:
    """Start a playbook and stay with it."""
    given = cli_frame.pairs(sets or [])
    if dry_run:
        from agent import cli_playbook_show

        return cli_playbook_show.dry_run(playbook, given, host=host, db=db, json=json)
    from agent import cli_run

    with cli_frame.database(db, make=True) as opened:
        return cli_run.run(opened, playbook, given, host=host, yes=yes, json=json, watch=watch)


def resume(
    session: SomeSession = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try failed todos again.")] = False,
    from_file: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="Take the session in from an export first.")
    ] = None,
    yes: Yes = False,
    watch: Watch = None,
    json: Json = False,
    db: Db = None,
) -> int:
    """Go on with a session where it stands.

    By default with the newest one that has not ended.
    """
    from agent import cli_run

    with cli_frame.database(db, make=from_file is not None) as opened:
        if from_file is not None:
            from agent import cli_import

            session = cli_import.take_in(opened, from_file)
        return cli_run.resume(opened, session, retry=retry, yes=yes, json=json, watch=watch)


def watch(session: SomeSession = None, db: Db = None) -> int:
    """Look on while a session runs; changes nothing."""
    from agent import cli_watch

    with cli_frame.database(db) as opened:
        return cli_watch.watch(opened, session)


def replay(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION|FILE]", help="A session, or a file that holds one.")
    ] = None,
    speed: Annotated[str | None, typer.Option("--speed", metavar="10x", help="How fast; `1x` is as it was.")] = None,
    step: Annotated[bool, typer.Option("--step", help="Message by message.")] = False,
    at: Annotated[
        str | None, typer.Option("--at", metavar="SEQ|TIME|TODO", help="Begin at a message, a time or a todo.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the screen.")] = False,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML page.")] = None,
    no_logs: Annotated[bool, typer.Option("--no-logs", help="A page without the logs of jobs.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Feed its answers to today's code, and compare.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Rewrite a checked file as today's code has it.")] = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Watch a session again, write it as a page, or check it.

    By default the newest session. One that still runs is read on; nothing is changed.
    """
    if check or accept:
        from agent import cli_check

        return cli_check.check_(db, session, accept=accept, json=json)
    from agent import cli_replay

    wish = cli_replay.Wish(speed=speed, step=step, at=at, plain=plain, html=html, logs=not no_logs, json=json)
    return cli_replay.replay(db, session, wish)


def view(
    session: SomeSession = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="By default a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Serve the pages of sessions to this machine's browser."""
    from agent import cli_view

    with cli_frame.database(db) as opened:
        return cli_view.view(opened, session, port=port, browser=not no_browser and not json, json_=json)


def sessions(
    everything: Annotated[bool, typer.Option("--all", help="Not only the last 20; subagents' too.")] = False,
    json: Json = False,
    db: Db = None,
) -> None:
    """List sessions, newest first."""
    from agent import look, tables

    with cli_frame.database(db) as opened:
        rows = opened.read(lambda conn: look.sessions(conn, everything=everything))
    if json:
        cli_frame.say_json(rows)
    else:
        tables.sessions(rows)


def todo(session: SomeSession = None, json: Json = False, db: Db = None) -> None:
    """Show the todo graph of a session."""
    from agent import look, tables

    with cli_frame.database(db) as opened:
        shown = opened.read(lambda conn: look.read_board(conn, look.find_session(conn, session)))
    if json:
        cli_frame.say_json(look.todos(shown))
    else:
        tables.todos(shown)


def jobs(
    session: OneSession = None,
    everything: Annotated[bool, typer.Option("--all", help="Of all sessions, newest first.")] = False,
    json: Json = False,
    db: Db = None,
) -> None:
    """List the jobs of a session."""
    from agent import look, tables

    with cli_frame.database(db) as opened:
        rows = opened.read(lambda conn: look.jobs(conn, None if everything else look.find_session(conn, session)))
    if json:
        cli_frame.say_json(rows)
    else:
        tables.jobs(rows)


def logs(
    name: JobOrTodo,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="LINES", min=0, help="Only the last lines.")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="BYTE", min=0, help="All from this byte on.")
    ] = None,
    session: OneSession = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are, escape sequences too.")] = False,
    db: Db = None,
) -> int:
    """Show the log of a job, or of a todo's newest job."""
    from agent import cli_logs

    with cli_frame.database(db) as opened:
        return cli_logs.logs(opened, name, session, follow=follow, tail=tail, offset=offset, raw=raw)


def kill(
    name: JobOrTodo,
    grace: Annotated[
        float | None,
        typer.Option("--grace", metavar="SECONDS", min=0, help="Between TERM and KILL; else the job's own."),
    ] = None,
    session: OneSession = None,
    yes: Yes = False,
    db: Db = None,
) -> int:
    """End a job and all its processes on its host."""
    from agent import cli_kill

    with cli_frame.database(db) as opened:
        return cli_kill.kill(opened, name, session, grace_s=grace, yes=yes)


def export_(
    session: SomeSession = None,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="`turnout` or `claude-code`.")] = "turnout",
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Else it goes to stdout.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Take secrets out.")] = False,
    redact_hosts: Annotated[bool, typer.Option("--redact-hosts", help="And the names of machines.")] = False,
    redact_paths: Annotated[bool, typer.Option("--redact-paths", help="And the folders of files.")] = False,
    yes: Yes = False,
    db: Db = None,
) -> int:
    """Write a session to a file, to share or to resume elsewhere.

    By default the newest one, with its subagents.
    """
    from agent import cli_export

    with cli_frame.database(db) as opened:
        return cli_export.export_(
            opened, session, format=format, out=out, redact=redact, redact_hosts=redact_hosts,
            redact_paths=redact_paths, yes=yes,
        )  # fmt: skip


def import_(
    path: Annotated[str, typer.Argument(metavar="FILE|FOLDER", help="What another program recorded, or an export.")],
    json: Json = False,
    db: Db = None,
) -> int:
    """Bring in sessions of other programs, or exported ones.

    Claude Code, opencode, Codex, SWE-agent. The source is only read.
    """
    from agent import cli_import

    with cli_frame.database(db, make=True) as opened:
        return cli_import.import_(opened, path, json=json)


COMMANDS = (
    chat, run, resume, watch, replay, view, sessions, todo, jobs, logs, kill, export_, import_,
)  # fmt: skip
"""In the order of the help; a name that is Python's own has an underscore behind it here."""
