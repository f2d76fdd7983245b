"""vLLM starts in other texts: systemd units, configuration files, logged arguments, bare flags, `/proc`, `ps`."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import yaml

from tools.serving.flags.items import resolve
from tools.serving.flags.launch import MODULE, Edit, Launch, Renewed, Variable, image_for, lines, python_of
from tools.serving.flags.read_docker import docker_launch, docker_run, inspected
from tools.serving.flags.read_shell import entry, launches, paths
from tools.serving.flags.report import Entry
from tools.serving.flags.words import Command, Word, command_at, loose_split, parse, quote, split, tidy
from tools.serving.flags.yaml_nodes import LOADER, documents

UNIT = re.compile(r"(?m)^\[(?:Unit|Service|Install|Container)\]|^ExecStart[ \t]*=")
_EXEC = re.compile(r"(?m)^ExecStart[ \t]*=[ \t]*((?:[^\\\n]|\\[ \t]*\r?\n(?:[ \t]*[#;][^\n]*\n)*|\\.)*)")
_QUADLET = re.compile(r"(?m)^Exec[ \t]*=[ \t]*((?:[^\\\n]|\\[ \t]*\r?\n|\\.)*)")
_IMAGE = re.compile(r"(?m)^Image[ \t]*=[ \t]*(\S+)")
_ENVIRONMENT = re.compile(r"(?m)^Environment[ \t]*=[ \t]*((?:[^\\\n]|\\[ \t]*\r?\n|\\.)*)\n?")
_LIST = re.compile(
    r"\[[ \t]*(?:[\w./-]*/)?(?:['\"]?vllm['\"]?[ ,]|"
    r"['\"]?(?:[\w./-]*/)?python[\d.]*['\"]?[ ,]+['\"]?-m['\"]?[ ,]+['\"]?vllm)"
)
MOST_OPTIONS = 500
PS = re.compile(
    r"(?m)^[ ]*[\w.+-]+[ ]+\d+[ ]+(?:\d+\.\d[ ]+\d+\.\d[ ]+\d+[ ]+\d+|\d+[ ]+\d+[ ]+\S+)[ ][^\n]*"
    r"(?:\bvllm[ ]+serve\b|vllm\.entrypoints\.)[^\n]*"
)
_DUMP = re.compile(r"(?:non-default args:|args:)\s*(\{|Namespace\()")


def unit_launches(text: str) -> list[Launch]:
    """The ExecStart lines of a systemd unit."""
    mended, notes = tidy(text)
    found = _quadlets(mended)
    for match in _EXEC.finditer(mended):
        launch = _exec_start(mended, match.start(1), match.end(1))
        if launch is not None:
            launch.notes += notes
            found.append(launch)
    return found


def _quadlets(text: str) -> list[Launch]:
    """A `.container` unit of podman: image, variables, and the arguments of the image's entry point."""
    image, line = _IMAGE.search(text), _QUADLET.search(text)
    if image is None or line is None or "vllm" not in image[1] + line[1]:
        return []
    words = split(line[1].replace("\\\n", "  "))
    while words and words[0].text.rpartition("/")[2] in ("vllm", "serve", "python3", "-m"):
        words = words[1:]

    def edits(new: Renewed) -> list[Edit]:
        told = lines(f"python3 -m {MODULE}", new, indent="    ", spread="\n" in line[1] or None)
        replaced = [(image.start(1), image.end(1), image_for(new.version)), (line.start(1), line.end(1), told)]
        return [*replaced, *_environment_edits(text, line.start(), new)]

    own = _unit_environment(text)
    variables = {one.name: one.value for one in own}
    return [Launch("systemd", words, edits, environment=own, variables=variables)]


