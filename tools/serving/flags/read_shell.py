"""vLLM starts in shell text: scripts, single commands, wrapped ones (`bash -c "..."`, heredocs), `docker run`.

    launches("export A=1\\nnohup vllm serve M &")

Only the vLLM part of a text is touched; wrappers, redirections and everything around stay as they are.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from state.errors import UsageError
from tools.serving.flags.launch import MODULE, Edit, Launch, Renewed, Variable, lines, own_python, python_of, shifted
from tools.serving.flags.read_docker import (
    Run,
    container_entries,
    container_variables,
    docker_launch,
    docker_run,
    past,
    surroundings,
)
from tools.serving.flags.read_vars import assignments, expand
from tools.serving.flags.report import Entry
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
    tidy,
)

MARK = re.compile(
    r"\bvllm(?:\.exe)?[\"']?[ \t\\\r\n]+serve\b|vllm\.entrypoints\.|\bvllm/entrypoints/|\bapi_server(?:\.py)?\b|"
    r"\b(?:docker|podman|nerdctl)[ \t]+(?:container[ \t]+)?run\b|\$\{?\w*(?:vllm|VLLM)\w*\}?[\"']?[ \t]+serve\b",
)
_ENTRY = re.compile(r"vllm\.entrypoints\.(?:openai\.)?(?:api_server|cli\.main)|vllm\.scripts|vllm\.entrypoints\.cli")
_BARE_START = 60
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
MOST = 50
MOST_WORDS = 4000


def launches(text: str, *, depth: int = 0) -> list[Launch]:
    """Every vLLM start in shell text, in order of place."""
    tidied, notes = tidy(text)
    joined, mended = join_lines(tidied) if MARK.search(tidied) else (tidied, [])
    script = parse(joined)
    known = assignments(script.text)
    found: list[Launch] = []
    seen: set[int] = set()
    for place in _places(script.text):
        if len(found) >= MOST:
            break
        for launch, start in _at(script, place, depth):
            if start not in seen and not _is_prose(launch, script.text):
                seen.add(start)
                launch.variables = {**known.plain, **launch.variables}
                launch.environment = [*_exports(script, known.plain, launch, start), *launch.environment]
                launch.words, told = expand(launch.words, known)
                launch.notes += told
                launch.notes += [*notes, *mended]
                found.append(launch)
    return found


def _is_prose(launch: Launch, text: str) -> bool:
    """Whether it is a sentence about vLLM: several words and no flag among them, none at all, or only dots."""
    words = [word.text for word in launch.words]
    if words and all(re.fullmatch(r"\.\.\.+|…", word) for word in words):
        return True
    if not words and launch.form == "shell":
        return len(text.strip()) > _BARE_START
    return len(words) > 1 and not any(re.match(r"--?[a-zA-Z]|[$\"']", word) for word in words)


def _program(word: str) -> str:
    """The last part of a program's path; of a variable its name, in small letters."""
    return re.sub(r"[${}]", "", os.path.basename(word)).lower() if "$" in word else os.path.basename(word)


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
            (shifted(one, start), start + number)
            for number, one in enumerate(launches(script.text[start:end], depth=depth + 1))
        ]
    command = command_at(script, place)
    if command is None:
        return []
    if len(command.words) > MOST_WORDS:
        raise UsageError(f"a command of {len(command.words)} words is none that anybody starts", hint="give it alone")
    within = next((word for word in command.words if word.start <= place < word.end), None)
    if within is not None and depth < 3 and re.search(r"\s", within.text) and not _starts(command):
        inner = launches(within.text, depth=depth + 1)
        run = docker_run(list(command.words))
        return [(_nested(one, within, run), within.start + number) for number, one in enumerate(inner)]
    launch = _launch(script, command, inner=depth > 0)
    return [] if launch is None else [(launch, command.start)]


def _starts(command: Command) -> bool:
    return entry(list(command.words)) is not None


def entry(words: list[Word]) -> tuple[int, int, bool] | None:
    """Where the vLLM program begins among words and where its arguments do; whether it is `serve`."""
    for number, word in enumerate(words):
        name = _program(word.text)
        following = words[number + 1].text if number + 1 < len(words) else ""
        if following == "serve" and (name in ("vllm", "vllm.exe") or ("$" in word.text and "vllm" in name)):
            interpreter = number > 0 and os.path.basename(words[number - 1].text).startswith("python")
            return number - interpreter, number + 2, True
        if word.text == "-m" and (_ENTRY.match(following) or following == "vllm"):
            skip = 3 if number + 2 < len(words) and words[number + 2].text == "serve" else 2
            return number, number + skip, skip == 3
        if name in ("api_server.py", "api_server") and number > 0:
            return number, number + 1, False
    return None


def _launch(script: Script, command: Command, *, inner: bool) -> Launch | None:
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
        render=lambda new: _edits(script.text, command, begin, new, inner=inner),
        environment=[Variable(name, value.text, ours=True) for name, value in command.assignments.items()]
        + [_variable(word) for word in words[:begin] if _is_assignment(words, word)],
        entries=paths(words, begin),
        positional=serve,
    )


