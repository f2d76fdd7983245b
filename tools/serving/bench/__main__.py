"""The bench's command line: reads prompts, measures every set at every concurrency and temperature, writes JSON.

The whole result goes to `--out` and is written anew after each pass, so that a server that dies leaves what was
measured. At `$TURNOUT_OUTPUT` stands the same without the figures of single prompts. Exit code 1: it did not finish.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import compare, passes, report
from .adapters import Sampling, wait_until_alive
from .errors import BenchError
from .prompts import load
from .transport import Server

FORMAT = "turnout-bench/1"


def arguments() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="python3 -m bench", description="Measure a model server where it runs.")
    add = parser.add_argument
    add("--url", required=True, help="the server, e.g. http://127.0.0.1:30000")
    add("--engine", choices=("auto", "sglang", "vllm"), default="auto")
    add("--expect-model", metavar="MODEL", help="stop unless the server serves this one")
    add("--set", action="append", default=[], metavar="NAME=FILE", help="a prompt set (JSONL); may be repeated")
    add("--limit", type=int, default=0, metavar="N", help="the first N prompts of each set")
    add("--split", help="only lines of this `split`, where they name one")
    add("--raw", action="store_true", help="send texts without the chat template")
    add("--template-set", action="append", default=[], metavar="KEY=JSON", help="for the chat template, e.g. thinking")
    add("--concurrency", type=_numbers(int), default=[1], metavar="N,N", help="requests in flight (default: 1)")
    add("--temperature", type=_numbers(float), default=[0.0], metavar="T,T", help="0 is greedy (default: 0)")
    add("--top-p", type=float, default=1.0)
    add("--max-tokens", type=int, default=256, metavar="N", help="of each answer (default: 256)")
    add("--ignore-eos", action="store_true", help="make every answer that long; answers may then go in circles")
    add("--warmup", type=int, default=4, metavar="N", help="requests before each pass, at least the concurrency")
    add("--seed", type=int, default=0)
    add("--wait", type=float, default=0.0, metavar="SECONDS", help="wait so long for the server to generate")
    add("--baseline", metavar="FILE", help="a result without speculation to compare with")
    add("--baseline-url", metavar="URL", help="a server without speculation, measured first")
    add("--launched", metavar="COMMAND", help="how the server was started, for the record")
    add("--key-env", metavar="NAME", help="the environment variable that holds the server's API key")
    add("--out", default="bench.json", metavar="FILE", help="the whole result (default: bench.json)")
    return parser


def _numbers(kind: Any) -> Any:
    def read(text: str) -> list[Any]:
        values = [kind(part) for part in text.split(",")]
        if min(values) < (1 if kind is int else 0):
            raise ValueError(text)
        return values

    read.__name__ = f"list of {kind.__name__}"
    return read


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = arguments().parse_args(argv)
    try:
        folder = os.path.dirname(given.out) or "."
        if not os.path.isdir(folder):
            raise BenchError(f"`--out {given.out}`: there is no folder `{folder}`", f"make it: `mkdir -p {folder}`")
        plain = _load_result(given.baseline) if given.baseline else None
        if given.baseline_url:
            plain = measure(given, given.baseline_url, None, f"{given.out}.baseline")
        result = measure(given, given.url, plain, given.out)
    except BenchError as error:
        print(error.render(), file=sys.stderr)
        return 1
    output = os.environ.get("TURNOUT_OUTPUT")
    if output:
        write(output, report.summary(result, given.out))
    for line in report.lines(result):
        print(line)
    print(f"result: {given.out}")
    return 0


def measure(given: argparse.Namespace, url: str, plain: dict[str, Any] | None, out: str) -> dict[str, Any]:
    """Measure one server; the result, also written to `out`. Raises BenchError; `out` has the passes done before."""
    key = os.environ.get(given.key_env) if given.key_env else None
    adapter = wait_until_alive(Server(url, key=key), given.engine, given.wait)
    engine = adapter.describe()
    print(f"{engine['name']} {engine['version']} serves `{engine['model']}`, {_speculates(engine)}", flush=True)
    if given.expect_model and given.expect_model.rstrip("/") != str(engine["model"]).rstrip("/"):
        raise BenchError(f"`{url}` serves `{engine['model']}`, not `{given.expect_model}`", "is it the right server?")
    template = {k: _json(v) for k, v in _named(given.template_set, "--template-set", "KEY=JSON").items()}
    asked = _ask(adapter, given, template)
    result: dict[str, Any] = {
        "format": FORMAT,
        "complete": False,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "engine": engine,
        "launched": given.launched,
        "gpus": passes.gpus(),
        "settings": {
            "max_tokens": given.max_tokens, "top_p": given.top_p, "ignore_eos": given.ignore_eos, "seed": given.seed,
            "warmup": given.warmup, "raw": given.raw, "template": template,
        },
        "sets": {one.name: one.describe() for one in asked},
        "passes": [],
        "notes": [],
    }  # fmt: skip
    progress = passes.Progress(passes.requests_of(asked, given.concurrency, given.temperature, given.warmup))
    for temperature in given.temperature:
        sampling = Sampling(given.max_tokens, temperature, given.top_p, given.ignore_eos, given.seed)
        for one in asked:
            for concurrency in given.concurrency:
                result["passes"].append(
                    passes.run_pass(adapter, one, concurrency, sampling, given.warmup, engine["speculation"], progress)
                )
                write(out, result)
    if plain is not None:
        compare.against(result, plain)
    result["notes"] = report.remarks(result)
    result["complete"] = True
    write(out, result)
    return result


def _ask(adapter: Any, given: argparse.Namespace, template: dict[str, Any]) -> list[passes.Asked]:
    files = _named(given.set, "--set", "NAME=FILE")
    if not files:
        raise BenchError("there is nothing to ask", "give prompts: `--set NAME=FILE`")
    return [
        passes.ask_for_ids(adapter, name, load(path, raw=given.raw, split=given.split, limit=given.limit), template)
        for name, path in files.items()
    ]


def _speculates(engine: dict[str, Any]) -> str:
    told = engine["speculation"]
    if not told:
        return "without speculation"
    shown = f"steps {told['steps']}, top-k {told['topk']}, draft tokens {told['draft_tokens']}"
    return f"with {told['algorithm'] or 'speculation'}, {shown}"


def _named(given: Sequence[str], option: str, form: str) -> dict[str, str]:
    for text in given:
        if "=" not in text or text.startswith("="):
            raise BenchError(f"`{option} {text}` is not understood", f"write `{option} {form}`")
    return dict(text.split("=", 1) for text in given)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _load_result(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise BenchError(f"cannot read the baseline `{path}`: {error}", "give a file that `--out` wrote") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not found.get("complete"):
        raise BenchError(f"`{path}` is no finished result of this bench", "measure the baseline again with `--out`")
    return found


def write(path: str, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one."""
    partial = f"{path}.{os.getpid()}.tmp"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
