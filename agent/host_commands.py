"""`turnout hosts ...`: the words and options. What they do is in `agent/host_actions.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli_frame import Db, Json, Yes, database

app = typer.Typer(no_args_is_help=True, help="Know and look at GPU hosts.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The host's name in Turnout.")]


@app.command()
def add(
    name: Name,
    address: Annotated[
        str | None,
        typer.Argument(metavar="[[USER@]ADDRESS[:PORT]]", help="Where it is; by default NAME, as `ssh NAME` takes it."),
    ] = None,
    identity: Annotated[str, typer.Option("--identity", metavar="FILE", help="The private key to log in with.")] = "",
    root: Annotated[str, typer.Option("--root", metavar="FOLDER", help="Where it keeps jobs.")] = "~/.turnout",
    python: Annotated[str, typer.Option("--python", metavar="PATH", help="The Python 3.8+ to use there.")] = "",
    max_jobs: Annotated[int | None, typer.Option("--max-jobs", min=1, help="Jobs that may run there at once.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs to use; by default those found.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="It is a login node: Slurm runs its jobs.")] = False,
    sbatch: Annotated[
        str, typer.Option("--sbatch", metavar="OPTIONS", help="For `sbatch`, e.g. '--partition gpu'. Means --slurm.")
    ] = "",
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="SHA256:...", help="Expect this host key, and do not ask.")
    ] = None,
    yes: Yes = False,
    db: Db = None,
) -> int:
    """Add a host: show its key, pin it, and look at the machine."""
    from agent import host_actions

    settings = {"identity": identity, "root": root, "python": python, "max_jobs": max_jobs, "gpus": gpus}
    if slurm or sbatch:
        settings |= {"slurm": True, "sbatch": sbatch}
    with database(db, make=True) as opened:
        return host_actions.add(opened, name, address or "", settings, fingerprint=fingerprint, yes=yes)


@app.command("list")
def list_hosts(json: Json = False, db: Db = None) -> None:
    """List the hosts that were added."""
    from agent import cli_frame, host_picture, look

    with database(db) as opened:
        rows = opened.read(look.hosts)
    if json:
        cli_frame.say_json(rows)
    else:
        host_picture.listing(rows)


@app.command()
def probe(name: Name, json: Json = False, db: Db = None) -> int:
    """Look at a host: system, disks, GPUs, engines."""
    from agent import host_actions

    with database(db) as opened:
        return host_actions.probe(opened, name, json=json)


@app.command()
def trust(
    name: Name,
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="SHA256:...", help="Expect this host key, and do not ask.")
    ] = None,
    yes: Yes = False,
    db: Db = None,
) -> int:
    """Pin a host's new key after it has changed."""
    from agent import host_actions

    with database(db) as opened:
        return host_actions.trust(opened, name, fingerprint=fingerprint, yes=yes)


@app.command()
def remove(name: Name, yes: Yes = False, db: Db = None) -> int:
    """Forget a host, unless jobs run there."""
    from agent import host_actions

    with database(db) as opened:
        return host_actions.remove(opened, name, yes=yes)
