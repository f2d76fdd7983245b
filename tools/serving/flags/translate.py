"""From any text that starts vLLM to the same text starting SGLang, with a report of every flag and variable.

    found = translate("vllm serve M --gpu-memory-utilization 0.8")
    found.command, found.parsed, found.warnings, found.exit_code

Pure: it reads no file and asks no host. What only those know comes in: `table` (the options of the SGLang on the host,
else a shipped one), `files` (configuration files by name), `look` (a model's config.json by the model's name).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from state.errors import UsageError
from tools.serving.flags import (  # noqa: F401 - they register rules
    rules_checks,
    rules_more,
    rules_parallel,
    rules_size,
    rules_spec,
    rules_switch,
    rules_values,
)
from tools.serving.flags.argv import merge, read_config, read_words
from tools.serving.flags.items import Item
from tools.serving.flags.launch import Launch, Renewed, applied
from tools.serving.flags.read import READ_AT_MOST, attachments, neighbourhood, promise, read
from tools.serving.flags.read_other import settings
from tools.serving.flags.read_shell import MOST_WORDS
from tools.serving.flags.report import Translation, is_secret, ranked, redacted
from tools.serving.flags.rules_env import variable
from tools.serving.flags.rules_parallel import decide
from tools.serving.flags.rules_plain import apply
from tools.serving.flags.table import Table, is_of, load, versions
from tools.serving.flags.words import tidy
from tools.serving.flags.work import FINISHING, Look, Work, check, open_value

MOST = 4 * 1024 * 1024
SEEN = 100
"""Characters of a line that an error shows."""


def translate(
    text: str,
    *,
    table: Table | None = None,
    version: str | None = None,
    files: Mapping[str, str] | None = None,
    look: Look = lambda model: None,
) -> Translation:
    """Translate the first vLLM start of a text; further ones are translated in its `command` too, and counted.

    A `version` without a shipped table of its own is told as a warning. Raises `UsageError` when there is no start of
    vLLM, no table that fits, or the text is larger than 4 MB.
    """
    table = table or load("sglang", version)
    if len(text) > MOST:
        raise UsageError(
            f"the text has {len(text)} characters", hint="give the one script or manifest that starts vLLM"
        )
    before, text, after = neighbourhood(text)
    kept, attached = attachments(text)
    found = read(kept)
    if not found:
        raise UsageError(
            f"no vLLM start was found in {_seen(kept)}",
            hint="give `vllm serve ...`, a script, docker run, a compose file, a systemd unit or a manifest",
        )
    found = sorted(found, key=promise)
    beside = {**attached, **(files or {})}
    results = [_one(launch, table, beside, look) for launch in found]
    if version and not is_of(table, version):
        why = f"there are tables for {', '.join(versions('sglang'))}: compare, or ask the one installed with --host"
        results[0].work.say(f"SGLang {version}", "suspicious", f"the options of {table.version}", why, cost=6)
    if "vllm" in before or "vllm" in after:
        why = f"only the {READ_AT_MOST // 1024} KB around the first start of vLLM were read"
        results[0].work.say("a long text", "suspicious", "", why, cost=6)
    if found[0].form in ("shell", "docker") and "```" not in kept:
        kept = tidy(kept)[0]
    whole = _whole(kept, found, results, table)
    secrets = _loose_secrets(before + after)
    if whole.command is not None:
        whole.command = redacted(before, secrets) + whole.command + redacted(after, secrets)
    return whole


def _seen(text: str) -> str:
    """What a text is that holds no start of vLLM: the line that speaks of it, else the first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "an empty text"
    line = next((line for line in lines if "vllm" in line.lower()), lines[0])
    shown = "".join(letter for letter in redacted(line, _loose_secrets(line)) if letter.isprintable())
    shown = f"`{shown[:SEEN]}{' …' * (len(shown) > SEEN)}`"
    return shown if len(lines) == 1 else f"{len(lines)} lines, of which one reads {shown}"


def _items(launch: Launch, files: Mapping[str, str], variables: Mapping[str, str]) -> list[Item]:
    """The settings of a launch; those of its configuration file first, because the command line wins."""
    if len(launch.words) > MOST_WORDS:
        raise UsageError(f"a command of {len(launch.words)} words is none that anybody starts", hint="give it alone")
    items = read_words(launch.words, positional=launch.positional)
    config = next((item for item in items if item.name == "config" and item.values), None)
    if config is None:
        return merge(items)
    text = _file(config.first, files, variables)
    values = settings(text) if text is not None else None
    if values is None:
        return merge(items)
    others = [item for item in items if item is not config]
    return merge([*read_config(values, config.first), *others])


def _file(name: str, files: Mapping[str, str], variables: Mapping[str, str]) -> str | None:
    bare = name.strip("\"'")
    resolved = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), bare)
    for one in (bare, resolved, resolved.rpartition("/")[2]):
        if one in files:
            return files[one]
    return None


class _Result:
    def __init__(
        self, work: Work, variables: dict[str, str], settings: dict[str, str], parsed: dict[str, Any] | None
    ) -> None:
        self.work, self.variables, self.settings, self.parsed = work, variables, settings, parsed

    def renewed(self, version: str) -> Renewed:
        """What the text gets back."""
        return Renewed(list(self.work.flags.items()), self.variables, self.settings, version)


