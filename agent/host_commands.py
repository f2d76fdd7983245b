"""hosts (to come)"""

from __future__ import annotations
import typer

app = typer.Typer(no_args_is_help=True, help="Know and look at GPU hosts.", rich_markup_mode=None)


@app.command("list")
def list_hosts() -> None:
    """List."""


@app.command("probe")
def probe() -> None:
    """List."""
