"""The planner: what is said and what ends is heard, and answers edit a graph that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.scripted import ScriptedModel
from tests.talking import Face, configured, play, talking


def last_text(body: dict[str, Any]) -> str:
    """All text of a request's last message."""
    return "\n".join(str(block.get("text") or block.get("content")) for block in body["messages"][-1]["content"])


def test_a_word_of_the_operator_becomes_a_job_whose_end_is_told(tmp_path: Path) -> None:
    """Prose in, a job on a host, its end as a notice in the next request, an answer out."""

    turns = [
        {"when": "count", "say": "Counting.", "tools": [{"name": "job", "input": {"run": "echo 42", "id": "count"}}]},
        {"when": "in_progress", "say": "It runs."},
        {"when": "todo `count`", "say": "Done: 42."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("please count")
            await face.until(lambda: "Done: 42." in face.words())
            assert face.status("count") == "completed"
            assert face.kinds("notice.delivered")
            assert talk.transcript.notices == {}
            assert talk.spent.calls == 3

    server = play(turns, main)
    assert "<state>" in last_text(server.requests[0])
