"""What `turnout bench`, `turnout drafter tune` and `turnout drafter doctor` do and say.

The first two are playbooks, so that they can be watched, resumed and replayed like anything else; the doctor reads
files and touches nothing.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from agent import cli_run
from agent.cli_frame import say, say_json
from agent.look import find_session, read_board
from agent.painter import plain
from agent.screen import screen
from state.db import Database
from state.errors import UsageError
from tools.serving import doctor_states, steps, tune_trials  # noqa: F401 - registers their tools
from tools.serving.bench import report
from tools.serving.doctor import Verdict
from tools.serving.doctor_evidence import diagnose_acceptance
from tools.serving.doctor_finding import Finding, ranked
from tools.serving.doctor_folder import digest, examine, outcome
from tools.serving.doctor_weights import read_json
from tools.urls import http_url

_STYLES = {"error": "red", "warning": "yellow", "note": "dim", "healthy": "bold green", "not comparable": "yellow"}


def bench(db: Database, given: Mapping[str, str], *, sets: Sequence[str], host: str, yes: bool, json: bool) -> int:
    """Measure a server and say the figures. Returns the exit code. Raises `UsageError` for what is no URL."""
    try:
        http_url(given["url"])
    except ValueError as error:
        raise UsageError(f"`--url {given['url']}` is no URL", hint=str(error)) from error
    result, code = _play(db, "bench", "measure", given, sets=sets, host=host, yes=yes, json=json)
    for line in report.lines(dict(result)) if result else ():
        say(line)
    return code


def tune(
    db: Database,
    given: Mapping[str, str],
    *,
    sets: Sequence[str],
    extra: Sequence[str],
    host: str,
    yes: bool,
    json: bool,
) -> int:
    """Search the fastest setting and say what was tried and what to start the server with."""
    more = {"extra": json_module.dumps(list(extra))} if extra else {}
    result, code = _play(db, "drafter-tune", "tune", {**given, **more}, sets=sets, host=host, yes=yes, json=json)
    if result:
        tell_tuning(result)
    return code


def _play(
    db: Database, playbook: str, todo: str, given: Mapping[str, str], *,
    sets: Sequence[str], host: str, yes: bool, json: bool,
) -> tuple[Mapping[str, Any] | None, int]:  # fmt: skip
    """Run a playbook; what its main step found (`None` if it failed, or if `json` told it), and the exit code."""
    for one in sets:
        name, _, path = one.partition("=")
        if not name or not path:
            raise UsageError(f"`--set {one}` names no file", hint="write `--set name=prompts.jsonl`")
        if host == "local" and not Path(path).expanduser().is_file():
            raise UsageError(f"there is no file `{path}`", hint="`--set NAME=FILE` names a file of prompts")
    values = {name: value for name, value in given.items() if value} | {"sets": json_module.dumps(list(sets))}
    code = cli_run.run(db, playbook, values, host=host, yes=yes, json=json, watch=None)
    board = db.read(lambda conn: read_board(conn, find_session(conn, None)))
    played = board.todos[todo]
    return None if json or played.status != "completed" else played.result, code


def tell_tuning(result: Mapping[str, Any]) -> None:
    """What a search tried, and what to start the server with."""
    for trial in result["trials"]:
        worth = f"{trial['multiplier']:.2f}x over {trial['prompts']} prompts" if trial["multiplier"] else "not started"
        said = "" if trial["predicted"] is None else f", predicted {trial['predicted']:.2f}x"
        say(f"{trial['setting']:<8} {worth}{said}" + (f": {trial['left_out']}" if trial["left_out"] else ""))
    for name, reason in result["failed"].items():
        say(f"{name:<8} did not come up: {reason}")
    for name, flags in result["by_set"].items():
        say(f"best for {name}: {flags or 'no speculation'}")
    say(f"best overall: {result['flags'] or 'no speculation'} ({result['multiplier']:.2f}x)")


def doctor(
    folder: str | None,
    *,
    target: str,
    prediction: str,
    measured: Sequence[str],
    reference: str,
    captured: str,
    json: bool,
) -> int:
    """Examine what was given; 1 when something is wrong. Raises `UsageError` when nothing was, or half a pair."""
    if bool(prediction) != bool(measured) or bool(reference) != bool(captured):
        raise UsageError(
            "half of a pair was given", hint="--prediction goes with --measured, and --reference with --captured"
        )
    if not (folder or prediction or reference):
        raise UsageError("there is nothing to look at", hint="give a drafter's folder, or --prediction and --measured")
    goal = Path(target).expanduser() if target else None
    place = Path(folder).expanduser() if folder else None
    findings = examine(place, goal) if place else []
    engines = outcome(place, goal) if place and goal else {}
    if reference:
        if not engines:
            raise UsageError(
                "which boundaries were trained?", hint="give the drafter's FOLDER and its --target as well"
            )
        states = _states(Path(reference), Path(captured), engines["boundaries"]["sglang"])
        findings = ranked([*findings, *states])
    verdicts: list[Verdict] = []
    if prediction:
        own = digest(place) if place else None
        expected = read_json(Path(prediction))
        for path in measured:
            verdicts += diagnose_acceptance(expected, read_json(Path(path)), findings, drafter=own)
    if json:
        say_json({
            "verdicts": [verdict.as_json() for verdict in verdicts], "engines": engines,
            "findings": [finding.as_json() for finding in findings],
        })  # fmt: skip
    else:
        _tell(verdicts, findings, engines)
    sick = any(verdict.name != "healthy" for verdict in verdicts)
    return int(sick or any(finding.level == "error" for finding in findings))


def _states(reference: Path, captured: Path, expected: Sequence[int]) -> list[Finding]:
    own, fed = doctor_states.load(reference), doctor_states.load(captured)
    slots = doctor_states.compare_states(own, fed, expected)
    return doctor_states.findings(slots, doctor_states.embedding_shift(own, fed))


def comparison(verdicts: Sequence[Verdict]) -> list[str]:
    """One table: tokens of a round as predicted and as each engine has them, by prompt set, with the verdicts."""
    engines = list(dict.fromkeys(verdict.engine for verdict in verdicts))
    rows: dict[str, dict[str, Verdict]] = {}
    for verdict in verdicts:
        rows.setdefault(verdict.measured.about if verdict.measured else "all", {})[verdict.engine] = verdict
    table = [("set", "predicted", *engines)]
    for about, by_engine in rows.items():
        told = next((one.prediction for one in by_engine.values() if one.prediction), None)
        cells = [_cell(by_engine[name]) if name in by_engine else "-" for name in engines]
        table.append((about, f"{told.length:.2f}" if told else "-", *cells))
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _cell(verdict: Verdict) -> str:
    return f"{verdict.measured.length:.2f} {verdict.name}" if verdict.measured else verdict.name


def _tell(verdicts: Sequence[Verdict], findings: Sequence[Finding], engines: Mapping[str, Any]) -> None:
    console = screen()

    def line(label: str, text: str, style: str = "") -> None:
        console.print(Text.assemble((f"{label:<10}", "dim"), (plain(text), style)), soft_wrap=True)

    for text in comparison(verdicts) if len(verdicts) > 1 else ():
        say(text)
    for verdict in verdicts:
        about = verdict.measured.about if verdict.measured else "all"
        whose = f"{about} in {verdict.engine}" if len({one.engine for one in verdicts}) > 1 else about
        line("verdict", f"{whose}: {verdict.name}", _STYLES.get(verdict.name, "bold red"))
        for text in verdict.evidence:
            line("because", text)
        if verdict.fault:
            line("fault", verdict.fault, "bold")
        if verdict.next:
            line("next", verdict.next, "green")
    for engine, boundaries in engines.get("boundaries", {}).items():
        line(engine, f"feeds the drafter boundaries {boundaries}")
    for finding in findings:
        line(finding.level, f"{finding.what} [{finding.code}; {', '.join(finding.engines)}]", _STYLES[finding.level])
        line("remedy", finding.remedy, "green")
    if not findings and not verdicts:
        line("", "nothing found", "green")
