"""vLLM starts in YAML: compose files, Kubernetes manifests, KServe runtimes, Helm values, and fragments of them.

A container is a mapping with an image, a command or arguments that name vLLM. Only its image, command, arguments and
environment are written anew, at their places; every other character of the file stays, comments too. Templates
(`{{ .Values.x }}`) are carried as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tools.serving.flags.launch import MODULE, Edit, Launch, Renewed, Variable, image_for
from tools.serving.flags.read_shell import MOST, entry, launches
from tools.serving.flags.report import Entry
from tools.serving.flags.words import Word, loose_split, quote

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LIKELY = re.compile(
    r"(?m)^[ \t]*(?:- )?(?:\"?(?:services|apiVersion|kind|image|command|args|entrypoint|containers)\"?)[ \t]*:"
)
MOST_DEEP = 60
_TEMPLATE = re.compile(r"\{\{[^{}\n]{0,300}\}\}")
_SERVER = ("python", "python3", "vllm", "serve", "-m", "-u", "vllm.entrypoints.openai.api_server")
Nodes = dict[str, Any]


def documents(text: str) -> list[Any] | None:
    """The root nodes of a YAML text, `None` when it is none."""
    if _too_deep(text):
        return None
    plain = _TEMPLATE.sub(lambda match: "T" * len(match[0]), text).replace("\t", "    " if False else " ")
    try:
        return [node for node in yaml.compose_all(plain, Loader=LOADER) if node is not None]
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def _too_deep(text: str) -> bool:
    """Whether brackets or indents nest deeper than any manifest: such text is not worth a parser's stack."""
    depth = 0
    for match in re.finditer(r"[\[{\]}]", text):
        depth += 1 if match[0] in "[{" else -1 if depth else 0
        if depth > MOST_DEEP:
            return True
    return bool(re.search(r"(?m)^ {400}|(?:- ){60}|(?:\? ){60}", text))


def yaml_launches(text: str) -> list[Launch]:
    """Every container of a YAML text that runs vLLM."""
    roots = documents(text) or []
    found = []
    for root in roots:
        form = _form(root)
        for node in _mappings(root):
            launch = _container(text, node, form)
            if launch is not None:
                found.append(launch)
            if len(found) >= MOST:
                return found
    return found


def _form(root: Any) -> str:
    keys = {key.value: value for key, value in root.value if key.tag.endswith("str")} if _is_map(root) else {}
    version = getattr(keys.get("apiVersion"), "value", "")
    if "serving.kserve.io" in str(version):
        return "kserve"
    if "services" in keys or any(
        _has(node, "entrypoint") or (_has(node, "ports") and _has(node, "command")) for node in _mappings(root)
    ):
        return "compose" if "apiVersion" not in keys else "k8s"
    return "k8s"


def _is_map(node: Any) -> bool:
    return isinstance(node, yaml.MappingNode)


def _has(node: Any, name: str) -> bool:
    return any(key.value == name for key, _ in node.value)


def _mappings(root: Any) -> Iterator[Any]:
    """Every mapping of a document once, also where anchors make it appear twice."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if _is_map(node):
            yield node
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)


def _container(text: str, node: Any, form: str) -> Launch | None:
    parts: Nodes = {str(key.value): value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    keys: Nodes = {str(key.value): key for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    image = _source(text, parts["image"]) if isinstance(parts.get("image"), yaml.ScalarNode) else ""
    command, args = _values(text, parts.get("command")), _values(text, parts.get("args"))
    entrypoint = _values(text, parts.get("entrypoint"))
    if not (command or args or entrypoint) and "vllm" not in image.lower():
        return None
    if not (command or args or entrypoint) and form == "k8s" and "env" not in parts:
        return None
    everything = [*entrypoint, *command, *args]
    if "vllm" not in image.lower() and not any("vllm" in word for word in everything):
        return None
    return _Container(text, form, parts, keys, image).launch(entrypoint, command, args)


def _source(text: str, node: Any) -> str:
    """A scalar's value, with templates as they stand in the text."""
    raw = text[node.start_mark.index : node.end_mark.index]
    value = str(node.value)
    return _restored(value, raw)


