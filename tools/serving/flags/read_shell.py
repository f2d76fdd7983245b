"""vLLM starts in shell text: scripts, single commands, wrapped ones (`bash -c "..."`, heredocs), `docker run`.

    launches("export A=1\\nnohup vllm serve M &")

Only the vLLM part of a text is touched; wrappers, redirections and everything around stay as they are.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from dataclasses import replace

from tools.serving.flags.launch import MODULE, Edit, Launch, Renewed, Variable, lines, python_of
from tools.serving.flags.read_docker import docker_launch, docker_run
from tools.serving.flags.words import (
    Command,
    Script,
    Word,
    command_at,
    in_comment,
    in_heredoc,
    join_lines,
    parse,
    quote,
)

MARK = re.compile(
    r"\bvllm(?:\.exe)?[\"']?[ \t\\\r\n]+serve\b|vllm\.entrypoints\.|\bvllm/entrypoints/|\bapi_server(?:\.py)?\b|"
    r"\b(?:docker|podman|nerdctl)[ \t]+(?:container[ \t]+)?run\b",
)
_ENTRY = re.compile(r"vllm\.entrypoints\.(?:openai\.)?(?:api_server|cli\.main)|vllm\.scripts|vllm\.entrypoints\.cli")
_ASSIGN = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=")
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
MOST = 50


def launches(text: str, *, depth: int = 0) -> list[Launch]:
    """Every vLLM start in shell text, in order of place."""
    joined, mended = join_lines(text) if MARK.search(text) else (text, [])
    script = parse(joined)
    known = assignments(script)
    found: list[Launch] = []
    seen: set[int] = set()
    for place in _places(script.text):
        if len(found) >= MOST:
            break
        for launch, start in _at(script, place, depth):
            if start not in seen:
                seen.add(start)
                launch.variables = {**known, **launch.variables}
                launch.environment = [*_exports(script, known, launch), *launch.environment]
                launch.notes += [*script.notes, *mended]
                found.append(launch)
    return found


def _places(text: str) -> Iterator[int]:
    for number, match in enumerate(MARK.finditer(text)):
        if number > 4 * MOST:
            return
        yield match.start()


def _at(script: Script, place: int, depth: int) -> list[tuple[Launch, int]]:
    if in_comment(script, place):
        return []
    heredoc = in_heredoc(script, place)
    if heredoc is not None and depth < 3:
        start, end = heredoc
        return [
            (_shifted(one, start), start + number)
            for number, one in enumerate(launches(script.text[start:end], depth=depth + 1))
        ]
    command = command_at(script, place)
    if command is None:
        return []
    within = next((word for word in command.words if word.start <= place < word.end), None)
    if within is not None and depth < 3 and re.search(r"\s", within.text) and not _starts(command):
        inner = launches(within.text, depth=depth + 1)
        return [(_nested(one, within, script.text), within.start + number) for number, one in enumerate(inner)]
    launch = _launch(script, command)
    return [] if launch is None else [(launch, command.start)]


def _starts(command: Command) -> bool:
    return entry(list(command.words)) is not None


def entry(words: list[Word]) -> tuple[int, int, bool] | None:
    """Where the vLLM program begins among words and where its arguments do; whether it is `serve`."""
    for number, word in enumerate(words):
        name = os.path.basename(word.text)
        following = words[number + 1].text if number + 1 < len(words) else ""
        if name in ("vllm", "vllm.exe") and following == "serve":
            return number, number + 2, True
        if word.text == "-m" and (_ENTRY.match(following) or following == "vllm"):
            skip = 3 if number + 2 < len(words) and words[number + 2].text == "serve" else 2
            return number, number + skip, skip == 3
        if name in ("api_server.py", "api_server") and number > 0:
            return number, number + 1, False
    return None


def _launch(script: Script, command: Command) -> Launch | None:
    words = list(command.words)
    docker = docker_run(words)
    if docker is not None:
        return docker_launch(script.text, command, docker)
    place = entry(words)
    if place is None:
        return None
    begin, arguments, serve = place
    return Launch(
        form="shell",
        words=words[arguments:],
        render=lambda new: _edits(script.text, command, begin, new),
        environment=[Variable(name, value.text, ours=True) for name, value in command.assignments.items()]
        + [Variable(*word.text.split("=", 1), ours=True) for word in words[:begin] if _is_assignment(words, word)],
        positional=serve,
    )


def _is_assignment(words: list[Word], word: Word) -> bool:
    return any(os.path.basename(one.text) == "env" for one in words) and bool(re.match(r"[A-Za-z_]\w*=", word.text))


def _edits(text: str, command: Command, begin: int, new: Renewed) -> list[Edit]:
    words = command.words
    start, end = words[begin].start, command.end
    program = f"-m {MODULE}" if words[begin].text == "-m" else f"{python_of(words[begin].text)} -m {MODULE}"
    if os.path.basename(words[begin].text).startswith("api_server"):
        program = f"-m {MODULE}"
    before = text[words[0].start : start].strip()
    wrapped = (bool(before) and words[begin].text != "-m") or begin > 1
    settings = [f"{name}={quote(value)}" for name, value in new.settings.items()]
    edits = [edit for edit in _assigned(text, command, begin, new)]
    if settings and not wrapped:
        edits.append((words[0].start, words[0].start, " ".join(settings) + " "))
    elif settings:
        program = " ".join(["env", *settings, program]) if words[begin].text != "-m" else program
        if words[begin].text == "-m":
            python = words[begin - 1] if begin else words[0]
            edits.append((python.start, python.start, " ".join(["env", *settings]) + " "))
    spread = "\n" in text[start:end] or None
    edits.append((start, end, lines(program, new, spread=spread)))
    return edits


def _assigned(text: str, command: Command, begin: int, new: Renewed) -> Iterator[Edit]:
    """Edits of the variables before the program."""
    for name, value in command.assignments.items():
        if name in new.variables:
            start = value.start - len(name) - 1
            end = value.end + len(text[value.end :]) - len(text[value.end :].lstrip(" \t"))
            told = new.variables[name]
            yield (start, end, f"{told} " if told else "")
    for word in command.words[:begin]:
        name = word.text.partition("=")[0]
        if name in new.variables and "=" in word.text:
            yield (word.start, word.end + (not new.variables[name]), new.variables[name])


def assignments(script: Script) -> dict[str, str]:
    """The plain variables that a script sets at the beginning of lines, by their last value."""
    known: dict[str, str] = {}
    for number, match in enumerate(_ASSIGN.finditer(script.text)):
        if number > 2000:
            break
        rest = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s;&|"'])*""").match(script.text, match.end())
        value = rest[0] if rest else ""
        after = script.text[match.end() + len(value) : match.end() + len(value) + 200].partition("\n")[0].strip()
        if len(value) < 4096 and (not after or after[0] in ";#&"):
            known[match[1]] = value.strip("\"'")
    return known


