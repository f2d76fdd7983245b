"""`turnout drafter ...`: the words and options. What they say is in `agent/cli_serving.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli_frame import Db, Json, Yes, database

app = typer.Typer(no_args_is_help=True, help="Look at and tune EAGLE-3 drafters.", rich_markup_mode=None)

Sets = Annotated[list[str], typer.Option("--set", metavar="NAME=FILE", help="A prompt set (JSONL); may be repeated.")]
Host = Annotated[str, typer.Option("--host", metavar="HOST", help="Where it is served.")]


@app.command()
def doctor(
    folder: Annotated[str | None, typer.Argument(metavar="[FOLDER]", help="The exported drafter.")] = None,
    target: Annotated[str, typer.Option("--target", metavar="FOLDER", help="The model it drafts for.")] = "",
    prediction: Annotated[str, typer.Option("--prediction", metavar="FILE", help="What `evaluate` wrote.")] = "",
    measured: Annotated[
        list[str] | None, typer.Option("--measured", metavar="FILE", help="What the bench wrote; one for each engine.")
    ] = None,
    reference: Annotated[str, typer.Option("--reference", metavar="FILE", help="The target's own states.")] = "",
    captured: Annotated[str, typer.Option("--captured", metavar="FILE", help="The states an engine fed.")] = "",
    json: Json = False,
) -> int:
    """Say what is wrong: the folder, the drafter, or the engine.

    Exit code 1 when it found a fault. Give --prediction and --measured for the verdict.
    """
    from agent import cli_serving

    return cli_serving.doctor(
        folder,
        target=target,
        prediction=prediction,
        measured=measured or [],
        reference=reference,
        captured=captured,
        json=json,
    )


@app.command()
def tune(
    drafter: Annotated[str, typer.Argument(metavar="FOLDER", help="The drafter, as the host sees it.")],
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="The target, as the host sees it.")],
    sets: Sets,
    host: Host = "local",
    steps: Annotated[str, typer.Option("--steps", metavar="N,N", help="Lengths of chains.")] = "1,2,3,5",
    topk: Annotated[str, typer.Option("--topk", metavar="N,N", help="1: chains; above: trees too.")] = "1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the servers listen.")] = 30000,
    extra: Annotated[
        list[str] | None, typer.Option("--extra", metavar="ARG", help="For the server, e.g. --extra=--tp-size=8.")
    ] = None,
    yes: Yes = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Find the fastest speculative setting, by serving a few."""
    from agent import cli_serving

    given = {"drafter": drafter, "model": model, "steps": steps, "topk": topk, "port": str(port)}
    with database(db, make=True) as opened:
        return cli_serving.tune(opened, given, sets=sets, extra=extra or [], host=host, yes=yes, json=json)
