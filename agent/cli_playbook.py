"""`turnout playbook ...`: the words and options. What they show is in `agent/cli_playbook_show.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli_frame import Json

app = typer.Typer(no_args_is_help=True, help="List, show and check playbooks.", rich_markup_mode=None)

Playbook = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A playbook's name, or the path of its file.")]


@app.command("list")
def list_playbooks(json: Json = False) -> None:
    """List the playbooks that can be run by name."""
    from agent import cli_playbook_show

    cli_playbook_show.catalogue(json=json)


@app.command()
def show(playbook: Playbook, json: Json = False) -> None:
    """Show a playbook's parameters, steps and edges."""
    from agent import cli_playbook_show

    cli_playbook_show.show(playbook, json=json)


@app.command()
def check(playbook: Playbook, json: Json = False) -> int:
    """Say all that is wrong with a playbook, with file and line."""
    from agent import cli_playbook_show

    return cli_playbook_show.check(playbook, json=json)
