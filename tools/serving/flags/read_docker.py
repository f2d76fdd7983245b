"""`docker run` (podman, nerdctl): its own options, the image, and what is behind it.

The image's entry point is vLLM's server, unless `--entrypoint` or the words behind the image say otherwise. SGLang's
image has none, so the whole command is written there.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.serving.flags.launch import MODULE, Edit, Launch, Renewed, Variable, image_for, lines
from tools.serving.flags.report import HIDDEN, Entry, is_secret
from tools.serving.flags.words import Command, Word

_ALONE = {
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--privileged", "--init", "--read-only", "-P",
    "--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--disable-content-trust", "--replace",
    "--use-api-socket", "--quiet", "-q", "--help",
}  # fmt: skip
_ENTRY = {"vllm", "serve", "python", "python3", "-m", "vllm.entrypoints.openai.api_server", "-u"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of docker: its name, value and words."""

    name: str
    value: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A `docker run` taken apart."""

    options: tuple[Option, ...]
    image: Word
    behind: tuple[Word, ...]

    def values(self, *names: str) -> list[str]:
        """The values of an option of any of these names."""
        return [option.value for option in self.options if option.name in names]


def docker_run(words: list[Word]) -> Run | None:
    """Take the words of a `docker run` apart; `None` when they are none, or of another image without vLLM."""
    texts = [word.text for word in words]
    for number, text in enumerate(texts):
        if os.path.basename(text) in ("docker", "podman", "nerdctl"):
            begin = number + 1
            if texts[begin : begin + 1] == ["container"]:
                begin += 1
            if texts[begin : begin + 1] != ["run"]:
                return None
            return _apart(words[begin + 1 :])
    return None


def _apart(words: list[Word]) -> Run | None:
    options: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if not word.text.startswith("-"):
            break
        name, sep, value = word.text.partition("=")
        if name.startswith("--"):
            taken = 1 if sep or name in _ALONE else 2
        else:
            name, value, taken = _short(word.text)
        if taken == 2 and at + 1 < len(words):
            value = words[at + 1].text
        options.append(Option(name, value, tuple(words[at : at + taken])))
        at += taken
    if at >= len(words):
        return None
    behind = tuple(words[at + 1 :])
    run = Run(tuple(options), words[at], behind)
    vllm = "vllm" in words[at].text.lower() or any("vllm" in word.text for word in behind)
    return run if vllm or any("vllm" in value for value in run.values("--entrypoint")) else None


def _short(text: str) -> tuple[str, str, int]:
    """`-it`, `-p8000:8000`, `-e`: name, value so far, words taken."""
    letters = text[1:]
    while letters and f"-{letters[0]}" in _ALONE and len(letters) > 1:
        letters = letters[1:]
    if f"-{letters[:1]}" in _ALONE:
        return text, "", 1
    if len(letters) > 1:
        return f"-{letters[0]}", letters[1:].lstrip("="), 1
    return f"-{letters}", "", 2


def docker_launch(text: str, command: Command, run: Run) -> Launch | None:
    """The launch of a container, `None` when what is behind the image is something else than vLLM."""
    arguments, shell = _arguments(run)
    if arguments is None:
        return None
    return Launch(
        form="docker",
        words=arguments,
        render=lambda new: _edits(text, command, run, new),
        environment=container_variables(run),
        entries=container_entries(run, arguments),
        positional=shell,
    )


def container_variables(run: Run) -> list[Variable]:
    """The variables that `-e` sets; one without a value comes from whoever runs docker."""
    found = []
    for option in run.options:
        if option.name in ("-e", "--env"):
            name, sep, value = option.value.partition("=")
            found.append(Variable(name, value if sep else f"${name}", outside=not sep))
    return found


def _arguments(run: Run) -> tuple[list[Word] | None, bool]:
    words = list(run.behind)
    if any(os.path.basename(value) in ("bash", "sh") for value in run.values("--entrypoint")):
        return None, False
    if words and os.path.basename(words[0].text) in ("bash", "sh"):
        return None, False
    serve = any("vllm" in os.path.basename(value) for value in run.values("--entrypoint")) or not run.values(
        "--entrypoint"
    )
    while words and (os.path.basename(words[0].text) in _ENTRY):
        serve = serve or words[0].text == "serve"
        words = words[1:]
    return words, serve


def container_entries(run: Run, arguments: list[Word], *, inside: bool = False) -> list[Entry]:
    """What becomes of docker's own options and of the image; `inside` a shell starts vLLM there."""
    entries = []
    for option in run.options:
        if option.name in ("-e", "--env"):
            continue
        written = " ".join(word.text for word in option.words)
        if is_secret(option.name, option.value):
            written = f"{option.name} {HIDDEN}"
        entry = Entry("same", written, written, "docker's own")
        if option.name == "--entrypoint" and not inside:
            entry = Entry("renamed", written, "", "SGLang's command is written behind its image")
        elif option.name in ("-v", "--volume") and ":" not in option.value.strip("/"):
            entry.kind, entry.cost = "suspicious", 5
            entry.why = "no target: an anonymous volume, so the weights are downloaded again at every start"
        entries.append(entry)
    entries.append(Entry("renamed", run.image.text, "SGLang's image", "SGLang's image needs the command written out"))
    entries += _missing(run, arguments)
    return entries


