"""What the planner would have asked, against what it asked: the conversation part of a check.

For each recorded request the transcript of that moment is built with today's code; compared are the number of its
messages, the notices that rode along, and the prompt. The rest of a request (the state of the machine at that second,
the model's settings) is not in the log and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.config import ModelConfig
from agent.model import sha
from agent.planner_prompt import PLANNER, SUBAGENT, system
from agent.speaker import MOST_NOTICES
from agent.transcript import Transcript
from state.conversation import SPOKEN
from state.models import Message

_TAIL = [{"type": "text", "text": "<state></state>"}]


class TalkCheck:
    """Follows the conversation of one session. `calls` are the model's tool calls by id, `compared` counts requests."""

    def __init__(self, kind: str) -> None:
        self._prompt = SUBAGENT if kind == "subagent" else PLANNER
        self._transcript = Transcript()
        self.compared = 0
        self.calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._held: list[Message] = []

    def take(self, message: Message) -> tuple[dict[str, Any] | None, str]:
        """One message. The payload that today's code gives it, where that differs, and why it does."""
        if message.kind not in SPOKEN:
            return None, ""
        if message.kind == "model.answered":
            uses = (block for block in message.payload["content"] if block.get("type") == "tool_use")
            self.calls.update((block["id"], (block["name"], block.get("input") or {})) for block in uses)
        if message.kind != "model.asked":
            self._held.append(message)
            return None, ""
        request: Mapping[str, Any] = message.payload["request"]
        through = request.get("through", message.seq - 1)
        for known in [m for m in self._held if m.seq <= through]:
            self._transcript.take(known.seq, known.kind, known.payload)
        self._held = [m for m in self._held if m.seq > through]
        found = self._compared(message.payload, request)
        for known in [*self._held, message]:
            self._transcript.take(known.seq, known.kind, known.payload)
        self._held = []
        return found

    def _compared(self, payload: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        self.compared += 1
        compact = payload["purpose"] == "compact"
        most = 0 if compact else MOST_NOTICES
        today = dict(request)
        if "messages" in request:
            today["messages"] = len(self._transcript.messages(_TAIL, most_notices=most))
        if not compact and "notices" in request:
            today["notices"] = list(self._transcript.notices)[:most]
        if "system_sha" in request and request["system_sha"] not in (known := self._prompts(payload["model"])):
            today["system_sha"] = known[0]
        if today == dict(request):
            return None, ""
        names = ", ".join(f"`{name}`" for name in today if today[name] != request.get(name))
        return {**payload, "request": today}, f"what the model is asked with: {names} of the request"

    def _prompts(self, model: str) -> list[str]:
        """The hashes of the prompt, as it is sent with and without the cache."""
        return [sha(system(self._prompt, ModelConfig(name=model, cache=cache))) for cache in (True, False)]
