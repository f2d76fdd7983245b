"""What playbooks call of serving: the command of a server, the command that measures one, a drafter's verdict.

    - {id: plan, tool: serve_plan, args: {engine: sglang, model: /models/k2, port: 30000, drafter: /drafters/k2}}
    - id: serve
      after: plan
      job: {host: gpu1, gpus: 8, run: "{{ todos.plan.run }}", ready: {http: "{{ todos.plan.ready.http }}"}}
    - {id: bench_plan, tool: bench_plan, args: {host: gpu1, url: "{{ todos.plan.url }}", sets: {mt: mt_bench.jsonl}}}
    - {id: bench, after: [serve, bench_plan], job: {host: gpu1, run: "{{ todos.bench_plan.run }}"}}
    - id: verdict
      after: bench
      tool: {name: drafter_verdict, args: {prediction: "{{ todos.evaluate }}", measured: "{{ todos.bench }}"}}

A plan has no effect but files on the host, kept by their content, so it may be made twice.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from anyio import to_thread

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.serving.doctor import Verdict
from tools.serving.doctor_evidence import diagnose_acceptance
from tools.serving.engines import ServeSpec, bench_command, engine, service
from tools.ssh import Host
from tools.urls import http_url

BENCH = Path(__file__).with_name("bench")
OPTIONS = (
    "engine", "limit", "split", "raw", "concurrency", "temperature", "top_p", "max_tokens", "ignore_eos", "warmup",
    "seed", "wait", "baseline", "baseline_url", "launched", "key_env", "out", "expect_model",
)  # fmt: skip


@tool
async def serve_plan(call: ToolCall) -> dict[str, Any]:
    """The body of a service job for `engine` and the fields of `ServeSpec`: `run`, `ready`, `grace_s`, `url`."""
    chosen = engine(str(call.arg("engine")))
    given = {name: value for name, value in call.args.items() if name not in ("engine", "python") and value is not None}
    known = {field.name for field in fields(ServeSpec)}
    if given.keys() - known:
        raise ToolError(
            f"serve_plan of `{call.todo}` does not know {_listed(given.keys() - known)}",
            hint=f"it takes engine, python and {', '.join(sorted(known))}",
        )
    call.arg("model")
    given["extra"] = tuple(map(str, given.get("extra", ())))
    spec = ServeSpec(**{"port": chosen.default_port, **given})
    return service(chosen, spec, python=str(call.arg("python", "python3")))


@tool
async def bench_plan(call: ToolCall) -> dict[str, Any]:
    """Put the bench and local prompt files on `host`; gives `run`, the command that measures the server at `url`."""
    sets = prompt_sets(call)
    options = {name: value for name, value in call.args.items() if name not in ("host", "url", "sets", "python")}
    if options.keys() - set(OPTIONS):
        raise ToolError(
            f"bench_plan of `{call.todo}` does not know {_listed(options.keys() - set(OPTIONS))}",
            hint=f"it takes host, url, sets, python and {', '.join(OPTIONS)}",
        )
    try:
        http_url(str(call.arg("url")))
    except ValueError as error:
        raise ToolError(f"`url` of `{call.todo}` is `{call.arg('url')}`: {error}") from error
    host = await call.host(str(call.arg("host")))
    baseline = {"baseline.json": str(options["baseline"])} if options.get("baseline") else {}
    folder, paths = await stage(host, sets | baseline)
    if baseline:
        options["baseline"] = paths.pop("baseline.json")
    python = str(call.arg("python", "python3"))
    return {"run": bench_command(folder, str(call.arg("url")), paths, python=python, **options), "sets": paths}


@tool
async def drafter_verdict(call: ToolCall) -> dict[str, Any]:
    """The doctor's verdict on a `prediction` and a `measured` result: that of the worst set, and of each."""
    return worst_of(diagnose_acceptance(call.arg("prediction"), call.arg("measured"), []))


def worst_of(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The worst of the verdicts of some sets as JSON, and each of them under `sets`."""
    order = ("engine integration broken", "data mismatch", "drafter weak", "not comparable", "healthy")
    worst = min(verdicts, key=lambda verdict: order.index(verdict.name))
    return {**worst.as_json(), "sets": [verdict.as_json() for verdict in verdicts]}


async def stage(host: Host, named: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Put the bench on a host, and those of the named files that are here; its folder, and all paths on the host."""
    folder = Path(await to_thread.run_sync(tempfile.mkdtemp))
    try:
        here = await to_thread.run_sync(_lay_out, folder, named)
        there = await host.put_tree(folder)
    finally:
        await to_thread.run_sync(shutil.rmtree, folder)
    return there, {name: f"{there}/files/{name}" if name in here else path for name, path in named.items()}


def _lay_out(folder: Path, named: Mapping[str, str]) -> set[str]:
    """Copy the bench and the files that are here; returns the names of those."""
    shutil.copytree(BENCH, folder / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "files").mkdir()
    here = {name: Path(path).expanduser() for name, path in named.items() if Path(path).expanduser().is_file()}
    for name, path in here.items():
        shutil.copyfile(path, folder / "files" / name)
    return set(here)


def prompt_sets(call: ToolCall) -> dict[str, str]:
    """The argument `sets`: names and files, as a mapping or as a list of `name=file`. Raises ToolError otherwise."""
    value = call.arg("sets")
    if isinstance(value, Mapping):
        pairs = [(str(name), str(path)) for name, path in value.items()]
    else:
        listed = value if isinstance(value, list) else []
        pairs = [(name, path) for name, _, path in (str(one).partition("=") for one in listed)]
    if not pairs or not all(path and re.fullmatch(r"[\w.-]+", name) for name, path in pairs):
        raise ToolError(f"`sets` of `{call.todo}` is `{value}`", hint="give `{name: file.jsonl}` or `name=file`")
    return dict(pairs)


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
