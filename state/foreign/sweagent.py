"""SWE-agent trajectories (`.traj`) and those of mini-swe-agent (`.traj.json`): one JSON document, step by step.

They hold no times but how long an action took, so a session begins at the time of the file and its steps follow each
other by those durations; the settings say so (`times: assumed`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from state.foreign.claude_text import seconds
from state.foreign.damage import Losses
from state.foreign.elements import elements
from state.foreign.story import Found, Story, first_line

FORMAT = "swe-agent"
_MESSAGES = ("history", "messages", None)
_COMMAND = re.compile(r"```(?:mswea_bash_command|bash)\n(.*?)\n?```", re.DOTALL)
_NO_USAGE = {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0}


def sessions(path: Path) -> list[Found]:
    """The one session of a trajectory."""
    return [Found(path.stem, FORMAT, str(path), lambda story: _Teller(path, story).run())]


class _Teller:
    def __init__(self, path: Path, story: Story) -> None:
        self.path, self.story = path, story
        self.time = path.stat().st_mtime
        self._steps = 0

    def run(self) -> None:
        prompts, has_steps = self._prompts()
        title = first_line(next((text for role, text in prompts if role == "user"), "")) or self.path.stem
        self.story.begin(self.time, title, str(self.path), times="assumed")
        if has_steps:
            for role, text in prompts:
                self._prompt(role, text)
        for element in elements(self.path, self.story.losses):
            place = element.place(self.path.name)
            value = element.value
            if element.key == "trajectory" and isinstance(value, Mapping):
                self._step(value, place)
            elif element.key in _MESSAGES and isinstance(value, Mapping):
                if not has_steps:
                    self._message(value, place)
            elif value not in ({}, "", None):
                self.story.foreign(self.time, place, {str(element.key): value})
        self.story.counts.records = self.story.counts.messages
        self.story.end(self.time)

    def _prompts(self) -> tuple[list[tuple[str, str]], bool]:
        """What stood before the first step: the system's text and the task. And whether there are steps at all."""
        prompts: list[tuple[str, str]] = []
        has_steps = False
        for element in elements(self.path, Losses()):
            value = element.value if isinstance(element.value, Mapping) else {}
            if element.key == "trajectory":
                has_steps = True
                if prompts:
                    continue
                prompts = list(_before_the_answer(value.get("query") or value.get("messages") or ()))
            elif element.key in _MESSAGES and (not prompts or prompts[-1] != ("", "")):
                if value.get("role") not in ("system", "user"):
                    if prompts:
                        break
                    continue
                prompts.append((str(value["role"]), _text(value.get("content"))))
        return list(dict.fromkeys(prompts)), has_steps

    def _prompt(self, role: str, text: str) -> None:
        self.story.counts.messages += 1
        if role == "user":
            self.story.said(self.time, text)
        else:
            self.story.foreign(self.time, f"{self.path.name} {role}", {"role": role, "content": text})

    def _step(self, step: Mapping[str, Any], place: str) -> None:
        """One step: what the model said, the action in it, and what was observed."""
        self._steps += 1
        call = f"step {self._steps}"
        self.story.settle(self.time)
        text = str(step.get("response") or step.get("thought") or "")
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        action = step.get("action")
        calls = step.get("tool_calls") or ()
        named = next((c.get("function", {}).get("name") for c in calls if isinstance(c, Mapping)), None)
        if action:
            blocks.append(
                {"type": "tool_use", "id": call, "name": named or "action", "input": {"command": str(action)}}
            )
        self.story.counts.messages += 1
        self.story.answered(
            self.time, call, blocks, place=place, model=None, stop_reason=None, usage=dict(_NO_USAGE), unique=False
        )
        took = step.get("execution_time")
        self.time += took if isinstance(took, int | float) else 0.0
        if action and "observation" in step:
            self.story.counts.messages += 1
            self.story.result(self.time, call, _text(step.get("observation")), place=place)
        rest = {k: v for k, v in step.items() if k in ("state", "extra_info", "messages_removed") and v}
        if rest:
            self.story.foreign(self.time, place, rest)

    def _message(self, value: Mapping[str, Any], place: str) -> None:
        """One message of a history, where there are no steps."""
        extra = value.get("extra")
        stamp = seconds((extra if isinstance(extra, Mapping) else value).get("timestamp"))
        self.time = stamp or self.time
        role, text = value.get("role"), _text(value.get("content"))
        if role == "assistant":
            self._answer(value, text, place)
        elif role == "tool" or (role == "user" and self._open and value.get("message_type") != "demonstration"):
            self.story.counts.messages += 1
            id = str(value.get("tool_call_id") or next(iter(value.get("tool_call_ids") or ()), None) or self._open)
            self._open = None
            self.story.result(self.time, id, text, place=place, raw=value)
        else:
            self._prompt(str(role), text)

    _open: str | None = None

    def _answer(self, value: Mapping[str, Any], text: str, place: str) -> None:
        self._steps += 1
        call = f"step {self._steps}"
        self.story.settle(self.time)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        for tool in value.get("tool_calls") or ():
            function = tool.get("function") if isinstance(tool, Mapping) else None
            function = function if isinstance(function, Mapping) else {}
            given = function.get("arguments")
            block = {"type": "tool_use", "id": str(tool.get("id") or call), "name": str(function.get("name"))}
            blocks.append({**block, "input": _arguments(given)})
        commands = _COMMAND.findall(text)
        actions = value.get("action") or _actions(value.get("extra")) or (commands[0] if len(commands) == 1 else None)
        if actions and len(blocks) == bool(text):
            blocks.append({"type": "tool_use", "id": call, "name": "action", "input": {"command": str(actions)}})
        self.story.counts.messages += 1
        ids = self.story.answered(
            self.time, call, blocks, place=place, model=None, stop_reason=None, usage=dict(_NO_USAGE), unique=False
        )
        self._open = ids[0] if ids else None


def _before_the_answer(messages: Any) -> Iterator[tuple[str, str]]:
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping) and message.get("role") in ("system", "user"):
            yield str(message["role"]), _text(message.get("content"))


def _actions(extra: Any) -> str | None:
    actions = extra.get("actions") if isinstance(extra, Mapping) else None
    if not isinstance(actions, list):
        return None
    return "\n".join(str(a.get("command") if isinstance(a, Mapping) else a) for a in actions) or None


def _arguments(given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    try:
        value = json.loads(str(given))
    except ValueError:
        return {"arguments": given}
    return value if isinstance(value, dict) else {"arguments": value}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(b.get("text") or "") if isinstance(b, Mapping) else str(b) for b in content)
    return "" if content is None else str(content)
