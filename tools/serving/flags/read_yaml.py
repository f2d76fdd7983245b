"""vLLM starts in YAML: compose files, Kubernetes manifests, KServe runtimes, Helm values, and fragments of them.

A container is a mapping with an image, a command or arguments that name vLLM. Only its image, command, arguments and
environment are written anew, at their places; every other character of the file stays, comments too. Templates
(`{{ .Values.x }}`) are carried as they are.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from tools.serving.flags.launch import MODULE, Edit, Launch, Renewed, Variable
from tools.serving.flags.read_shell import MOST, SHELLS, entry, launches
from tools.serving.flags.report import Entry
from tools.serving.flags.words import Word, loose_split
from tools.serving.flags.yaml_edits import Writing
from tools.serving.flags.yaml_nodes import Nodes, documents, is_map, mappings, source, span, values

LIKELY = re.compile(
    r"(?m)^[ \t]*(?:- )?(?:\"?(?:services|apiVersion|kind|image|command|args|entrypoint|containers)\"?)[ \t]*:"
)
_SERVER = ("python", "python3", "vllm", "serve", "-m", "-u", "vllm.entrypoints.openai.api_server")


def _server(program: str) -> str:
    """SGLang's start in place of vLLM's."""
    return f"-m {MODULE}" if program.startswith("-m") else f"python3 -m {MODULE}"


def yaml_launches(text: str) -> list[Launch]:
    """Every container of a YAML text that runs vLLM."""
    roots = documents(text) or []
    found = []
    for root in roots:
        form = _form(root)
        for node in mappings(root):
            launch = _container(text, node, form)
            if launch is not None:
                found.append(launch)
            if len(found) >= MOST:
                return found
    return found


def _form(root: Any) -> str:
    keys = {key.value: value for key, value in root.value if key.tag.endswith("str")} if is_map(root) else {}
    version = getattr(keys.get("apiVersion"), "value", "")
    if "serving.kserve.io" in str(version):
        return "kserve"
    if "services" in keys or any(
        _has(node, "entrypoint") or (_has(node, "ports") and _has(node, "command")) for node in mappings(root)
    ):
        return "compose" if "apiVersion" not in keys else "k8s"
    return "k8s"


def _has(node: Any, name: str) -> bool:
    return any(key.value == name for key, _ in node.value)


def _merged(node: Any) -> list[tuple[Any, Any]]:
    """What `<<: *other` brings along."""
    found: list[tuple[Any, Any]] = []
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == "<<":
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                found += one.value if is_map(one) and one is not node else []
    return found


def _container(text: str, node: Any, form: str) -> Launch | None:
    pairs = [pair for pair in (*_merged(node), *node.value) if isinstance(pair[0], yaml.ScalarNode)]
    parts: Nodes = {str(key.value): value for key, value in pairs}
    keys: Nodes = {str(key.value): key for key, _ in pairs}
    image = source(text, parts["image"]) if isinstance(parts.get("image"), yaml.ScalarNode) else ""
    command, args = values(text, parts.get("command")), values(text, parts.get("args"))
    entrypoint = values(text, parts.get("entrypoint"))
    if not (command or args or entrypoint) and "vllm" not in image.lower():
        return None
    if not (command or args or entrypoint) and form == "k8s" and "env" not in parts:
        return None
    everything = [*entrypoint, *command, *args]
    if "vllm" not in image.lower() and not any("vllm" in word for word in everything):
        return None
    return _Container(text, form, parts, keys, image, flow=bool(node.flow_style)).launch(entrypoint, command, args)


class _Container(Writing):
    def __init__(self, text: str, form: str, parts: Nodes, keys: Nodes, image: str, *, flow: bool) -> None:
        self.flow = flow
        self.text, self.form, self.parts, self.keys, self.image = text, form, parts, keys, image
        self.entries: list[Entry] = []

    def launch(self, entrypoint: list[str], command: list[str], args: list[str]) -> Launch | None:
        environment = self.environment()
        found = self._script(entrypoint, command, args) or self._direct(entrypoint, command, args)
        if found is None:
            return None
        if self.image:
            why = "its own engine; the command is written out" if not command else "its own engine"
            entry = Entry("renamed", f"image: {self.image}", "SGLang's image", why)
            if self.waits:
                entry = Entry(
                    "suspicious", f"image: {self.image}", "", "what it stands for must become SGLang's image", 6
                )
            found.entries.append(entry)
        found.environment = [*environment, *found.environment]
        found.variables = {**{one.name: one.value for one in environment}, **found.variables}
        return found

    def environment(self) -> list[Variable]:
        """The variables of the container; those that come from a secret or a field have no value here."""
        found = [Variable(name, value) for name, (value, _, _) in self.spans().items()]
        node = self.parts.get("env")
        for one in node.value if isinstance(node, yaml.SequenceNode) else []:
            inner = {str(key.value): value for key, value in one.value} if is_map(one) else {}
            if "valueFrom" in inner and isinstance(inner.get("name"), yaml.ScalarNode):
                name = source(self.text, inner["name"])
                found.append(Variable(name, f"$({name})", outside=True))
        return found

    def spans(self) -> dict[str, tuple[str, int, int]]:
        """Variables with their values and places."""
        node: Any = self.parts.get("env") or self.parts.get("environment")
        found: dict[str, tuple[str, int, int]] = {}
        if is_map(node):
            for key, value in node.value:
                if isinstance(value, yaml.ScalarNode):
                    found[str(key.value)] = (source(self.text, value), *span(self.text, key, value))
        elif isinstance(node, yaml.SequenceNode):
            for one in node.value:
                found |= self._variable(one)
        return found

    def _variable(self, node: Any) -> dict[str, tuple[str, int, int]]:
        if isinstance(node, yaml.ScalarNode):
            name, sep, value = source(self.text, node).partition("=")
            return {name: (value, *span(self.text, node, node))} if sep else {}
        if is_map(node):
            inner = {str(key.value): value for key, value in node.value}
            named, given = inner.get("name"), inner.get("value")
            if isinstance(named, yaml.ScalarNode) and isinstance(given, yaml.ScalarNode):
                return {source(self.text, named): (source(self.text, given), *span(self.text, node, node))}
        return {}

    def _script(self, entrypoint: list[str], command: list[str], args: list[str]) -> Launch | None:
        """`sh -c "... vllm serve ..."`, in any of the three places."""
        for name in ("args", "command", "entrypoint"):
            node: Any = self.parts.get(name)
            for one in node.value if isinstance(node, yaml.SequenceNode) else []:
                value = source(self.text, one) if isinstance(one, yaml.ScalarNode) else ""
                if re.search(r"\s", value.strip()) and "vllm" in value:
                    inner = launches(value, depth=1)
                    if inner and name != "args" and args and any(word.text == "$@" for word in inner[0].words):
                        return self._handed_on(one, value, inner[0], args)
                    if inner:
                        return self._within(one, value, inner[0])
        scalar = self.parts.get("args")
        if isinstance(scalar, yaml.ScalarNode):
            return self._whole_script(scalar)
        if len(command) == 1 and command[0].split()[:1] and command[0].split()[0].rpartition("/")[2] in SHELLS:
            return self._whole_script(self.parts["command"])
        return None

    def _handed_on(self, node: Any, value: str, inner: Launch, args: list[str]) -> Launch:
        """A script that hands its arguments on with `"$@"`: they stay in `args`."""
        around = [word for word in inner.words if word.text != "$@"]
        given = [word for word in self._as_words(self.parts.get("args"), args) if word.text != "--"]
        script = re.sub(
            r"(?:\S*/)?\bvllm\s+serve\b|-m\s+vllm\.entrypoints\.\S+", lambda match: _server(match[0]), value
        )
        for word in around:
            script = script.replace(f" {word.raw}", "", 1)

        def edits(new: Renewed) -> list[Edit]:
            told = self._sequence(self.parts["args"], new.words())
            return [*self._surroundings(new, inner=True), self._scalar(node, script), told]

        inner.form, inner.render, inner.words = self.form, edits, [*around, *given]
        return inner

    def _whole_script(self, node: Any) -> Launch | None:
        value = source(self.text, node)
        inner = launches(value, depth=1)
        return self._within(node, value, inner[0]) if inner else None

    def _within(self, node: Any, value: str, inner: Launch) -> Launch:
        render = inner.render

        def edits(new: Renewed) -> list[Edit]:
            script = value
            for start, end, told in sorted(render(new), reverse=True):
                script = script[:start] + told + script[end:]
            return [*self._surroundings(new, inner=True), self._scalar(node, script)]

        inner.form, inner.render = self.form, edits
        inner.environment = [Variable(one.name, one.value, one.ours) for one in inner.environment]
        return inner

    def _direct(self, entrypoint: list[str], command: list[str], args: list[str]) -> Launch | None:
        words = self._as_words(self.parts.get("entrypoint"), entrypoint)
        words += self._as_words(self.parts.get("command"), command) + self._as_words(self.parts.get("args"), args)
        place = entry(words)
        if place is not None:
            words, serve = words[place[1] :], place[2]
        else:
            serve = True
            while words and words[0].text.rpartition("/")[2] in _SERVER:
                words = words[1:]
            if words and words[0].text.rpartition("/")[2] in SHELLS:
                return None
            if words and not words[0].text.startswith("-") and "vllm" not in self.image.lower():
                return None
        return Launch(form=self.form, words=words, render=self.edits, entries=self.entries, positional=serve)

    def _as_words(self, node: Any, values: list[str]) -> list[Word]:
        """A list holds words; a single string is split as docker compose does."""
        if isinstance(node, yaml.ScalarNode):
            return [
                word
                for value in values
                for word in loose_split(" ".join(value.split("\n")) if self._folded(node) else value)
            ]
        return [Word(value, value) for value in values]

    def _folded(self, node: Any) -> bool:
        return node.style in (">", "|", None, '"', "'")
