"""opencode: exports, folders, databases and run streams, and what is left of broken ones."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.foreign_helpers import Result, unanswered

T0 = 1767261600000
SES = "ses_1"


def user(id: str, text: str, second: int) -> dict[str, Any]:
    info = {"id": id, "sessionID": SES, "role": "user", "time": {"created": T0 + second * 1000}}
    return {"info": info, "parts": [{"id": f"prt_{id}", "messageID": id, "type": "text", "text": text}]}


def tool(call: str, status: str = "completed", name: str = "bash", **state: Any) -> dict[str, Any]:
    given = {"input": {"command": "ls"}, "time": {"start": T0 + 3000, "end": T0 + 4000}, "output": "a.py", **state}
    return {"id": f"prt_{call}", "type": "tool", "tool": name, "callID": call, "state": {"status": status, **given}}


def assistant(id: str, *parts: Any, second: int = 2, **info: Any) -> dict[str, Any]:
    told = {
        "id": id, "sessionID": SES, "role": "assistant", "modelID": "m", "providerID": "p",
        "cost": 0.5, "finish": "stop",
        "tokens": {"input": 3, "output": 4, "reasoning": 5, "cache": {"read": 6, "write": 7}},
        "time": {"created": T0 + second * 1000, "completed": T0 + second * 1000 + 500}, **info,
    }  # fmt: skip
    return {"info": told, "parts": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def export(*messages: Any, **info: Any) -> dict[str, Any]:
    head = {"id": SES, "title": "A session", "version": "1.0.0", "time": {"created": T0, "updated": T0}, **info}
    return {"info": head, "messages": list(messages)}


def plain() -> dict[str, Any]:
    return export(user("msg_1", "list it", 1), assistant("msg_2", "Listing.", tool("c1")), assistant("msg_3", "One."))


def check_plain(done: Result) -> None:
    assert done.said() == ["list it", "Listing.", "One."]
    assert done.of("tool.answered")[0]["content"] == "a.py"
    assert unanswered(done.log()) == []
    first = done.of("model.answered")[0]
    assert first["usage"] == {"input": 3, "output": 9, "cache_read": 6, "cache_write": 7}
    assert (first["cost"], first["model"]) == (0.5, "p/m")
    assert done.done[0].title == "A session"


@pytest.mark.parametrize("banner", ["", "Exporting session: ses_1"])
def test_an_export_comes_over(tmp_path: Path, banner: str) -> None:
    """`opencode export`, also with the banner that was captured before its brace."""
    path = tmp_path / "export.json"
    path.write_text(banner + json.dumps(plain(), indent=2))
    done = Result(path)
    check_plain(done)
    assert done.losses.told() == []


def test_an_export_that_is_cut_gives_what_was_whole(tmp_path: Path) -> None:
    """Every whole message, and of the last one the parts that were whole."""
    text = json.dumps(plain(), indent=2)
    path = tmp_path / "export.json"
    path.write_text(text[: text.index('"a.py"') - 20])
    done = Result(path)
    assert done.said() == ["list it", "Listing."]
    assert unanswered(done.log()) == []
    assert any("the file ends inside this element" in reason for reason in done.reasons())


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_tool_that_still_ran_is_answered_as_unknown(tmp_path: Path, status: str) -> None:
    """A call without an end gets an error for an answer, and no job is taken for alive."""
    path = tmp_path / "export.json"
    message = assistant("msg_2", tool("c1", status, time={"start": T0 + 3000}))
    path.write_text(json.dumps(export(user("msg_1", "go", 1), message)))
    done = Result(path)
    (answer,) = done.of("tool.answered")
    assert answer["is_error"]
    assert "outcome unknown" in answer["content"]
    assert "has no answer" in done.reasons()[0]


def test_rounds_within_one_message_are_answers_of_their_own(tmp_path: Path) -> None:
    """Where a message holds several rounds, each is an answer, and a call's id that comes again is made unique."""
    step = {"type": "step-start"}
    done_step = {"type": "step-finish", "reason": "tool-calls", "cost": 0.1, "tokens": {"input": 1, "output": 1}}
    message = assistant("msg_2", step, tool("c1"), done_step, step, tool("c1", output="b.py"), done_step, step, "End.")
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export(user("msg_1", "go", 1), message)))
    done = Result(path)
    assert done.kinds()[1:] == ["model.answered", "tool.answered", "model.answered", "tool.answered", "model.answered"]
    assert [r["content"] for r in done.of("tool.answered")] == ["a.py", "b.py"]
    assert unanswered(done.log()) == []


