"""Which starts of vLLM a text holds, whatever its form; of a long text only the part around the first one is read."""

from __future__ import annotations

import re
from itertools import islice

from state.errors import UsageError
from tools.serving.flags.launch import Launch, shifted
from tools.serving.flags.read_other import PS, UNIT, config_launch, dump_launches, unit_launches
from tools.serving.flags.read_shell import MARK, launches
from tools.serving.flags.read_yaml import LIKELY, yaml_launches
from tools.serving.flags.yaml_nodes import broken

READ_AT_MOST = 128 * 1024
_UNCOMMENTED = re.compile(r"(?m)^[^#\n]*?vllm")
_PROMPT = re.compile(
    r"(?m)^[ \t]*(?:\([\w.-]+\)[ \t]+)?(?:[\w.-]+@[\w.-]+[^\n$#%]{0,80})?[$#%>][ \t]+"
    r"(?=(?:[A-Z_]+=\S+[ \t]+)*(?:sudo[ \t]+)?(?:\S+/)?"
    r"(?:vllm[ \t]+serve|python\d?[ \t]+-m[ \t]+vllm|docker[ \t]+run)\b)"
)
_MANIFEST = re.compile(r"(?m)^[ \t]*(?:- )?(?:containers|args|services)[ \t]*:[ \t]*$")
_SHELL = re.compile(r"\bvllm[ \t]+serve\b|\bdocker[ \t]+run\b")
_FENCE = re.compile(r"(?ms)^[ \t]*```[^\n]*\n(.*?)^[ \t]*```")
_HEREDOC = re.compile(
    r"(?m)^.*?(?:cat|tee)\b[^\n<]*?(?:>[ \t]*(\S+)[^\n<]*<<|<<)-?[ \t]*['\"]?(\w+)['\"]?(?:[ \t]*>[ \t]*(\S+))?[^\n]*\n"
)


def promise(launch: Launch) -> int:
    """The first start that says something is the one that is told; a bare mention is the last."""
    flags = any(word.text.startswith("-") for word in launch.words)
    return 0 if flags or launch.config else 1 if launch.words else 2


def neighbourhood(text: str) -> tuple[str, str, str]:
    """What is before, in and after the part of a long text that is read: around the first word of vLLM."""
    if len(text) <= READ_AT_MOST:
        return "", text, ""
    first = _UNCOMMENTED.search(text)
    place = first.end() - 4 if first else 0
    start, end = text.rfind("\n---", 0, place) + 1, text.find("\n---", place)
    end = len(text) if end < 0 else end + 1
    if end - start > READ_AT_MOST:
        start = text.find("\n", max(0, place - READ_AT_MOST // 4), place) + 1 if place > READ_AT_MOST // 4 else 0
        end = min(len(text), start + READ_AT_MOST)
        if end < len(text):
            end = max(text.rfind("\n", place, end) + 1, place)
        if end - place < 8:
            raise UsageError(
                f"a line of more than {READ_AT_MOST // 1024} KB is no command", hint="give the command alone"
            )
    return text[:start], text[start:end], text[end:]


def read(text: str) -> list[Launch]:
    """The vLLM starts of a text, by the form that it has."""
    if "\x00" in text:
        return dump_launches(text)
    fences = list(_FENCE.finditer(text)) if "```" in text else []
    if fences:
        return [one for match in fences[:100] for one in _fenced(match)]
    prompt = _PROMPT.search(text)
    if prompt is not None and _is_prompt(text, prompt):
        return _prompted(text)
    found = unit_launches(text) if UNIT.search(text) else []
    if found:
        return found
    if LIKELY.search(text):
        found = yaml_launches(text)
        if found:
            return found
    if _MANIFEST.search(text) and not _SHELL.search(text) and (wrong := broken(text)):
        raise UsageError(f"it looks like a manifest, and is no YAML: {wrong}", hint="mend that line first")
    dumped = dump_launches(text) if text.lstrip()[:1] == "[" or not MARK.search(text) or PS.search(text) else []
    found = dumped or launches(text) or dump_launches(text)
    if found:
        return found
    config = config_launch(text)
    if config is not None:
        return [config]
    return []


def _is_prompt(text: str, found: re.Match[str]) -> bool:
    """Whether it is one: a `#` is a comment, unless it is root's prompt, with which the text begins."""
    if not found[0].lstrip().startswith("#"):
        return True
    return not text[: found.start()].strip() and not launches(text)


def _prompted(text: str) -> list[Launch]:
    """Commands copied with the prompt before them; the first one's prompts go with it."""
    prompts = [(match.start(), match.end(), "") for match in islice(_PROMPT.finditer(text), 200)]
    found = launches(_PROMPT.sub(lambda match: " " * len(match[0]), text))
    if found:
        inner = found[0].render
        found[0].render = lambda new: [*prompts, *inner(new)]
    return found


def _fenced(match: re.Match[str]) -> list[Launch]:
    """The starts within a fenced block of a page, at their places of the page."""
    if not re.search(r"vllm|(?:docker|podman|nerdctl)[ \t]+run", match[1]):
        return []
    return [shifted(one, match.start(1)) for one in read(match[1])]


def attachments(text: str) -> tuple[str, dict[str, str]]:
    """The text without the configuration files in it, and these by name.

    They stand in here-documents (which stay), or below a comment that names the file of `--config`.
    """
    found: dict[str, str] = {}
    for number, match in enumerate(_HEREDOC.finditer(text)):
        end = re.compile(rf"(?m)^[ \t]*{match[2]}[ \t]*$").search(text, match.end())
        name = match[1] or match[3]
        if number < 50 and name and end is not None:
            found[name.strip("\"'")] = text[match.end() : end.start()]
    named = re.search(r"--config[ \t=]+(\S+)", text)
    if named is None:
        return text, found
    name = named[1].strip("\"'")
    bare = re.escape(re.sub(r"[${}]", "", name).rpartition("/")[2])
    below = re.compile(rf"(?m)^#[^\n]*{bare}[^\n]*\n(?=[A-Za-z_][\w.-]*[ \t]*:)").search(text, named.end())
    if bare and below is not None:
        found[name] = text[below.end() :]
        return text[: below.start()], found
    return text, found