def margin(text: str, place: int) -> str:
    """The blanks that the line of a place begins with."""
    line = text.rfind("\n", 0, place) + 1
    blanks = re.compile(r"[ \t]*").match(text, line)
    return blanks[0][: place - line] if blanks else ""


def paths(words: Sequence[Word], begin: int) -> list[Entry]:
    """A program of an installation of vLLM: SGLang's has another path."""
    program = words[begin - 1 if words[begin].text == "-m" and begin else begin].text
    other = own_python(program) if os.path.basename(program).startswith("python") else python_of(program)
    if "/" not in program or "vllm" not in os.path.dirname(program).lower():
        return []
    why = "SGLang wants an environment of its own: this path must exist"
    return [Entry("suspicious", program, other, why, 4, given=False)]


def _variable(word: Word) -> Variable:
    name, _, value = word.text.partition("=")
    return Variable(name, value, ours=True)


def _is_assignment(words: list[Word], word: Word) -> bool:
    return any(os.path.basename(one.text) == "env" for one in words) and bool(re.match(r"[A-Za-z_]\w*=", word.text))


def _edits(text: str, command: Command, begin: int, new: Renewed, *, inner: bool) -> list[Edit]:
    words = command.words
    start, end = words[begin].start, command.end
    program = f"-m {MODULE}" if words[begin].text == "-m" else f"{python_of(words[begin].text)} -m {MODULE}"
    if words[begin].text == "-m" and begin and own_python(words[begin - 1].text) != words[begin - 1].text:
        start, program = words[begin - 1].start, f"{own_python(words[begin - 1].text)} {program}"
    if os.path.basename(words[begin].text).startswith("api_server"):
        program = f"-m {MODULE}"
    before = text[words[0].start : start].strip()
    wrapped = (bool(before) and words[begin].text != "-m") or begin > 1
    settings = [f"{name}={quote(value)}" for name, value in new.settings.items()]
    edits = list(_assigned(text, command, begin, new))
    if settings and not wrapped:
        edits.append((words[0].start, words[0].start, " ".join(settings) + " "))
    elif settings:
        program = " ".join(["env", *settings, program]) if words[begin].text != "-m" else program
        if words[begin].text == "-m":
            python = words[begin - 1] if begin else words[0]
            edits.append((python.start, python.start, " ".join(["env", *settings]) + " "))
    spread = "\n" in text[start:end] or (False if inner and "\n" not in text else None)
    edits.append((start, end, lines(program, new, indent=margin(text, words[0].start) + "  ", spread=spread)))
    return edits


def _assigned(text: str, command: Command, begin: int, new: Renewed) -> Iterator[Edit]:
    """Edits of the variables before the program."""
    for name, value in command.assignments.items():
        if name in new.variables:
            start = value.start - len(name) - 1
            told = new.variables[name]
            yield (start, value.end, told) if told else (start, past(text, value.end), "")
    for word in command.words[:begin]:
        name = word.text.partition("=")[0]
        if name in new.variables and "=" in word.text:
            yield (word.start, word.end + (not new.variables[name]), new.variables[name])


def _exports(script: Script, known: dict[str, str], launch: Launch, before: int) -> list[Variable]:
    """Variables that the script exports before the start, each an edit of its own line."""
    found, edits = [], {}
    for match in re.finditer(r"(?m)^[ \t]*export[ \t]+([A-Za-z_]\w*)=[^\n;&]*[;]?[ \t]*\n?", script.text[:before]):
        if match[1] in known:
            found.append(Variable(match[1], known[match[1]], ours=True))
            edits[match[1]] = (match.start(), match.end())
    if edits:
        inner = launch.render

        def render(new: Renewed) -> list[Edit]:
            more = [
                (*edits[name], f"{margin(script.text, edits[name][1] - 1)}export {told}\n" if told else "")
                for name, told in new.variables.items()
                if name in edits
            ]
            return [*inner(new), *more]

        launch.render = render
    return found


def _nested(launch: Launch, word: Word, run: Run | None) -> Launch:
    """A start within a quoted word: the word is quoted anew, and the image of a `docker run` around it is replaced."""
    inner = launch.render

    def render(new: Renewed) -> list[Edit]:
        around = [] if run is None else surroundings(run, new)
        script = word.text
        for start, end, told in sorted(inner(new), reverse=True):
            script = script[:start] + told + script[end:]
        if word.raw.startswith("'"):
            told = script.replace("'", "'\"'\"'")
            return [*around, (word.start, word.end, f"'{told}'")]
        escaped = re.sub(r'(["\\`])', r"\\\1", script)
        return [*around, (word.start, word.end, f'"{escaped}"')]

    if run is None:
        return replace(launch, render=render)
    outside = container_variables(run)
    return replace(
        launch, render=render, form="docker",
        entries=[*launch.entries, *container_entries(run, launch.words, inside=True)],
        environment=[*outside, *launch.environment],
        variables={**{one.name: one.value for one in outside}, **launch.variables},
    )  # fmt: skip
