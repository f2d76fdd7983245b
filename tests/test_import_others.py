"""Codex and SWE-agent, folders of many transcripts, and what is no session at all."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from state.errors import NotFound, UsageError
from tests.foreign_helpers import Result, unanswered

# Codex


def rollout(*records: tuple[str, dict[str, Any]], id: str = "r1", **meta: Any) -> str:
    head = {"id": id, "cwd": "/srv", "cli_version": "0.77.0", "timestamp": "2026-01-01T10:00:00Z", **meta}
    told = [("session_meta", head), *records]
    return "\n".join(
        json.dumps({"timestamp": f"2026-01-01T10:00:{n:02d}Z", "type": type, "payload": payload})
        for n, (type, payload) in enumerate(told)
    )


def words(role: str, text: str) -> tuple[str, dict[str, Any]]:
    kind = "input_text" if role == "user" else "output_text"
    return "response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(id: str, name: str = "shell", **given: Any) -> tuple[str, dict[str, Any]]:
    return "response_item", {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(given)}


def output(id: str, text: Any) -> tuple[str, dict[str, Any]]:
    return "response_item", {"type": "function_call_output", "call_id": id, "output": text}


def test_a_rollout_comes_over(tmp_path: Path) -> None:
    """Words that stand twice are heard once, what was put in is kept aside, and one response is one answer."""
    usage = {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 3}
    tokens = ("event_msg", {"type": "token_count", "info": {"last_token_usage": usage}})
    path = tmp_path / "rollout-2026-01-01-r1.jsonl"
    path.write_text(
        rollout(
            words("user", "<environment_context>/srv</environment_context>"), words("user", "list it"),
            ("event_msg", {"type": "user_message", "message": "list it"}), ("turn_context", {"model": "gpt-x"}),
            ("response_item", {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}),
            words("assistant", "Listing."), call("c1", command="ls"), call("c2", command="pwd"), tokens,
            output("c2", "/srv"), output("c1", {"content": "a.py", "success": False}),
            words("assistant", "One."), ("event_msg", {"type": "agent_message", "message": "One."}),
            ("compacted", {"message": "Listed."}), call("c3"),
            ("event_msg", {"type": "turn_aborted", "reason": "stop"}),
        )
    )  # fmt: skip
    done = Result(path)
    assert done.said() == ["list it", "Listing.", "One."]
    first = done.of("model.answered")[0]
    assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert first["usage"] == {"input": 6, "output": 3, "cache_read": 4, "cache_write": 0}
    assert first["model"] == "gpt-x"
    assert [(r["tool_use_id"], r["is_error"]) for r in done.of("tool.answered")] == [
        ("c2", False), ("c1", True), ("c3", True),
    ]  # fmt: skip
    assert done.of("conversation.compacted")[0]["summary"] == "Listed."
    assert done.of("model.failed")[0]["kind"] == "interrupted"
    assert unanswered(done.log()) == []
    assert done.done[0].title == "list it"


def tokens(last: int, total: int) -> tuple[str, dict[str, Any]]:
    info = {"last_token_usage": {"output_tokens": last}, "total_token_usage": {"output_tokens": total}}
    return "event_msg", {"type": "token_count", "info": info}


@pytest.mark.parametrize("early", [True, False])
def test_every_token_counts_once_wherever_it_is_counted(tmp_path: Path, early: bool) -> None:
    """Versions count a response before its items or behind them, and some say the same figures twice."""
    path = tmp_path / "rollout-r1.jsonl"
    first = [tokens(3, 3), call("c1")] if early else [call("c1"), tokens(3, 3)]
    second = [tokens(4, 7), words("assistant", "One.")] if early else [words("assistant", "One."), tokens(4, 7)]
    path.write_text(rollout(words("user", "go"), *first, output("c1", "a.py"), tokens(3, 3), *second))
    done = Result(path)
    assert [answer["usage"]["output"] for answer in done.of("model.answered")] == [3, 4]


def test_tokens_of_a_response_that_was_cut_off_are_told_with_its_end(tmp_path: Path) -> None:
    """What was counted before an abort was paid for."""
    path = tmp_path / "rollout-r1.jsonl"
    path.write_text(rollout(words("user", "go"), tokens(3, 3), ("event_msg", {"type": "turn_aborted"})))
    assert Result(path).of("model.failed")[0]["usage"]["output"] == 3


@pytest.mark.parametrize("code", [0, 2])
def test_outputs_of_commands_say_whether_they_failed(tmp_path: Path, code: int) -> None:
    """The exit code stands in a JSON object, in the head of the output, or in an event of a call without an output."""
    document = json.dumps({"output": "a.py\n", "metadata": {"exit_code": code, "duration_seconds": 0.5}})
    head = f"Exit code: {code}\nWall time: 0.5 seconds\nOutput:\na.py\n"
    later = f"Chunk ID: 1\nWall time: 0.5 seconds\nProcess exited with code {code}\nOutput:\na.py\n"
    event = {"type": "exec_command_end", "call_id": "c4", "aggregated_output": "a.py\n", "exit_code": code}
    path = tmp_path / "rollout-r1.jsonl"
    path.write_text(
        rollout(
            call("c1"), call("c2"), call("c3"), call("c4"), output("c1", document), output("c2", head),
            output("c3", later), ("event_msg", event),
        )
    )  # fmt: skip
    done = Result(path)
    answers = done.of("tool.answered")
    assert [answer["content"] for answer in answers] == [head, head, later, "a.py\n"]
    assert {answer["is_error"] for answer in answers} == {code != 0}
    assert done.losses.told() == []


def test_a_subagents_rollout_beside_it_is_its_child(tmp_path: Path) -> None:
    """A rollout that another one spawned is told as its subagent."""
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": "r1", "agent_nickname": "Ada"}}}
    (tmp_path / "rollout-b-r2.jsonl").write_text(rollout(words("assistant", "Found."), id="r2", source=spawn))
    path = tmp_path / "rollout-a-r1.jsonl"
    path.write_text(rollout(words("user", "go"), call("c1", "spawn_agent"), output("c1", '{"agent_id": "r2"}')))
    done = Result(path)
    assert [child.found.key for child in done.done[0].children] == ["r2"]
    assert done.of("child.started")[0]["title"] == "Ada"
    assert [m.kind for m in done.log(done.done[0].children[0].session)].count("model.answered") == 1


def test_rollouts_of_the_older_forms_come_over(tmp_path: Path) -> None:
    """Bare items behind a line of facts, and the one document with `session` and `items`."""
    items = [words("user", "list it")[1], call("c1")[1], output("c1", "a.py")[1], words("assistant", "One.")[1]]
    head = {"id": "r1", "timestamp": "2025-05-07T17:24:21Z", "instructions": None}
    bare = tmp_path / "rollout-1.jsonl"
    bare.write_text("\n".join(json.dumps(value) for value in [head, *items]))
    document = tmp_path / "rollout-2.json"
    document.write_text(json.dumps({"session": head, "items": items}))
    for path in (bare, document):
        done = Result(path)
        assert done.said() == ["list it", "One."]
        assert unanswered(done.log()) == []
        assert done.log()[0].time == 1746638661.0


# SWE-agent


def test_a_trajectory_comes_over(tmp_path: Path) -> None:
    """Each step is an answer with its action and what was observed; the task is the operator's."""
    steps = [
        {"response": "I list.\n```\nls\n```", "thought": "I list.", "action": "ls", "observation": "a.py",
         "execution_time": 2.5, "state": "{}"},
        {"response": "Done.", "action": "submit"},
    ]  # fmt: skip
    history = [{"role": "system", "content": "SETTING"}, {"role": "user", "content": "Fix it"}]
    path = tmp_path / "x.traj"
    path.write_text(json.dumps({"environment": "e", "trajectory": steps, "history": history, "info": {"exit": "x"}}))
    done = Result(path)
    assert done.said() == ["Fix it", "I list.\n```\nls\n```", "Done."]
    first, second = done.of("tool.answered")
    assert (first["content"], first["is_error"]) == ("a.py", False)
    assert second["is_error"]
    answer = next(m for m in done.log() if m.kind == "tool.answered")
    assert answer.time - done.log()[0].time == 2.5
    assert done.of("foreign.record")[-1]["raw"] == {"info": {"exit": "x"}}