def _exec_start(text: str, start: int, end: int) -> Launch | None:
    skip = re.match(r"[-@:+!|]*", text[start:end])
    start += skip.end() if skip else 0
    line = re.sub(r"(?m)(?<=\\\n)(?:[ \t]*[#;][^\n]*\n)+", lambda match: " " * len(match[0]), text[start:end])
    script = parse(line)
    command = command_at(script, 0)
    if command is None or (place := entry(list(command.words))) is None:
        inner = _docker_unit(line, command) or next(iter(launches(line)), None)
        if inner is None:
            return None
    else:
        inner = _plain_unit(line, command, place)
    inner.form = "systemd"
    for match in re.finditer(r"(?m)^EnvironmentFile[ \t]*=.*", text):
        why = "its variables are not read here: those of vLLM in it need translating too"
        inner.entries.append(Entry("suspicious", match[0], match[0], why, 4))
    own = {one.name: one for one in _unit_environment(text)}
    inner.environment = [*own.values(), *inner.environment]
    inner.variables = {**{name: one.value for name, one in own.items()}, **inner.variables}
    render = inner.render

    def edits(new: Renewed) -> list[Edit]:
        shifted = [(a + start, b + start, told) for a, b, told in render(_without_settings(new))]
        return [*shifted, *_environment_edits(text, start, new)]

    inner.render = edits
    return inner


def _without_settings(new: Renewed) -> Renewed:
    return Renewed(new.arguments, new.variables, {}, new.version)


def _docker_unit(line: str, command: Command | None) -> Launch | None:
    run = docker_run(list(command.words)) if command else None
    return docker_launch(line, command, run) if run is not None and command is not None else None


def _plain_unit(line: str, command: Command, place: tuple[int, int, bool]) -> Launch:
    begin, arguments, serve = place
    words = command.words

    def render(new: Renewed) -> list[Edit]:
        spread = "\n" in line[words[begin].start : command.end] or None
        first = words[begin - 1] if words[begin].text == "-m" and begin else words[begin]
        program = f"{python_of(first.text)} -m {MODULE}"
        told = lines(program, new, indent="    ", spread=spread)
        return [(first.start, command.end, re.sub(r"%(?![a-zA-Z%])", "%%", told))]

    return Launch(
        form="systemd", words=list(words[arguments:]), render=render, positional=serve, entries=paths(words, begin)
    )


def _unit_environment(text: str) -> list[Variable]:
    found = []
    for match in _ENVIRONMENT.finditer(text):
        for word in loose_split(match[1]):
            name, sep, value = word.text.partition("=")
            if sep:
                found.append(Variable(name, value))
    return found


def _environment_edits(text: str, place: int, new: Renewed) -> list[Edit]:
    edits: list[Edit] = []
    for match in _ENVIRONMENT.finditer(text):
        words = [word.text for word in loose_split(match[1])]
        told = [new.variables.get(word.partition("=")[0], word) for word in words]
        if told != words:
            kept = " ".join(f'"{word}"' for word in told if word)
            edits.append((match.start(), match.end(), f"Environment={kept}\n" if kept else ""))
    if new.settings:
        line = text.rfind("\n", 0, place) + 1
        edits.append((line, line, "".join(f'Environment="{name}={value}"\n' for name, value in new.settings.items())))
    return edits


def config_launch(text: str) -> Launch | None:
    """A file for vLLM's `--config`: a flat mapping of options."""
    roots = documents(text)
    if not roots or len(roots) != 1 or not isinstance(roots[0], yaml.MappingNode):
        return None
    names = [str(key.value) for key, _ in roots[0].value]
    if len(names) > MOST_OPTIONS:
        return None
    known = sum(resolve(f"--{name}")[0].known for name in names if re.fullmatch(r"[\w.-]+", name))
    if not names or known * 2 < len(names) or "_" in names:
        return None
    return Launch("config", [], lambda new: [(0, len(text), _config(new))], positional=False, config=text)


def _config(new: Renewed) -> str:
    settings: dict[str, Any] = {}
    for flag, values in new.arguments:
        told = [yaml.safe_load(value) if re.fullmatch(r"-?\d+(\.\d+)?", value) else value for value in values]
        settings[flag.lstrip("-")] = True if not told else told[0] if len(told) == 1 else told
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=1000)


