"""The conversation as entries: live and from the log it reads the same, and nothing is shown twice or lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from agent.chat_commands import COMMANDS
from agent.chat_entries import MAX_ENTRIES, Conversation, Entry
from agent.chat_text import count, money, tool_words
from agent.screen_help import KEYS
from tests.cli_helpers import ROOT

USAGE = {"input": 1, "output": 1, "cache_read": 0, "cache_write": 0}


def answered(call: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "call": call,
        "model": "m",
        "content": list(blocks),
        "stop_reason": "end_turn",
        "usage": USAGE,
        "cost": None,
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id: str, name: str = "run", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"call": "c1", "tool_use_id": id, "name": "run", "content": content, "is_error": is_error}


def shown(conversation: Conversation) -> list[tuple[str, str, str]]:
    return [(entry.kind, entry.state, entry.text) for entry in conversation.entries]


def test_live_and_stored_read_the_same() -> None:
    """What streamed in and what the log gives back are the same entries, in the same order."""
    stored, live = Conversation(), Conversation()
    answer = answered("c1", text("**Both** are under way."), use("t1", command="nvidia-smi", host="gpu1"))
    log = [
        ("operator.said", {"text": "vLLM is dead"}),
        ("model.answered", answer),
        ("tool.answered", result("t1", "ok")),
    ]
    for seq, (kind, payload) in enumerate(log, 1):
        stored.apply(kind, payload, seq, 1.0)
    live.apply(*log[0], 1, 1.0)
    live.begin("c1", 1.0)
    for piece in ("**Bo", "th** are", " under way."):
        live.grow("c1", piece)
    live.tool("t1", "run", {"command": "nvidia-smi", "host": "gpu1"})
    live.apply(*log[1], 2, 1.0)
    live.apply(*log[2], 3, 1.0)
    assert shown(live) == shown(stored)
    assert [entry.kind for entry in live.entries] == ["said", "answer", "tool"]


def test_an_answer_without_words_shows_nothing() -> None:
    """A turn that only calls tools leaves no empty answer behind."""
    conversation = Conversation()
    conversation.begin("c1", 0.0)
    conversation.apply("model.answered", answered("c1", use("t1")), 1, 0.0)
    assert [entry.kind for entry in conversation.entries] == ["tool"]


def test_a_stopped_answer_keeps_its_words_and_says_so() -> None:
    """Escape in mid-sentence: what was said stays, marked as stopped, and is no error."""
    conversation = Conversation()
    conversation.grow("c1", "I would now del")
    failed = {"call": "c1", "kind": "interrupted", "reason": "stopped", "attempt": 1}
    conversation.apply("model.failed", failed, 1, 0.0)
    assert shown(conversation) == [("answer", "stopped", "I would now del")]


@pytest.mark.parametrize(("retry", "told"), [(12.0, 0), (None, 1)])
def test_only_a_failure_that_is_final_is_an_error(retry: float | None, told: int) -> None:
    """An overload that will be tried again is the status line's business; giving up is the operator's."""
    conversation = Conversation()
    failed = {"call": "c1", "kind": "overloaded", "reason": "busy", "attempt": 1, "retry_in_s": retry}
    conversation.apply("model.failed", {k: v for k, v in failed.items() if v is not None}, 1, 0.0)
    assert sum(entry.kind == "error" for entry in conversation.entries) == told


def test_what_happens_in_a_row_is_one_entry() -> None:
    """Ten todos that end one after another do not push the conversation away."""
    conversation = Conversation()
    for number in range(10):
        conversation.event(Text(f"job{number} completed"), seq=number, time=0.0)
    conversation.say(["a note"])
    conversation.event(Text("late"), seq=11, time=0.0)
    assert [len(entry.lines) for entry in conversation.entries] == [10, 1, 1]


def test_long_conversations_are_bounded_and_counted() -> None:
    """The screen keeps the last entries and knows how many it dropped."""
    conversation = Conversation()
    for seq in range(MAX_ENTRIES + 30):
        conversation.apply("operator.said", {"text": str(seq)}, seq, 0.0)
    assert (len(conversation.entries), conversation.dropped) == (MAX_ENTRIES, 30)
    assert conversation.entries[-1].text == str(MAX_ENTRIES + 29)


def test_a_subagent_is_one_line_that_moves_and_ends_with_its_report() -> None:
    """Research shows what it does now, then what it found; after its end nothing moves it again."""
    conversation = Conversation()
    conversation.apply("child.started", {"child": "s2", "title": "What SGLang needs", "prompt": "..."}, 1, 0.0)
    conversation.child_line("s2", "reading eagle_worker.py")
    assert conversation.entries[0].lines[0].plain == "reading eagle_worker.py"
    report = {"child": "s2", "status": "completed", "report": {"summary": "It wants\nEAGLE3."}}
    conversation.apply("child.reported", report, 2, 0.0)
    conversation.child_line("s2", "late")
    assert (conversation.entries[0].state, conversation.entries[0].lines[0].plain) == ("done", "It wants EAGLE3.")


@given(st.lists(st.sampled_from(["begin", "grow", "tool", "answer", "result", "fail", "said"]), max_size=30))
def test_no_order_of_events_breaks_it(steps: list[str]) -> None:
    """Whatever arrives in whatever order, each tool and each answer is at most one entry."""
    conversation = Conversation()
    failed = {"call": "c1", "kind": "cut", "reason": "x", "attempt": 1}
    for seq, step in enumerate(steps):
        match step:
            case "begin":
                conversation.begin("c1", 0.0)
            case "grow":
                conversation.grow("c1", "x")
            case "tool":
                conversation.tool("t1", "run", {})
            case "answer":
                conversation.apply("model.answered", answered("c1", text("x"), use("t1")), seq, 0.0)
            case "result":
                conversation.apply("tool.answered", result("t1", "ok"), seq, 0.0)
            case "fail":
                conversation.apply("model.failed", failed, seq, 0.0)
            case _:
                conversation.apply("operator.said", {"text": "x"}, seq, 0.0)
    tools: list[Entry] = [entry for entry in conversation.entries if entry.kind == "tool"]
    assert len(tools) <= 1
    assert len({id(entry) for entry in conversation.entries}) == len(conversation.entries)


def test_figures_in_words() -> None:
    """Tokens, money and tool calls are short enough for a line."""
    assert [count(n) for n in (950, 12_345, 1_234_567)] == ["950", "12.3k", "1.23M"]
    assert [money(c) for c in (None, 0.0421, 3.1)] == ["", "$0.042", "$3.10"]
    assert tool_words("run", {"command": "ls\x1b[31m -l\n", "host": "gpu1"}) == "run on gpu1  ls -l"
    assert tool_words("todo", {"ops": [1]}) == 'todo  {"ops": [1]}'
    assert tool_words("shell", {"command": ["bash", "-lc", "ls | wc"]}) == "shell  ls | wc"
    assert tool_words("shell", {"command": ["ls", "a b"]}) == "shell  ls 'a b'"
    assert tool_words("read", {"filePath": "/srv/" + "x" * 60 + "/a.py"}, 12) == "read  …xxxxxx/a.py"


def test_the_page_names_every_command_and_key() -> None:
    """docs/chat.md has every command of the chat and every key of the screen's help."""
    page = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`/{name}" not in page] == []
    keys = {key for row, _ in KEYS for key in row.replace("PgUp PgDn", "PgUp").split()}
    assert [key for key in keys if key not in page] == []