def test_a_list_of_messages_comes_over(tmp_path: Path) -> None:
    """mini-swe-agent's first form: nothing but messages, commands within the text, what was observed as the user's."""
    said = "I list.\n\n```mswea_bash_command\nls\n```"
    messages = [
        {"role": "system", "content": "SETTING"}, {"role": "user", "content": "Fix it"},
        {"role": "assistant", "content": said}, {"role": "user", "content": "<returncode>0</returncode>"},
    ]  # fmt: skip
    path = tmp_path / "x.traj.json"
    path.write_text(json.dumps(messages))
    done = Result(path)
    assert done.said() == ["Fix it", said]
    assert done.of("model.answered")[0]["content"][1]["input"] == {"command": "ls"}
    assert done.of("tool.answered")[0]["content"] == "<returncode>0</returncode>"


# Folders of many, and what is nothing


def test_a_folder_of_transcripts_gives_all_of_them(tmp_path: Path) -> None:
    """Every session below a folder comes over; a file of no known format is named."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.traj").write_text(json.dumps({"trajectory": [{"response": "Hi.", "action": ""}]}))
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    done = Result(tmp_path)
    assert [one.found.format for one in done.done] == ["swe-agent"]
    assert done.losses.told()[0]["place"] == "notes.jsonl"


def test_what_is_no_session_is_refused_by_name(tmp_path: Path) -> None:
    """A path that is not there, and a file of no format that is known, are errors that say so."""
    with pytest.raises(NotFound, match="there is no file or folder"):
        Result(tmp_path / "nothing")
    with closing(sqlite3.connect(tmp_path / "opencode.db")) as conn:
        conn.executescript("CREATE TABLE sessions (id); CREATE TABLE messages (id);")
    with pytest.raises(UsageError, match="first opencode of 2025"):
        Result(tmp_path / "opencode.db")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(UsageError, match="no format that is known"):
        Result(tmp_path / "x.txt")