def test_a_compaction_and_an_error_are_what_they_are(tmp_path: Path) -> None:
    """A summary stands for what was before it, and an aborted answer is no answer."""
    ask = user("msg_3", "", 5)
    ask["parts"] = [{"type": "compaction", "auto": True}]
    aborted = {"name": "MessageAbortedError", "data": {"message": "aborted"}}
    path = tmp_path / "export.json"
    path.write_text(
        json.dumps(
            export(
                user("msg_1", "go", 1), assistant("msg_2", "Going."), ask, assistant("msg_4", "Went.", summary=True),
                user("msg_5", "on", 9), assistant("msg_6", error=aborted),
            )
        )
    )  # fmt: skip
    done = Result(path)
    (compacted,) = done.of("conversation.compacted")
    assert compacted == {"summary": "Went.", "through": 3}
    assert done.of("model.failed")[0]["kind"] == "interrupted"
    assert done.said() == ["go", "Going.", "Went.", "on"]
    assert [asked["purpose"] for asked in done.of("model.asked")] == ["compact"]
    assert [answer["cost"] for answer in done.of("model.answered")] == [0.5, 0.5]


@pytest.mark.parametrize(("code", "failed"), [(0, False), (1, True), (None, False)])
def test_a_command_that_ended_badly_is_a_failed_call(tmp_path: Path, code: int | None, failed: bool) -> None:
    """The exit code stands beside the output alone: it decides whether the call failed."""
    path = tmp_path / "export.json"
    done_tool = tool("c1", metadata={"output": "a.py", "exit": code})
    path.write_text(json.dumps(export(user("msg_1", "go", 1), assistant("msg_2", done_tool))))
    (answer,) = Result(path).of("tool.answered")
    assert (answer["content"], answer["is_error"]) == ("a.py", failed)


# Folders


def folder(root: Path, document: dict[str, Any]) -> Path:
    """The same session as files, as versions before 1.2 kept it."""
    storage = root / "storage"
    info = document["info"]
    put(storage / "session" / "prj" / f"{info['id']}.json", info)
    for message in document["messages"]:
        id = message["info"]["id"]
        put(storage / "message" / info["id"] / f"{id}.json", message["info"])
        for number, part in enumerate(message["parts"]):
            put(storage / "part" / id / f"prt_{number}.json", {"messageID": id, **part})
    return storage


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("give", ["data", "storage", "session file", "message file"])
def test_a_folder_comes_over_however_it_is_named(tmp_path: Path, give: str) -> None:
    """The data directory, its storage, or one file in it."""
    storage = folder(tmp_path, plain())
    paths = {
        "data": tmp_path, "storage": storage, "session file": storage / "session/prj/ses_1.json",
        "message file": storage / "message/ses_1/msg_2.json",
    }  # fmt: skip
    done = Result(paths[give])
    check_plain(done)
    assert done.losses.told() == []


def test_one_empty_file_costs_what_it_held(tmp_path: Path) -> None:
    """A session of NUL bytes is named and the others come over; an emptied part costs that part."""
    storage = folder(tmp_path, plain())
    (storage / "session/prj/ses_bad.json").write_bytes(b"\0" * 413)
    (storage / "part/msg_3/prt_0.json").write_bytes(b"")
    done = Result(tmp_path)
    assert done.said() == ["list it", "Listing."]
    assert {loss["place"] for loss in done.losses.told()} >= {
        "session/prj/ses_bad.json", "part/msg_3/prt_0.json",
    }  # fmt: skip


def test_a_session_without_its_own_file_is_told_from_its_messages(tmp_path: Path) -> None:
    """The record of a session may be lost; what was said in it is not."""
    storage = folder(tmp_path, plain())
    (storage / "session/prj/ses_1.json").write_bytes(b"\0" * 413)
    done = Result(tmp_path)
    assert done.said() == ["list it", "Listing.", "One."]
    assert done.losses.told()[0]["place"] == "session/prj/ses_1.json"


def test_a_file_of_nul_bytes_alone_is_named(tmp_path: Path) -> None:
    """Nothing can be had from it, and that is said."""
    path = tmp_path / "ses_1.json"
    path.write_bytes(b"\0" * 413)
    done = Result(path)
    assert done.done == []
    assert "413 bytes, all NUL" in done.reasons()[0]


