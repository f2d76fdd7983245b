"""The command line: `turnout COMMAND`, also as `python -m agent`. Each command's words and options, and nothing more.

What a command does is in the module that it imports when it runs, so that `--help` needs neither the database nor SSH.
docs/cli.md is the operator's page; tests/test_cli_options.py holds the list of commands and options.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent import cli_bench, cli_drafter, cli_frame, cli_playbook, host_commands
from agent.cli_frame import Db, Json, OneSession, Yes
from state.errors import TurnoutError

HOME = Path(__file__).resolve().parent.parent
"""Where the packages of Turnout lie side by side."""

app = typer.Typer(name="turnout", add_completion=False, no_args_is_help=False, rich_markup_mode=None)
app.add_typer(host_commands.app, name="hosts")
app.add_typer(cli_playbook.app, name="playbook")
app.add_typer(cli_drafter.app, name="drafter")

Watch = Annotated[
    bool | None, typer.Option("--watch/--no-watch", help="The live picture; by default when on a terminal.")
]
SomeSession = Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Its id, or a beginning of it.")]
JobOrTodo = Annotated[str, typer.Argument(metavar="JOB|TODO", help="A job's id or a todo's, or a beginning of it.")]


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    db: Db = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Debug logs on stderr.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int | None:
    """Runs both tracks at once: research the new engine, retry the old one, measure, and switch on evidence.

    `turnout run PLAYBOOK` starts, `turnout resume` goes on after anything, `turnout watch` looks on; `turnout` alone is
    the chat.
    """
    if db is not None:
        os.environ["TURNOUT_DB"] = db
    if verbose:
        from agent import logs

        logs.configure(verbose=True)
    if version:
        show_version()
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return None
    from agent import cli_chat

    if cli_chat.is_screen():
        return cli_chat.chat(None, None, plain=False)
    print(context.get_help(), file=sys.stderr)
    raise typer.Exit(2)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def watch(session: SomeSession = None, db: Db = None) -> int:
    """Look on while a session runs; changes nothing."""
    from agent import cli_watch

    with cli_frame.database(db) as opened:
        return cli_watch.watch(opened, session)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def todo(session: SomeSession = None, json: Json = False, db: Db = None) -> None:
    """Show the todo graph of a session."""
    from agent import look, tables

    with cli_frame.database(db) as opened:
        shown = opened.read(lambda conn: look.read_board(conn, look.find_session(conn, session)))
    if json:
        cli_frame.say_json(look.todos(shown))
    else:
        tables.todos(shown)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command("export")
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


@app.command("import")
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


@app.command()
def diagnose(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A server's log or any GPU listing; `-` is stdin.")],
    json: Json = False,
) -> int:
    """Say what a log or a GPU listing means, and a remedy."""
    from agent import cli_diagnose

    return cli_diagnose.diagnose(file, json=json)


app.command("bench")(cli_bench.bench)


@app.command()
def translate(
    source: Annotated[
        str, typer.Argument(metavar="COMMAND|FILE|-", help="A vLLM command in quotes, or a script, unit, manifest.")
    ],
    sglang_version: Annotated[
        str | None, typer.Option("--sglang-version", metavar="VERSION", help="The options of that SGLang release.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="The options of the SGLang installed there.")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="With --host: the Python that has SGLang.")
    ] = None,
    json: Json = False,
    db: Db = None,
) -> int:
    """Translate how vLLM is started to SGLang.

    The command goes to stdout, the report to stderr. Exit code 0 is clean, 10 with warnings, 20 refused.
    """
    from agent import cli_translate

    return cli_translate.run(source, version=sglang_version, host=host, python=python, db=db, json=json)


@app.command()
def doctor(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild every table from the log.")] = False,
    hosts: Annotated[bool, typer.Option("--hosts", help="Also reach each known host.")] = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Check the installation, the database and this machine."""
    from agent import doctor as doctor_module

    return doctor_module.doctor(db, rebuild=rebuild, hosts=hosts, json=json)


@app.command("version")
def show_version() -> None:
    """Print the version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        cli_frame.say(f"turnout {version('turnout')}")
    except PackageNotFoundError:
        cli_frame.say(f"turnout, not installed, from {HOME}")


def main() -> None:
    """The entry point of `turnout`."""
    arguments = sys.argv[1:]
    command = typer.main.get_command(app)

    def invoke() -> int | None:
        _check_packages()
        with command.make_context("turnout", list(arguments)) as context:
            result = command.invoke(context)
        return result if isinstance(result, int) else None

    sys.exit(cli_frame.guard(invoke, json="--json" in arguments))


def _check_packages() -> None:
    """Our packages have common names: make sure that it is ours that were found. Raises `TurnoutError`."""
    import state
    import tools

    for package in (state, tools):
        if package.__file__ is None or Path(package.__file__).resolve().parent.parent != HOME:
            raise TurnoutError(
                f"the package `{package.__name__}` comes from `{package.__file__}` and not from `{HOME}`",
                hint="another package of that name is found first: use a virtual environment of Turnout's own",
            )


if __name__ == "__main__":
    main()