def _missing(run: Run, arguments: list[Word]) -> list[Entry]:
    """What a container of several GPUs, or one that downloads, lacks."""
    texts = [word.text for word in arguments]
    found = []
    mounts = [value.split(":")[1] for value in run.values("-v", "--volume") if value.count(":") >= 1]
    for number, text in enumerate(texts):
        flag, _, value = text.partition("=")
        if flag.replace("_", "-") == "--download-dir":
            folder = value or "".join(texts[number + 1 : number + 2])
            if not any(folder.startswith(mount.rstrip("/")) for mount in mounts if mount):
                why = f"`{folder}` lies in no mount: what is downloaded is lost with the container"
                found.append(Entry("suspicious", "the download folder", "", why, 5, given=False))
    shared = run.values("--ipc", "--shm-size")
    if not shared:
        why = "neither --ipc=host nor --shm-size: several GPUs need more shared memory than docker's 64 MB"
        found.append(Entry("suspicious", "shared memory", "", why, 4, given=False))
    return found


def _edits(text: str, command: Command, run: Run, new: Renewed) -> list[Edit]:
    end = run.behind[-1].end if run.behind else run.image.end
    spread = "\n" in text[command.start : command.end] or None
    program = f"{_image(run, new)} python3 -m {MODULE}"
    settings = [f"-e {name}={value}" for name, value in new.settings.items()]
    tail = " ".join([*settings, lines(program, new, indent="    ", spread=spread)])
    edits: list[Edit] = [(run.image.start, end, tail)]
    return [*edits, *_option_edits(text, run, new, entrypoint=True)]


def surroundings(run: Run, new: Renewed) -> list[Edit]:
    """The image and the variables, for a container that runs a shell."""
    return [(run.image.start, run.image.end, _image(run, new)), *_option_edits("", run, new, entrypoint=False)]


def _image(run: Run, new: Renewed) -> str:
    return image_for(new.version) if "vllm" in run.image.text.lower() or "$" in run.image.text else run.image.text


def _option_edits(text: str, run: Run, new: Renewed, *, entrypoint: bool) -> list[Edit]:
    edits: list[Edit] = []
    for option in run.options:
        start, stop = option.words[0].start, option.words[-1].end
        name = option.value.partition("=")[0]
        gone = option.name in ("-e", "--env") and new.variables.get(name) == ""
        if gone or (entrypoint and option.name == "--entrypoint"):
            edits.append((start, past(text, stop), ""))
        elif option.name in ("-e", "--env") and name in new.variables and not _refers(option.value):
            flag = "--env" if option.words[0].text.startswith("--env") else "-e"
            edits.append((start, stop, f"{flag} {new.variables[name]}"))
    return edits


def _refers(value: str) -> bool:
    """Whether a variable's value comes from elsewhere already."""
    return bool(re.fullmatch(r"\w+=[\"']?\$\{?\w+\}?[\"']?", value))


def past(text: str, place: int) -> int:
    """Past the spaces and the continuation that follow a word, so that taking it out leaves no empty line."""
    if not text:
        return place + 1
    match = re.compile(r"[ \t]*(?:\\[ \t]*\r?\n[ \t]*)?").match(text, place)
    return match.end() if match else place


def inspected(text: str) -> list[Launch]:
    """The containers of vLLM that `docker inspect` tells of: entry point, arguments and environment."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = []
    for one in told if isinstance(told, list) else [told]:
        config = one.get("Config") if isinstance(one, dict) else None
        if isinstance(config, dict) and "vllm" in json.dumps(config).lower():
            found.append(_inspected(text, config))
    return found


def _inspected(text: str, config: Mapping[str, Any]) -> Launch:
    words = [str(word) for part in ("Entrypoint", "Cmd") for word in config.get(part) or ()]
    while words and os.path.basename(words[0]) in _ENTRY:
        words = words[1:]
    pairs = [str(one).partition("=") for one in config.get("Env") or ()]
    program = f"python3 -m {MODULE}"
    return Launch(
        form="log",
        words=[Word(word, word) for word in words],
        render=lambda new: [(0, len(text), lines(program, new))],
        environment=[Variable(name, value) for name, _, value in pairs if name not in ("PATH", "LD_LIBRARY_PATH")],
    )
