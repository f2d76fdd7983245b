"""SGLang's command, arguments, image and environment written into a container's YAML, in the style that it had."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tools.serving.flags.launch import MODULE, Edit, Renewed, image_for
from tools.serving.flags.words import quote
from tools.serving.flags.yaml_nodes import Nodes, block_indent, element, end_of, is_map, values


class Writing:
    """What a container can write of itself; `parts` and `keys` are the nodes of its mapping by name."""

    text: str
    form: str
    image: str
    parts: Nodes
    keys: Nodes
    flow: bool

    @property
    def waits(self) -> bool:
        """Whether the image is a template's or a variable's to say."""
        return "vllm" not in self.image.lower() and ("{{" in self.image or "$" in self.image)

    def spans(self) -> dict[str, tuple[str, int, int]]:
        """Variables with their values and places."""
        raise TypeError("a container knows its variables")

    def _scalar(self, node: Any, value: str) -> Edit:
        start, end = node.start_mark.index, node.end_mark.index
        raw = self.text[start:end]
        if raw[:1] in "|>":
            indent = block_indent(raw) or " " * (self._column(start) + 2)
            body = "".join(f"{indent}{line}\n" if line else "\n" for line in value.rstrip("\n").split("\n"))
            return (start, end, f"|\n{body}" if raw.endswith("\n") else f"|\n{body.rstrip(chr(10))}")
        return (start, end, json.dumps(value, ensure_ascii=False))

    def _column(self, place: int) -> int:
        line = self.text.rfind("\n", 0, place) + 1
        row = self.text[line:place]
        return len(row) - len(row.lstrip(" ")) + (2 if row.lstrip(" ").startswith("- ") else 0)

    def edits(self, new: Renewed) -> list[Edit]:
        return [*self._surroundings(new, inner=False), *self._commands(new)]

    def _commands(self, new: Renewed) -> list[Edit]:
        """Command and arguments written anew, in the style that they had."""
        words = new.words()
        head = ["python3", "-m", MODULE]
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
            told = f'"command": {json.dumps(head)}, ' if self.flow else f"command: {json.dumps(head)}\n{indent}"
            edits.append((key.start_mark.index, key.start_mark.index, told))
            edits.append(self._sequence(node, words))
        elif isinstance(node, yaml.ScalarNode):
            edits.append(self._folded_command(node, head, new))
        else:
            edits.append(self._sequence(node, [*head, *words]))
        entry_node = self.parts.get("entrypoint")
        if entry_node is not None and values(self.text, entry_node):
            edits.append((entry_node.start_mark.index, end_of(self.text, entry_node), "[]"))
        return edits

    def _appended(self, head: list[str], new: Renewed) -> list[Edit]:
        key = self.keys.get("image") or next(iter(self.keys.values()))
        indent = " " * key.start_mark.column
        whole = json.dumps([*head, *new.words()], ensure_ascii=False)
        told = f'"command": {whole}, ' if self.flow else f"command: {whole}\n{indent}"
        return [(key.start_mark.index, key.start_mark.index, told)]

    def _folded_command(self, node: Any, head: list[str], new: Renewed) -> Edit:
        start, end = node.start_mark.index, end_of(self.text, node)
        raw = self.text[node.start_mark.index : node.end_mark.index]
        parts = [" ".join(head)] + [" ".join([flag, *map(quote, values)]) for flag, values in new.arguments]
        if raw[:1] in "|>" or "\n" in raw:
            indent = block_indent(raw) or " " * (self._column(start) + 2)
            return (start, end, ">-\n" + "\n".join(indent + part for part in parts))
        return (start, end, json.dumps(" ".join(parts), ensure_ascii=False))

    def _sequence(self, node: Any, words: list[str]) -> Edit:
        start, end = node.start_mark.index, end_of(self.text, node)
        anchor = re.match(r"&\S+\s+", self.text[start:end])
        start += anchor.end() if anchor else 0
        if isinstance(node, yaml.SequenceNode) and not node.flow_style:
            indent = " " * node.start_mark.column
            return (start, end, f"\n{indent}".join(f"- {element(word)}" for word in words))
        return (start, end, "[" + ", ".join(json.dumps(word, ensure_ascii=False) for word in words) + "]")

    def _surroundings(self, new: Renewed, *, inner: bool) -> list[Edit]:
        """The image and the environment."""
        edits: list[Edit] = []
        image = self.parts.get("image")
        if isinstance(image, yaml.ScalarNode) and "sglang" not in self.image and not self.waits:
            mark = {"'": "'", '"': '"'}.get(self.text[image.start_mark.index], "")
            told = f"{mark}{image_for(new.version)}{mark}"
            edits.append((image.start_mark.index, image.end_mark.index, told))
        variables = self.spans()
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
        return node is not None and len(node.value) == len(self.spans())

    def _without_environment(self) -> Edit:
        """The whole block goes, since an empty one would be left."""
        name = "env" if "env" in self.parts else "environment"
        line = self.text.rfind("\n", 0, self.keys[name].start_mark.index) + 1
        stop = self.text.find("\n", end_of(self.text, self.parts[name]))
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
        node: Any = self.parts.get("env") or self.parts.get("environment")
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
        if is_map(node) and not node.flow_style:
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
