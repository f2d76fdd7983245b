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

from agent import cli_bench, cli_drafter, cli_frame, cli_playbook, host_commands, session_commands
from agent.cli_frame import Db, Json
from state.errors import TurnoutError

HOME = Path(__file__).resolve().parent.parent
"""Where the packages of Turnout lie side by side."""

app = typer.Typer(name="turnout", add_completion=False, no_args_is_help=False, rich_markup_mode=None)
app.add_typer(host_commands.app, name="hosts")
app.add_typer(cli_playbook.app, name="playbook")
app.add_typer(cli_drafter.app, name="drafter")


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


for command in session_commands.COMMANDS:
    app.command(command.__name__.rstrip("_"))(command)


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