def test_subagents_are_found_by_their_parent(tmp_path: Path) -> None:
    """A `task` call's session is told as a child where it is there, and its absence is said where it is not."""
    parts = [
        tool("c1", name="task", metadata={"sessionId": "ses_2"}, input={"description": "Look", "prompt": "find"}),
        tool("c2", name="task", metadata={"sessionId": "ses_3"}),
    ]
    folder(tmp_path, export(user("msg_1", "go", 1), assistant("msg_2", *parts)))
    child = export(user("msg_8", "find", 3), assistant("msg_9", "Found."), parentID=SES)
    child["info"]["id"] = "ses_2"
    folder(tmp_path, child)
    done = Result(tmp_path)
    (one,) = done.done
    assert [c.found.key for c in one.children] == ["ses_2"]
    assert done.of("child.started")[0]["prompt"] == "find"
    assert done.of("child.reported")[0]["status"] == "completed"
    assert "`ses_3` of this subagent is not in what was given" in done.reasons()[0]


def test_messages_that_hold_their_parts_come_over(tmp_path: Path) -> None:
    """The form of the first versions: parts within the message, tool calls as invocations."""
    base = tmp_path / "storage" / "session"
    put(base / "info" / "ses_1.json", plain()["info"])
    put(base / "message/ses_1/msg_1.json", {
        "id": "msg_1", "role": "user", "parts": [{"type": "text", "text": "list it"}],
        "metadata": {"time": {"created": T0}, "sessionID": SES},
    })  # fmt: skip
    call = {"state": "result", "toolCallId": "c1", "toolName": "bash", "args": {"command": "ls"}, "result": "a.py"}
    put(base / "message/ses_1/msg_2.json", {
        "id": "msg_2", "role": "assistant", "parts": [{"type": "tool-invocation", "toolInvocation": call}],
        "metadata": {
            "time": {"created": T0 + 1000}, "tool": {"c1": {"time": {"start": T0, "end": T0 + 2}}},
            "assistant": {"modelID": "m", "providerID": "p", "cost": 0.5, "tokens": {"input": 1, "output": 2}},
        },
    })  # fmt: skip
    done = Result(tmp_path)
    assert done.said() == ["list it"]
    assert done.of("tool.answered")[0]["content"] == "a.py"
    assert done.of("model.answered")[0]["cost"] == 0.5


# Databases


def database(path: Path, *, wal: bool = False) -> sqlite3.Connection:
    conn = sqlite3.connect(path)
    if wal:
        conn.execute("PRAGMA journal_mode=WAL")
        conn.execute("PRAGMA wal_autocheckpoint=0")
    conn.executescript(
        "CREATE TABLE session (id TEXT, parent_id TEXT, title TEXT, directory TEXT, version TEXT,"
        " time_created INTEGER);"
        "CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);"
        "CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, time_created INTEGER, data TEXT);"
        "CREATE TABLE todo (session_id TEXT, content TEXT, status TEXT, priority TEXT, position INTEGER);"
        "CREATE TABLE session_message (id TEXT, session_id TEXT, type TEXT, seq INTEGER,"
        " time_created INTEGER, data TEXT);"
    )
    conn.execute("INSERT INTO session VALUES ('ses_1', NULL, 'A session', '/srv', '1.4', ?)", (T0,))
    return conn


def fill(conn: sqlite3.Connection) -> None:
    for number, message in enumerate(plain()["messages"]):
        info = {k: v for k, v in message["info"].items() if k not in ("id", "sessionID")}
        row = (message["info"]["id"], SES, T0 + number, T0, json.dumps(info))
        conn.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        for place, part in enumerate(message["parts"]):
            data = json.dumps({k: v for k, v in part.items() if k != "id"})
            part_row = (f"prt_{number}_{place}", message["info"]["id"], SES, T0, data)
            conn.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?)", part_row)
    conn.execute("INSERT INTO todo VALUES ('ses_1', 'write it', 'pending', 'high', 0)")
    conn.commit()


@pytest.mark.parametrize("wal", [False, True])
def test_a_database_comes_over_and_is_not_touched(tmp_path: Path, wal: bool) -> None:
    """Messages and parts in tables; nothing is written beside the file, with or without a write-ahead log."""
    conn = database(tmp_path / "opencode.db", wal=wal)
    fill(conn)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")}
    done = Result(tmp_path / "opencode.db")
    check_plain(done)
    assert done.of("foreign.record")[-1]["raw"]["content"] == "write it"
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")} == before
    conn.close()


