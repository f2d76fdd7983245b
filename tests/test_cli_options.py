"""The whole command line in one list, so that options do not creep in; and how light its help is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from agent.__main__ import app
from tests.cli_helpers import ROOT

EXPECTED = {
    "turnout": "--db --help --verbose --version -v",
    "turnout chat": "--db --help --plain --yes -y [SESSION]",
    "turnout run": "--db --dry-run --help --host --json --no-watch --set --watch --yes -y PLAYBOOK",
    "turnout resume": "--db --from --help --json --no-watch --retry --watch --yes -y [SESSION]",
    "turnout watch": "--db --help [SESSION]",
    "turnout replay": "--accept --at --check --db --help --html --json --no-logs --plain --speed --step [SESSION|FILE]",
    "turnout view": "--db --help --json --no-browser --port [SESSION]",
    "turnout sessions": "--all --db --help --json",
    "turnout todo": "--db --help --json [SESSION]",
    "turnout jobs": "--all --db --help --json --session -s",
    "turnout logs": "--db --follow --help --offset --raw --session --tail -f -s JOB|TODO",
    "turnout kill": "--db --grace --help --session --yes -s -y JOB|TODO",
    "turnout export": "--db --format --help --out --redact --redact-hosts --redact-paths --yes -o -y [SESSION]",
    "turnout import": "--db --help --json FILE|FOLDER",
    "turnout diagnose": "--help --json FILE|-",
    "turnout translate": "--db --help --host --json --python --sglang-version COMMAND|FILE|-",
    "turnout doctor": "--db --help --hosts --json --rebuild",
    "turnout version": "--help",
    "turnout hosts": "--help",
    "turnout hosts add": "--db --fingerprint --gpus --help --identity --max-jobs --python --root --sbatch --slurm"
    " --yes -y NAME [[USER@]ADDRESS[:PORT]]",
    "turnout hosts list": "--db --help --json",
    "turnout hosts probe": "--db --help --json NAME",
    "turnout hosts trust": "--db --fingerprint --help --yes -y NAME",
    "turnout hosts remove": "--db --help --yes -y NAME",
    "turnout bench": "--baseline --concurrency --db --help --host --json --limit --max-tokens --set --temperature --url"
    " --yes -y",
    "turnout drafter": "--help",
    "turnout drafter doctor": "--captured --help --json --measured --prediction --reference --target [FOLDER]",
    "turnout drafter tune": "--db --extra --help --host --json --model --port --set --steps --topk --yes -y FOLDER",
    "turnout playbook": "--help",
    "turnout playbook list": "--help --json",
    "turnout playbook show": "--help --json NAME|FILE",
    "turnout playbook check": "--help --json NAME|FILE",
}

HEAVY = {"sqlmodel", "sqlalchemy", "asyncssh", "anyio", "rich", "jinja2", "anthropic", "structlog", "yaml"}


def commands(command: typer.main.Any, path: str = "turnout") -> dict[str, str]:
    """Every command with its options and arguments, sorted."""
    context = typer.Context(command, info_name=path)
    words = [word for param in command.get_params(context) for word in _words(param)]
    found = {path: " ".join(sorted(words, key=lambda word: (not word.startswith("-"), word)))}
    for name, inner in getattr(command, "commands", {}).items():
        found |= commands(inner, f"{path} {name}")
    return found


def _words(param: typer.main.Any) -> list[str]:
    if param.param_type_name == "argument":
        return [param.metavar]
    return [*param.opts, *param.secondary_opts]


def test_no_command_or_option_creeps_in() -> None:
    """The command line is exactly this list: to change it is to change a contract."""
    assert commands(typer.main.get_command(app)) == EXPECTED


def test_every_command_has_a_short_help() -> None:
    """The first line of each help is a whole sentence that fits into the list of commands."""

    def check(command: typer.main.Any) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            first = (inner.help or "").partition("\n")[0]
            assert first.endswith("."), name
            assert len(first) <= 60, name
            check(inner)

    check(typer.main.get_command(app))


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["hosts", "add", "--help"], ["--version"]])
def test_help_needs_neither_database_nor_ssh(arguments: list[str]) -> None:
    """Help is quick because it imports nothing of what the commands need."""
    script = (
        "import json, sys\n"
        f"sys.argv = ['turnout', *{arguments!r}]\n"
        "from agent.__main__ import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert not loaded & HEAVY


def test_the_page_of_the_command_line_names_every_command_and_option() -> None:
    """docs/cli.md holds a row for each command with all of its options."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1].replace("\\|", "|"): line for line in page.splitlines() if line.startswith("| `")}
    for command, words in EXPECTED.items():
        name = command.removeprefix("turnout").strip()
        options = [word for word in words.split() if word.startswith("-") and word != "--help"]
        if name and words != "--help":
            row = next(line for key, line in rows.items() if key == name or key.startswith(f"{name} "))
            assert all(f"`{option}" in row for option in options), (command, options)