def settings(text: str) -> dict[str, Any] | None:
    """The mapping that a configuration file holds, `None` when it holds none."""
    if documents(text) is None:
        return None
    try:
        value = yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def dump_launches(text: str) -> list[Launch]:
    """Logged lists and mappings of arguments, words apart by NUL, lines of `ps`, bare flags."""
    if "\x00" in text:
        words = [Word(part, part) for part in text.split("\x00") if part]
        return _listed(text, words, (0, len(text)))
    if '"Config"' in text and text.lstrip()[:1] in ("[", "{"):
        return inspected(text)
    line = PS.search(text)
    if line is not None:
        return _listed(text, loose_split(line[0]), (0, len(text)))
    match = _LIST.search(text)
    if match is not None:
        return _from_list(text, match.start())
    dump = _DUMP.search(text)
    if dump is not None:
        return _from_dump(text, dump.start(1))
    bare = re.match(r"\s*(--?[A-Za-z][\w.-]*)", text)
    if bare is not None and resolve(bare[1])[0].known:
        words = loose_split(text.replace("\\\n", "  "))
        return [
            Launch("shell", words, lambda new: [(0, len(text), lines(f"python -m {MODULE}", new))], positional=False)
        ]
    return []


def _listed(text: str, words: list[Word], span: tuple[int, int]) -> list[Launch]:
    place = entry(words)
    if place is None:
        return []
    program = f"python -m {MODULE}"
    return [Launch("log", words[place[1] :], lambda new: [(*span, lines(program, new))], positional=place[2])]


def _from_list(text: str, start: int) -> list[Launch]:
    end = _closing(text, start)
    inner = text[start : end + 1]
    try:
        value = ast.literal_eval(inner) if len(inner) < 100_000 else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if isinstance(value, list):
        return [
            _as_list(text, one, (start, end + 1))
            for one in _listed(text, [Word(str(w), str(w)) for w in value], (0, 0))
        ]
    body = inner[1:-1] if inner.endswith("]") else inner[1:]
    return _listed(text, loose_split(body), (start, end + 1))


def _as_list(text: str, launch: Launch, span: tuple[int, int]) -> Launch:
    """A list stays a list: of a Dockerfile, of a program. The image and the variables of a Dockerfile go with it."""
    base = re.search(r"(?mi)^FROM[ \t]+(\S*vllm\S*)", text)
    settings = list(re.finditer(r"(?m)^ENV[ \t]+([A-Za-z_]\w*)[= \t]([^\n]*)\n?", text)) if base else []

    def edits(new: Renewed) -> list[Edit]:
        told: list[Edit] = [(*span, json.dumps(["python3", "-m", MODULE, *new.words()], ensure_ascii=False))]
        if base is not None:
            told.append((base.start(1), base.end(1), image_for(new.version)))
        for match in settings:
            if match[1] in new.variables:
                line = new.variables[match[1]]
                told.append((match.start(), match.end(), f"ENV {line}\n" if line else ""))
        return told

    launch.render = edits
    launch.environment = [Variable(match[1], match[2].strip().strip("\"'")) for match in settings]
    return launch


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes; the end of the text when it does not."""
    depth = 0
    for match in re.finditer(r"[\[\]]|\"(?:\\.|[^\"\\\n])*\"", text[start : start + 200_000]):
        depth += {"[": 1, "]": -1}.get(match[0], 0)
        if depth == 0:
            return start + match.start()
    return len(text) - 1


def _from_dump(text: str, start: int) -> list[Launch]:
    """`non-default args: {'model': ..., 'port': 8000}` and `args: Namespace(model=..., port=8000)`."""
    line = text[start : text.find("\n", start) if "\n" in text[start:] else len(text)]
    found: dict[str, Any] = {}
    try:
        if line.startswith("{"):
            found = ast.literal_eval(line[: line.rfind("}") + 1])
        else:
            call = ast.parse(line[: line.rfind(")") + 1], mode="eval").body
            pairs = call.keywords if isinstance(call, ast.Call) else []
            found = {one.arg: _literal(one.value) for one in pairs if one.arg}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    words = []
    for name, value in found.items():
        words += _words(str(name), value)
    program = f"python -m {MODULE}"
    return [Launch("log", words, lambda new: [(0, len(text), lines(program, new))], positional=False)]


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _words(name: str, value: Any) -> list[Word]:
    flag = "--model" if name == "model_tag" else f"--{name.replace('_', '-')}"
    if value in (None, False, [], {}):
        return []
    told = [] if value is True else [str(one) for one in value] if isinstance(value, list) else [_text(value)]
    return [Word(text, quote(text)) for text in (flag, *told)]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