def test_messages_without_their_session_are_told_from_when_they_came(tmp_path: Path) -> None:
    """A database that lost a session's row still has its messages: they are told, and begin when the first came."""
    conn = database(tmp_path / "opencode.db")
    fill(conn)
    conn.execute("DELETE FROM session")
    conn.commit()
    conn.close()
    done = Result(tmp_path / "opencode.db")
    assert done.said() == ["list it", "Listing.", "One."]
    assert done.log()[0].time == (T0 + 1000) / 1000
    assert "without the record of their session" in done.reasons()[0]


def test_a_database_of_version_two_comes_over(tmp_path: Path) -> None:
    """Messages of the second generation: one record each, in the order of their numbers."""
    conn = database(tmp_path / "opencode.db")
    call = {
        "type": "tool", "id": "c1", "name": "bash", "time": {"created": T0, "completed": T0 + 9},
        "state": {"status": "completed", "input": {"command": "ls"}, "content": [{"type": "text", "text": "a.py"}]},
    }  # fmt: skip
    running = {
        "type": "tool",
        "id": "c2",
        "name": "bash",
        "time": {"created": T0},
        "state": {"status": "streaming", "input": "{"},
    }
    rows = [
        ("user", {"text": "list it", "time": {"created": T0}}),
        ("assistant", {"model": {"providerID": "p", "id": "m"}, "content": [{"type": "text", "text": "Listing."}, call],
                       "time": {"created": T0 + 1}, "cost": 0.5, "tokens": {"input": 3, "output": 4}}),
        ("compaction", {"status": "completed", "summary": "Listed.", "recent": "", "time": {"created": T0 + 2}}),
        ("assistant", {"content": [running], "time": {"created": T0 + 3}}),
        ("idle", {"outcome": "interrupted", "time": {"created": T0 + 4}}),
    ]  # fmt: skip
    for seq, (type, data) in reversed(list(enumerate(rows))):
        values = (f"msg_{seq}", SES, type, seq, T0, json.dumps(data))
        conn.execute("INSERT INTO session_message VALUES (?, ?, ?, ?, ?, ?)", values)
    conn.commit()
    conn.close()
    done = Result(tmp_path / "opencode.db")
    assert done.said() == ["list it", "Listing."]
    assert done.of("tool.answered")[0]["content"] == [{"type": "text", "text": "a.py"}]
    assert done.of("tool.answered")[1]["is_error"]
    assert done.of("conversation.compacted")[0]["through"] == 4
    assert done.of("model.answered")[0]["model"] == "p/m"
    assert unanswered(done.log()) == []


def test_a_broken_row_costs_that_row(tmp_path: Path) -> None:
    """A row whose content is no JSON is named; the others come over."""
    conn = database(tmp_path / "opencode.db")
    fill(conn)
    conn.execute('UPDATE part SET data = \'{"type": "text", "te\' WHERE id = \'prt_2_0\'')
    conn.commit()
    conn.close()
    done = Result(tmp_path / "opencode.db")
    assert done.said() == ["list it", "Listing."]
    assert any("part prt_2_0" in loss["place"] for loss in done.losses.told())


# The run stream


def test_a_run_stream_comes_over(tmp_path: Path) -> None:
    """Lines of `opencode run --format json`: parts gathered by message, an error as a failure."""

    def line(type: str, second: int, **more: Any) -> str:
        return json.dumps({"type": type, "timestamp": T0 + second * 1000, "sessionID": SES, **more})

    finish = {"type": "step-finish", "messageID": "msg_1", "reason": "tool-calls", "cost": 0.5, "tokens": {"input": 3}}
    path = tmp_path / "run.jsonl"
    path.write_text(
        "\n".join([
            line("step_start", 1, part={"type": "step-start", "messageID": "msg_1"}),
            line("text", 2, part={"type": "text", "messageID": "msg_1", "text": "Listing."}),
            line("tool_use", 3, part={**tool("c1"), "messageID": "msg_1"}),
            line("step_finish", 4, part=finish),
            line("text", 5, part={"type": "text", "messageID": "msg_2", "text": "One."}),
            line("error", 6, error={"name": "APIError", "data": {"message": "429 rate limit"}}),
        ])
    )  # fmt: skip
    done = Result(path)
    assert done.said() == ["Listing.", "One."]
    assert done.of("model.answered")[0]["cost"] == 0.5
    assert done.of("model.failed")[0]["kind"] == "rate_limit"
    assert unanswered(done.log()) == []
