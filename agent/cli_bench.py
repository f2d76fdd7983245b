"""`turnout bench`: the words and options. It runs the playbook `bench`; what is said of it, `agent/cli_serving.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli_drafter import Host, Sets
from agent.cli_frame import Db, Json, Yes, database


def bench(
    sets: Sets,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The server, as its host sees it.")],
    host: Host = "local",
    concurrency: Annotated[str, typer.Option("--concurrency", metavar="N,N", help="Requests in flight.")] = "1",
    temperature: Annotated[str, typer.Option("--temperature", metavar="T,T", help="0 is greedy.")] = "0",
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Of each answer.")] = 256,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The first N prompts of each set; 0: all.")] = 0,
    baseline: Annotated[str, typer.Option("--baseline", metavar="FILE", help="A result without speculation.")] = "",
    yes: Yes = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Measure a model server from its own host.

    Rates, time to the first token, accepted drafts; with --baseline also what speculation gains.
    """
    from agent import cli_serving

    given = {
        "url": url, "concurrency": concurrency, "temperature": temperature, "max_tokens": str(max_tokens),
        "limit": str(limit), "baseline": baseline,
    }  # fmt: skip
    with database(db, make=True) as opened:
        return cli_serving.bench(opened, given, sets=sets, host=host, yes=yes, json=json)