def _restored(value: str, raw: str) -> str:
    """Put the templates of the text back where the parser saw letters."""
    for template in _TEMPLATE.findall(raw):
        value = value.replace("T" * len(template), template, 1)
    return value


def _values(text: str, node: Any) -> list[str]:
    if node is None:
        return []
    if isinstance(node, yaml.ScalarNode):
        value = _source(text, node)
        return [] if node.tag.endswith(":null") or not value.strip() else [value]
    if isinstance(node, yaml.SequenceNode):
        return [_source(text, one) for one in node.value if isinstance(one, yaml.ScalarNode)]
    return []


class _Container:
    def __init__(self, text: str, form: str, parts: Nodes, keys: Nodes, image: str) -> None:
        self.text, self.form, self.parts, self.keys, self.image = text, form, parts, keys, image
        self.entries: list[Entry] = []

    def launch(self, entrypoint: list[str], command: list[str], args: list[str]) -> Launch | None:
        environment = self.environment()
        found = self._script(entrypoint, command, args) or self._direct(entrypoint, command, args)
        if found is None:
            return None
        if self.image:
            why = "its own engine; the command is written out" if not command else "its own engine"
            found.entries.append(Entry("renamed", f"image: {self.image}", "SGLang's image", why))
        found.environment = [*environment, *found.environment]
        found.variables = {**{one.name: one.value for one in environment}, **found.variables}
        return found

    def environment(self) -> list[Variable]:
        """The variables of the container; those that come from a secret or a field have no value here."""
        found = [Variable(name, value) for name, (value, _, _) in self._variables().items()]
        node = self.parts.get("env")
        for one in node.value if isinstance(node, yaml.SequenceNode) else []:
            inner = {str(key.value): value for key, value in one.value} if _is_map(one) else {}
            if "valueFrom" in inner and isinstance(inner.get("name"), yaml.ScalarNode):
                name = _source(self.text, inner["name"])
                found.append(Variable(name, f"$({name})", outside=True))
        return found

    def _variables(self) -> dict[str, tuple[str, int, int]]:
        node = self.parts.get("env") or self.parts.get("environment")
        found: dict[str, tuple[str, int, int]] = {}
        if _is_map(node):
            for key, value in node.value:
                if isinstance(value, yaml.ScalarNode):
                    found[str(key.value)] = (_source(self.text, value), *_span(self.text, key, value))
        elif isinstance(node, yaml.SequenceNode):
            for one in node.value:
                found |= self._variable(one)
        return found

    def _variable(self, node: Any) -> dict[str, tuple[str, int, int]]:
        if isinstance(node, yaml.ScalarNode):
            name, sep, value = _source(self.text, node).partition("=")
            return {name: (value, *_span(self.text, node, node))} if sep else {}
        if _is_map(node):
            inner = {str(key.value): value for key, value in node.value}
            name, value = inner.get("name"), inner.get("value")
            if isinstance(name, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                return {_source(self.text, name): (_source(self.text, value), *_span(self.text, node, node))}
        return {}

    def _script(self, entrypoint: list[str], command: list[str], args: list[str]) -> Launch | None:
        """`sh -c "... vllm serve ..."`, in any of the three places."""
        for name in ("args", "command", "entrypoint"):
            node = self.parts.get(name)
            for one in node.value if isinstance(node, yaml.SequenceNode) else []:
                value = _source(self.text, one) if isinstance(one, yaml.ScalarNode) else ""
                if re.search(r"\s", value.strip()) and "vllm" in value:
                    inner = launches(value)
                    if inner:
                        return self._within(one, value, inner[0])
        scalar = self.parts.get("args")
        return self._whole_script(scalar) if isinstance(scalar, yaml.ScalarNode) else None

    def _whole_script(self, node: Any) -> Launch | None:
        value = _source(self.text, node)
        inner = launches(value)
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

    def _scalar(self, node: Any, value: str) -> Edit:
        start, end = node.start_mark.index, node.end_mark.index
        raw = self.text[start:end]
        if raw[:1] in "|>" or "\n" in value:
            indent = _block_indent(raw) or " " * (self._column(start) + 2)
            body = "".join(f"{indent}{line}\n" if line else "\n" for line in value.rstrip("\n").split("\n"))
            return (start, end, f"|\n{body}" if raw.endswith("\n") else f"|\n{body.rstrip(chr(10))}")
        return (start, end, json.dumps(value, ensure_ascii=False))

    def _column(self, place: int) -> int:
        line = self.text.rfind("\n", 0, place) + 1
        row = self.text[line:place]
        return len(row) - len(row.lstrip(" ")) + (2 if row.lstrip(" ").startswith("- ") else 0)

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
            if words and not words[0].text.startswith("-") and "vllm" not in self.image.lower():
                return None
        return Launch(form=self.form, words=words, render=self._edits, entries=self.entries, positional=serve)

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

    def _edits(self, new: Renewed) -> list[Edit]:
        return [*self._surroundings(new, inner=False), *self._commands(new)]

    def _commands(self, new: Renewed) -> list[Edit]:
        """Command and arguments written anew, in the style that they had."""
        words = new.words()
        head, node = ["python3", "-m", MODULE], None
        target = "args" if "args" in self.parts else "command"
        node = self.parts.get(target)
        edits: list[Edit] = []
        if node is None:
            return self._appended(head, new)
        if target == "args" and "command" in self.parts:
            edits.append(self._sequence(self.parts["command"], head))
            edits.append(self._sequence(node, words))
        elif target == "args":
            key = self.keys["args"]
            indent = " " * key.start_mark.column
            edits.append((key.start_mark.index, key.start_mark.index, f"command: {json.dumps(head)}\n{indent}"))
            edits.append(self._sequence(node, words))
        elif isinstance(node, yaml.ScalarNode):
            edits.append(self._folded_command(node, head, new))
        else:
            edits.append(self._sequence(node, [*head, *words]))
        entry_node = self.parts.get("entrypoint")
        if entry_node is not None and _values(self.text, entry_node):
            edits.append((entry_node.start_mark.index, _end(self.text, entry_node), "[]"))
        return edits

    def _appended(self, head: list[str], new: Renewed) -> list[Edit]:
        key = self.keys.get("image") or next(iter(self.keys.values()))
        indent = " " * key.start_mark.column
        told = f"command: {json.dumps([*head, *new.words()], ensure_ascii=False)}\n{indent}"
        return [(key.start_mark.index, key.start_mark.index, told)]

    def _folded_command(self, node: Any, head: list[str], new: Renewed) -> Edit:
        start, end = node.start_mark.index, _end(self.text, node)
        raw = self.text[node.start_mark.index : node.end_mark.index]
        parts = [" ".join(head)] + [" ".join([flag, *map(quote, values)]) for flag, values in new.arguments]
        if raw[:1] in "|>" or "\n" in raw:
            indent = _block_indent(raw) or " " * (self._column(start) + 2)
            return (start, end, ">-\n" + "\n".join(indent + part for part in parts))
        return (start, end, json.dumps(" ".join(parts), ensure_ascii=False))

    def _sequence(self, node: Any, words: list[str]) -> Edit:
        start, end = node.start_mark.index, _end(self.text, node)
        if isinstance(node, yaml.SequenceNode) and not node.flow_style:
            indent = " " * node.start_mark.column
            return (start, end, f"\n{indent}".join(f"- {_scalar(word)}" for word in words))
        return (start, end, "[" + ", ".join(json.dumps(word, ensure_ascii=False) for word in words) + "]")

    def _surroundings(self, new: Renewed, *, inner: bool) -> list[Edit]:
        """The image and the environment."""
        edits: list[Edit] = []
        image = self.parts.get("image")
        if isinstance(image, yaml.ScalarNode) and "sglang" not in self.image:
            edits.append((image.start_mark.index, image.end_mark.index, image_for(new.version)))
        variables = self._variables()
        gone = bool(variables) and all(new.variables.get(name) == "" for name in variables)
        if gone and not new.settings and self._no_others():
            return [*edits, self._without_environment()]
        for name, told in new.variables.items():
            if name in variables:
                _, start, end = variables[name]
                edits.append(self._variable_edit(start, end, told))
        if new.settings and not inner:
            edits += self._new_variables(new)
        return edits

    def _no_others(self) -> bool:
        node = self.parts.get("env") or self.parts.get("environment")
        return node is not None and len(node.value) == len(self._variables())

    def _without_environment(self) -> Edit:
        """The whole block goes, since an empty one would be left."""
        name = "env" if "env" in self.parts else "environment"
        line = self.text.rfind("\n", 0, self.keys[name].start_mark.index) + 1
        stop = self.text.find("\n", _end(self.text, self.parts[name]))
        return (line, stop + 1 if stop >= 0 else len(self.text), "")

    def _variable_edit(self, start: int, end: int, told: str) -> Edit:
        if not told:
            line = self.text.rfind("\n", 0, start) + 1
            stop = self.text.find("\n", end)
            alone = self.text[line:start].strip() in ("", "-")
            return (line, stop + 1 if stop >= 0 else len(self.text), "") if alone else (start, end, "")
        name, _, value = told.partition("=")
        raw = self.text[start:end]
        if raw.startswith("{"):
            return (start, end, f'{{name: {name}, value: "{value}"}}')
        if raw.startswith("name:"):
            indent = " " * (start - self.text.rfind("\n", 0, start) - 1)
            return (start, end, f'name: {name}\n{indent}value: "{value}"')
        return (start, end, f'{name}: "{value}"' if re.match(r"[\w\"']+[ \t]*:", raw) else f"{name}={value}")

    def _new_variables(self, new: Renewed) -> list[Edit]:
        node = self.parts.get("env") or self.parts.get("environment")
        key = self.keys.get("env") or self.keys.get("environment")
        if isinstance(node, yaml.SequenceNode) and not node.flow_style:
            place, indent = node.start_mark.index, " " * node.start_mark.column
            if self.form == "compose":
                told = "".join(f"- {name}={value}\n{indent}" for name, value in new.settings.items())
            else:
                told = "".join(
                    f'- {{name: {name}, value: "{value}"}}\n{indent}' for name, value in new.settings.items()
                )
            return [(place, place, told)]
        if _is_map(node) and not node.flow_style:
            indent = " " * node.start_mark.column
            told = "".join(f'{name}: "{value}"\n{indent}' for name, value in new.settings.items())
            return [(node.start_mark.index, node.start_mark.index, told)]
        if node is not None or key is not None:
            return []
        first = next(iter(self.keys.values()))
        indent = " " * first.start_mark.column
        if self.form == "compose":
            body = "".join(f'{indent}  {name}: "{value}"\n' for name, value in new.settings.items())
            return [(first.start_mark.index, first.start_mark.index, f"environment:\n{body}{indent}")]
        body = "".join(f'{indent}- {{name: {name}, value: "{value}"}}\n' for name, value in new.settings.items())
        return [(first.start_mark.index, first.start_mark.index, f"env:\n{body}{indent}")]


def _block_indent(raw: str) -> str:
    """The indent of a block scalar's lines."""
    match = re.match(r"[|>][^\n]*\n(?:[ \t]*\n)*( +)", raw)
    return match[1] if match else ""


def _span(text: str, first: Any, last: Any) -> tuple[int, int]:
    return first.start_mark.index, _end(text, last)


def _end(text: str, node: Any) -> int:
    """Where a node's own text ends; a block's mark lies behind the line breaks that follow it."""
    end = node.end_mark.index
    raw = text[node.start_mark.index : end]
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return node.start_mark.index + len(raw.rstrip("\n "))
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        last = node.value[-1] if node.value else None
        last = last[1] if isinstance(last, tuple) else last
        if last is not None:
            return _end(text, last)
    return end


def _scalar(word: str) -> str:
    """A word as an element of a block list."""
    if re.fullmatch(r"-{0,2}[A-Za-z][\w./=:$(){}-]*|--?[a-z][\w-]*", word) and not word.endswith(":"):
        return (
            json.dumps(word) if word.startswith("-") or word.lower() in ("true", "false", "null", "yes", "no") else word
        )
    return json.dumps(word, ensure_ascii=False)