def _one(launch: Launch, table: Table, files: Mapping[str, str], look: Look) -> _Result:
    items = _items(launch, files, launch.variables)
    if launch.form == "config":
        items = merge(read_config(settings(launch.config) or {}, ""))
    work = Work(items=items, table=table, variables=launch.variables, look=look, form=launch.form)
    work.model = work.given("model") or work.given("model-tag")
    decide(work)
    _first(work)
    for item in items:
        apply(work, item)
    for _, function in sorted(FINISHING, key=lambda pair: pair[0]):
        function(work)
    _defaults(work)
    own = dict(work.settings)
    variables: dict[str, str] = {}
    for one in launch.environment:
        told = variable(work, one.name, one.value, ours=one.ours, outside=one.outside)
        if told is not None:
            variables[one.name] = told
    became = {told.partition("=")[0] for told in variables.values()}
    fresh = {name: value for name, value in work.settings.items() if name not in became and name not in _names(launch)}
    fresh |= {name: value for name, value in own.items() if name not in became}
    work.entries += launch.entries
    _remarks(work, launch)
    _order(work)
    return _Result(work, variables, fresh, check(work))


def _names(launch: Launch) -> set[str]:
    return {one.name for one in launch.environment}


def _first(work: Work) -> None:
    """The model comes first, as people expect it."""
    if work.model:
        work.flags["--model-path"] = [work.model]


def _defaults(work: Work) -> None:
    """What was not said, and is not the same in both."""
    if work.item("host") is None:
        said = work.emit("--host", "0.0.0.0")
        work.say("--host (not given)", "default", said, "vLLM listens on all addresses, SGLang on 127.0.0.1", cost=1)
    if work.item("port") is None:
        said = work.emit("--port", "8000")
        work.say("--port (not given)", "default", said, "vLLM's port is 8000, SGLang's 30000", cost=1)
    if work.item("seed") is None:
        work.say("--seed (not given)", "default", "", "vLLM's seed is 0, SGLang's random: set --random-seed", cost=0)
    why = (
        "vLLM serves /metrics always (vllm:...), SGLang with --enable-metrics (sglang:...): add it if they are scraped"
    )
    work.say("/metrics", "default", "", why, cost=2)
    if not work.model and work.form == "kserve":
        work.flags["--model-path"] = ["/mnt/models"]
        why = "KServe puts the model there; SGLang needs a container of its own instead of KServe's runtime"
        work.say("the model (not given)", "suspicious", "--model-path /mnt/models", why, cost=5)
    elif not work.model:
        work.refused = work.refused or "no model is named, and SGLang's --model-path is required"


def _remarks(work: Work, launch: Launch) -> None:
    """What was repaired in the text itself."""
    for note in dict.fromkeys(launch.notes):
        work.say("the text", "suspicious", "repaired", note, cost=4)


def _order(work: Work) -> None:
    """Model, address and port first; then as the input has it; and nothing that could swallow what follows last."""
    head = [flag for flag in ("--model-path", "--served-model-name", "--host", "--port") if flag in work.flags]
    rest = [flag for flag in work.flags if flag not in head]
    work.flags = {flag: work.flags[flag] for flag in (*head, *rest)}


def _whole(text: str, found: Sequence[Launch], results: Sequence[_Result], table: Table) -> Translation:
    first = results[0]
    secrets: dict[str, str] = {}
    edits = []
    for launch, result in zip(found, results, strict=True):
        secrets |= {value: f"${name}" for name, value in launch.variables.items() if is_secret(name, value)}
        secrets |= result.work.secrets
        edits += launch.render(result.renewed(table.version))
    secrets = _loose_secrets(text) | secrets
    draft = _hidden(redacted(applied(text, _distinct(edits)), secrets), found)
    work = first.work
    entries = ranked(work.entries)
    for entry in entries:
        entry.written, entry.result = redacted(entry.written, secrets), redacted(entry.result, secrets)
        entry.why, entry.notes = redacted(entry.why, secrets), [redacted(note, secrets) for note in entry.notes]
    refused = redacted(work.refused, secrets) if work.refused else None
    renewed = first.renewed(table.version)
    return Translation(
        form=found[0].form,
        command=None if refused else draft,
        draft=draft if refused else None,
        arguments=[redacted(word, secrets) for word in renewed.words()],
        server=redacted(_server(renewed), secrets),
        parsed=None if refused or first.parsed is None else _without(first.parsed, secrets),
        env={name: redacted(value, secrets) for name, value in work.settings.items()},
        entries=entries,
        refused=refused,
        sglang=table.version,
        others=len(found) - 1,
    )


def _hidden(text: str, found: Sequence[Launch]) -> str:
    """The text with secrets out of its own assignments: they come from outside, also the short ones."""
    known = {name: value for launch in found for name, value in launch.variables.items() if is_secret(name, value)}
    for name, value in known.items():
        for mark in ("", '"', "'"):
            text = text.replace(f"{name}={mark}{value}{mark}", f"{name}=${name}")
    return text


def _without(parsed: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Parsed values without secrets."""
    return {name: redacted(value, secrets) if isinstance(value, str) else value for name, value in parsed.items()}


def _server(renewed: Renewed) -> str:
    from tools.serving.flags.launch import MODULE, lines

    return lines(f"python -m {MODULE}", renewed, spread=False)


def _distinct(edits: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Each edit once, and none that lies in another."""
    kept: list[tuple[int, int, str]] = []
    reached = 0
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: edit[:2]):
        if edit[0] >= reached:
            kept.append(edit)
            reached = max(reached, edit[1])
    return kept


def _loose_secrets(text: str) -> dict[str, str]:
    """Tokens that stand anywhere else in the text, by their known beginnings."""
    found = re.findall(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|ghp_\w{20,}|github_pat_\w{20,})", text)
    return {token: "***" for token in found if is_secret("", token) and not open_value(token)}
