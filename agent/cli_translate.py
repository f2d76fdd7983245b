"""`turnout translate`: a vLLM command as SGLang's. The command goes to stdout, the report to stderr.

So `turnout translate run.sh > new.sh` writes a script and still tells what was lost. Exit codes: 0 clean, 10 with
warnings, 20 refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.text import Text

from agent.cli_frame import database, note, say, say_json
from state.errors import UsageError
from tools.serving.flags.report import Entry, Translation
from tools.serving.flags.translate import MOST, translate
from tools.shell import clean_text

_MARKS = {
    "none": ("✘", "lost", "bold red"),
    "suspicious": ("!", "suspicious", "bold magenta"),
    "changed": ("~", "changed", "yellow"),
    "default": ("·", "default", "cyan"),
    "renamed": ("✔", "renamed", "green"),
    "same": ("✔", "same", "dim green"),
}
_LABEL = 13
_CONFIGS = ("*.yaml", "*.yml")


def run(source: str, *, version: str | None, host: str | None, python: str | None, db: str | None, json: bool) -> int:
    """Translate what `source` is: a command, a file, or `-` for stdin. Returns the exit code."""
    if python and not host:
        raise UsageError("`--python` is an interpreter of a host", hint="add `--host HOST`")
    text, folder = _text(source)
    files = _files(text, folder)
    found = _on_host(host, text, files, version, python, db) if host else translate(
        text, version=version, files=files, look=_config
    )  # fmt: skip
    if json:
        say_json(found.as_json())
    else:
        tell(found)
    return found.exit_code


def _text(source: str) -> tuple[str, Path]:
    """The text, and the folder that its relative names start at."""
    if source == "-":
        return _decoded(sys.stdin.buffer.read(MOST + 1)), Path()
    path = Path(source)
    try:
        is_file = len(source) < 4096 and path.is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        try:
            with path.open("rb") as file:
                return _decoded(file.read(MOST + 1)), path.parent
        except OSError as error:
            raise UsageError(
                f"cannot read `{source}`: {error.strerror}", hint="give a file, or `-` for stdin"
            ) from error
    if not source.strip():
        raise UsageError(
            "there is nothing to translate", hint="give a whole command in quotes, a file, or `-` for stdin"
        )
    if not any(character.isspace() for character in source.strip()):
        raise UsageError(
            f"there is no file `{source}`", hint="give a file, `-` for stdin, or a whole command in quotes"
        )
    return source, Path()


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _files(text: str, folder: Path) -> dict[str, str]:
    """The configuration files that the text may name and that lie there, by the name used for them."""
    found: dict[str, str] = {}
    if "--config" not in text:
        return found
    for word in set(text.replace("=", " ").replace('"', " ").replace("'", " ").split()):
        if word.endswith((".yaml", ".yml")) and len(word) < 1024:
            path = folder / word
            if path.is_file() and path.stat().st_size < MOST:
                found[word] = found[path.name] = _decoded(path.read_bytes())
    return found


def _config(model: str) -> Mapping[str, Any] | None:
    """A model's config.json, where the model is a folder of this machine."""
    import json

    try:
        value = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _on_host(
    name: str, text: str, files: Mapping[str, str], version: str | None, python: str | None, db: str | None
) -> Translation:
    from agent.host_actions import spec_for
    from tools.serving.flags.on_host import host_table, translate_for
    from tools.ssh import Host

    with database(db) as opened:
        spec = opened.read(lambda conn: spec_for(conn, name))

    if not version:
        note(f"asking SGLang on {name} for its options; importing it may take a minute")

    async def ask() -> Translation:
        async with Host(spec) as host:
            table = None if version else await host_table(host, python)
            return await translate_for(host, text, table=table, version=version, files=files)

    return anyio.run(ask)


def plain(text: str) -> str:
    """Text from elsewhere in one safe line: no control sequence, no line break."""
    return " ".join(clean_text(text.encode("utf-8", "replace")).split("\n"))


def tell(found: Translation) -> None:
    """The command for pasting, then the report, most dangerous first."""
    text = found.command if found.command is not None else ""
    if text:
        say(text.rstrip("\n"))
        sys.stdout.flush()
    console = Console(stderr=True, highlight=False)
    width = max(60, min(console.width, 120))
    if found.refused:
        console.print(Text.assemble(("refused  ", "bold red"), plain(found.refused)), soft_wrap=True)
        console.print(Text("what there is of it, not for use:", "dim"))
        for row in (found.draft or "").rstrip("\n").split("\n"):
            console.print(Text(plain(row), "dim"), soft_wrap=True)
    console.print()
    for line in _report(found.entries, width, console.options.ascii_only):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_summary(found), soft_wrap=True)


def _report(entries: list[Entry], width: int, ascii_only: bool) -> Iterator[Text]:
    quiet = [
        entry for entry in entries if entry.kind == "same" and not entry.notes and entry.why in ("", "docker's own")
    ]
    for entry in entries:
        if entry not in quiet:
            yield from _entry(entry, width, ascii_only)
    if quiet:
        mark = "+" if ascii_only else "✔"
        body = ", ".join(entry.written for entry in quiet)
        yield from _wrapped(Text.assemble((f"{mark} same", "dim green")), Text(plain(body), "dim"), width)


def _entry(entry: Entry, width: int, ascii_only: bool) -> Iterator[Text]:
    mark, word, style = _MARKS[entry.kind]
    if ascii_only:
        mark = {"✘": "x", "✔": "+", "·": "-"}.get(mark, mark)
    arrow = " -> " if ascii_only else " → "
    head = Text(plain(entry.written), "bold" if entry.kind in ("none", "suspicious") else "")
    if entry.result and entry.result != entry.written:
        head.append(arrow, "dim").append(plain(entry.result), "green")
    yield from _wrapped(Text(f"{mark} {word}", style), head, width)
    for reason in (entry.why, *entry.notes):
        if reason:
            yield from _wrapped(Text(""), Text(plain(reason), "dim"), width)


def _wrapped(label: Text, body: Text, width: int) -> Iterator[Text]:
    console = Console(width=width)
    for number, line in enumerate(body.wrap(console, width - _LABEL)):
        first = label.copy() if number == 0 else Text("")
        first.pad_right(_LABEL - first.cell_len)
        line.rstrip()
        yield first.append_text(line)


def _summary(found: Translation) -> Text:
    counts = {kind: sum(entry.kind == kind for entry in found.entries) for kind in _MARKS}
    carried = counts["same"] + counts["renamed"]
    parts = [f"{counts[kind]} {_MARKS[kind][1]}" for kind in ("none", "suspicious", "changed") if counts[kind]]
    more = f"; {found.others} more vLLM commands in the text were translated too" if found.others else ""
    verdict, style = {0: ("clean", "bold green"), 10: ("with warnings", "bold yellow")}.get(
        found.exit_code, ("refused", "bold red")
    )
    told = ", ".join([*parts, f"{carried} carried over"])
    return Text.assemble((verdict, style), f": {told}{more}. Checked against SGLang {found.sglang}'s own options.")