def _exports(script: Script, known: dict[str, str], launch: Launch) -> list[Variable]:
    """Exported variables of the script, each an edit of its own line."""
    found, edits = [], {}
    for match in re.finditer(r"(?m)^[ \t]*export[ \t]+([A-Za-z_]\w*)=[^\n;&]*[;]?[ \t]*\n?", script.text[:200_000]):
        if match[1] in known:
            found.append(Variable(match[1], known[match[1]], ours=True))
            edits[match[1]] = (match.start(), match.end())
    if edits:
        inner = launch.render

        def render(new: Renewed) -> list[Edit]:
            more = [
                (*edits[name], f"export {told}\n" if told else "")
                for name, told in new.variables.items()
                if name in edits
            ]
            return [*inner(new), *more]

        launch.render = render
    return found


def _shifted(launch: Launch, start: int) -> Launch:
    inner = launch.render
    return replace(launch, render=lambda new: [(a + start, b + start, text) for a, b, text in inner(new)])


def _nested(launch: Launch, word: Word, text: str) -> Launch:
    """A start within a quoted word: the word is quoted anew."""
    inner = launch.render

    def render(new: Renewed) -> list[Edit]:
        script = word.text
        for start, end, told in sorted(inner(new), reverse=True):
            script = script[:start] + told + script[end:]
        if word.raw.startswith("'") and "'" not in script:
            return [(word.start, word.end, f"'{script}'")]
        escaped = re.sub(r'(["\\`])', r"\\\1", script)
        return [(word.start, word.end, f'"{escaped}"')]

    return replace(launch, render=render)
