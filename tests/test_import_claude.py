"""Claude Code transcripts: their order, their branches, their subagents, and what damage leaves of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.transcript import Transcript
from state.log import rebuild, snapshot
from tests.foreign_helpers import Claude, Result, at, unanswered, use


def small() -> Claude:
    """Two requests, a call with its result between them."""
    session = Claude()
    session.says("u1", "start it")
    session.answers("a1", "Starting.", use("t1", command="./start"))
    session.result("r1", "t1", "pid 4242")
    session.answers("a2", "It runs.")
    session.says("u2", "thank you")
    session.answers("a3", "Gladly.")
    return session


def test_a_plain_session_comes_over_word_by_word(tmp_path: Path) -> None:
    """Words, calls, results, usage and times are those of the transcript, and the source is as it was."""
    path = small().write(tmp_path / "s1.jsonl")
    before = path.read_bytes(), path.stat().st_mtime_ns
    done = Result(path)
    assert done.said() == ["start it", "Starting.", "It runs.", "thank you", "Gladly."]
    assert done.kinds() == ["operator.said", *["model.answered", "tool.answered"], "model.answered", *done.kinds()[4:]]
    assert done.of("tool.answered")[0]["content"] == "pid 4242"
    assert done.of("model.answered")[0]["usage"] == {"input": 10, "output": 5, "cache_read": 2, "cache_write": 0}
    assert done.log()[0].time == 1767261600.0
    assert done.losses.told() == []
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    counts = done.done[0].counts
    assert (counts.messages, counts.tool_calls, counts.records) == (6, 1, 6)


def test_records_without_parents_keep_the_order_of_the_file(tmp_path: Path) -> None:
    """Where no record names a parent, each follows the one before it; a summary becomes the title."""
    session = small()
    for record in session.records:
        del record["parentUuid"]
    session.records.insert(0, {"type": "summary", "summary": "About starting", "leafUuid": "nothing"})
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.said() == ["start it", "Starting.", "It runs.", "thank you", "Gladly."]
    assert done.done[0].title == "About starting"
    assert done.done[0].counts.messages == 6


def test_a_message_over_several_records_is_one_answer_and_is_paid_once(tmp_path: Path) -> None:
    """Parallel calls in records of one API message become one answer with its usage counted once, results between."""
    session = Claude()
    session.says("u1", "both")
    session.answers("a1", use("t1"), id="m1")
    session.result("r1", "t1", "one")
    session.answers("a2", use("t2"), id="m1", parentUuid="a1")
    session.result("r2", "t2", "two", parentUuid="a2")
    session.answers("a3", "done", parentUuid="r1")
    done = Result(session.write(tmp_path / "s.jsonl"))
    first = done.of("model.answered")[0]
    assert [block["id"] for block in first["content"]] == ["t1", "t2"]
    assert first["usage"]["output"] == 5
    assert unanswered(done.log()) == []
    assert [r["content"] for r in done.of("tool.answered")] == ["one", "two"]
    assert done.losses.told() == []


def test_a_branch_that_was_left_is_kept_aside(tmp_path: Path) -> None:
    """Where the operator went back and asked again, the first try is kept as records and is no part of the talk."""
    session = Claude()
    session.says("u1", "Start")
    session.answers("a1", "Ready")
    session.says("b1", "First try")
    session.answers("b2", "First answer")
    session.says("c1", "Second try", parentUuid="a1")
    session.answers("c2", "Second answer")
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.said() == ["Start", "Ready", "Second try", "Second answer"]
    assert [r["raw"]["uuid"] for r in done.of("foreign.record")] == ["b1", "b2"]
    assert done.done[0].counts.inactive == 2


def test_messages_kept_across_a_compaction_stay_in_what_the_model_sees(tmp_path: Path) -> None:
    """A kept message that stands behind the boundary goes back to its place; the summary covers what is before it."""
    session = Claude()
    session.says("u1", "Start")
    session.answers("a1", "Ready")
    session.says("u2", "Go on")
    kept = {"anchorUuid": "cs", "uuids": ["u2", "a2"]}
    session.add(
        "system", "cb", subtype="compact_boundary", parentUuid=None, logicalParentUuid="a2",
        compactMetadata={"preservedMessages": kept},
    )  # fmt: skip
    session.says("cs", "This session is being continued. Summary: started.", isCompactSummary=True)
    session.answers("a2", "Going on", parentUuid="cs", timestamp="2026-01-01T10:00:02.500Z")
    session.says("u3", "And now?")
    session.answers("a3", "Done")
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.said() == ["Start", "Ready", "Go on", "Going on", "And now?", "Done"]
    (compacted,) = done.of("conversation.compacted")
    through = next(m for m in done.log() if m.seq == compacted["through"])
    assert through.payload["content"][0]["text"] == "Ready"
    assert compacted["summary"].startswith("This session is being continued")
    transcript = Transcript()
    transcript.take_messages(done.log())
    seen = [block["text"] for message in transcript.messages() for block in message["content"]]
    assert [text for text in seen if "Summary: started." not in text] == ["Go on", "Going on", "And now?", "Done"]
    assert done.losses.told() == []


def test_history_that_was_written_again_counts_once(tmp_path: Path) -> None:
    """Records with a uuid that was read before are passed over, and what they cost is not counted twice."""
    session = small()
    session.records += session.records[:4]
    session.says("u9", "more", parentUuid="ffffffff-dead")
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.said() == ["start it", "Starting.", "It runs.", "thank you", "Gladly.", "more"]
    repeated, phantom = done.losses.told()
    assert repeated["place"] == "s.jsonl line 7"
    assert repeated["reason"].startswith("4 records that were read before")
    assert "`ffffffff-dead` is in no record" in phantom["reason"]


def test_an_unanswered_call_is_answered_as_unknown(tmp_path: Path) -> None:
    """A call that never ended gets an error for an answer, a result of no call is kept aside, an API error is none."""
    session = Claude()
    session.says("u1", "both")
    session.answers("a1", use("tA"), use("tB"))
    session.result("r1", "tA", "pid 1")
    session.says("u2", "are you there?")
    session.result("r9", "tX", "no such call")
    session.answers("a9", "API Error: 529 overloaded", isApiErrorMessage=True)
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert unanswered(done.log()) == []
    unknown = next(r for r in done.of("tool.answered") if r["tool_use_id"] == "tB")
    assert unknown["is_error"]
    assert unknown["content"].startswith("interrupted, outcome unknown")
    assert done.kinds().index("tool.answered") < [m.kind for m in done.log()].index("operator.said", 3)
    assert done.of("model.failed")[0]["kind"] == "overloaded"
    assert [loss["place"] for loss in done.losses.told()] == ["s.jsonl line 2", "s.jsonl line 5"]


def test_what_was_typed_while_the_model_worked_is_heard_once(tmp_path: Path) -> None:
    """Queued words stand where they left the queue, marked; those that also stand as a message are not doubled."""
    session = Claude()
    session.says("u1", "Migrate")
    session.loose("queue-operation", operation="enqueue", content="the parser first")
    session.loose("queue-operation", operation="enqueue", content="then the tests")
    session.answers("a1", "Working")
    session.loose("queue-operation", operation="remove", content="the parser first")
    session.loose("queue-operation", operation="dequeue")
    session.says("u2", "then the tests")
    session.answers("a2", "Understood")
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.said() == ["Migrate", "Working", "the parser first", "then the tests", "Understood"]
    assert [said.get("queued", False) for said in done.of("operator.said")] == [False, True, False]


def test_a_background_task_tells_its_end_once(tmp_path: Path) -> None:
    """A task's notification, in the queue and in the talk, is one notice, delivered with the next answer."""
    text = (
        "<task-notification><task-id>b7</task-id><status>completed</status><summary>done</summary></task-notification>"
    )
    session = Claude()
    session.says("u1", "train it")
    session.loose("queue-operation", operation="enqueue", content=text)
    session.loose("queue-operation", operation="dequeue")
    session.says("u2", text)
    session.answers("a1", "It is trained.")
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.kinds() == ["operator.said", "notice.raised", "model.answered", "notice.delivered"]
    assert done.of("notice.raised")[0]["about"] == {"job": "b7"}
    assert done.of("notice.delivered")[0]["call"] == "msg_a1"


def test_subagents_in_files_of_their_own_become_sessions(tmp_path: Path) -> None:
    """A subagent's file becomes a child session, started by its call and reported with its result."""
    session = Claude()
    session.says("u1", "look")
    session.answers("a1", use("t1", "Task", description="Search", prompt="find it"))
    session.result("r1", "t1", "found it", toolUseResult={"status": "completed", "agentId": "x1", "totalTokens": 9})
    agent = Claude()
    agent.says("g1", "find it", isSidechain=True, agentId="x1")
    agent.answers("g2", "found it", isSidechain=True, agentId="x1")
    agent.write(tmp_path / "s1" / "subagents" / "agent-x1.jsonl")
    done = Result(session.write(tmp_path / "s1.jsonl"))
    (child,) = done.done[0].children
    assert [m.kind for m in done.log(child.session)][1:3] == ["operator.said", "model.answered"]
    assert done.log(child.session)[0].payload["parent"] == done.done[0].session
    assert done.of("child.started")[0] == {"child": child.session, "title": "Search", "prompt": "find it"}
    assert done.of("child.reported")[0]["report"] == {"text": "found it", "totalTokens": 9}
    assert done.losses.told() == []


def test_subagents_within_the_file_become_sessions(tmp_path: Path) -> None:
    """Older transcripts hold a subagent's records among the others: they are told in a session of their own."""
    session = Claude()
    session.says("u1", "look")
    session.answers("a1", use("t1", "Task", description="Search", prompt="find it"))
    session.says("g1", "find it", isSidechain=True, parentUuid=None)
    session.answers("g2", "found it", isSidechain=True, parentUuid="g1")
    session.result("r1", "t1", "found it")
    session.answers("a2", "There it is.")
    done = Result(session.write(tmp_path / "s1.jsonl"))
    (child,) = done.done[0].children
    assert done.said() == ["look", "There it is."]
    assert [m.kind for m in done.log(child.session)] == [
        "session.created", "operator.said", "model.answered", "session.status",
    ]  # fmt: skip
    assert done.of("child.reported")[0]["status"] == "completed"


def test_a_subagent_that_is_named_late_is_one_subagent(tmp_path: Path) -> None:
    """Where only some records name the subagent, and one has lost its parent, all of them are one session."""
    session = Claude()
    session.says("u1", "look")
    session.answers("a1", use("t1", "Task", description="Search", prompt="find it"))
    session.result("r1", "t1", "found it", agentId="x1")
    session.answers("g1", use("g", "Grep"), isSidechain=True, parentUuid=None)
    session.result("g2", "g", "a.py", isSidechain=True, parentUuid="lost", agentId="x1")
    session.answers("a2", "There it is.", parentUuid="r1")
    done = Result(session.write(tmp_path / "s1.jsonl"))
    assert [child.found.key for child in done.done[0].children] == ["x1"]
    child = done.done[0].children[0].session
    assert [m.kind for m in done.log(child)][1:3] == ["model.answered", "tool.answered"]
    assert done.of("child.started")[0]["title"] == "Search"
    assert done.said() == ["look", "There it is."]
    assert ["`lost` is in no record" in reason for reason in done.reasons()] == [True]


def test_what_is_unknown_is_kept_as_it_was(tmp_path: Path) -> None:
    """A record of a type that nobody has seen is kept whole, at its place."""
    session = small()
    session.loose("hologram", projector=[1, 2, {"deep": None}])
    done = Result(session.write(tmp_path / "s.jsonl"))
    assert done.of("foreign.record")[0]["raw"]["projector"] == [1, 2, {"deep": None}]
    assert done.losses.told() == []


def test_records_that_name_only_a_role_come_over(tmp_path: Path) -> None:
    """Early transcripts have neither type nor uuid nor parent: the role of the message says what a record is."""
    lines = [
        {"sessionId": "s", "timestamp": at(1), "message": {"role": "user", "content": "start it"}},
        {"sessionId": "s", "timestamp": at(2), "message": {"role": "assistant", "content": "Started."}, "costUSD": 0.1},
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    done = Result(path)
    assert done.said() == ["start it", "Started."]
    assert done.of("model.answered")[0]["cost"] == 0.1
    (tmp_path / "t.jsonl").write_text('{"type":"user","message":{"content":"start it"}}')
    assert Result(tmp_path / "t.jsonl").said() == ["start it"]


# Damage


def test_a_file_that_ends_inside_a_record_gives_all_before(tmp_path: Path) -> None:
    """The cut last line is told with its place, and stays in the file."""
    path = small().write(tmp_path / "s.jsonl")
    raw = path.read_bytes()[:-40]
    path.write_bytes(raw)
    done = Result(path)
    assert done.said() == ["start it", "Starting.", "It runs.", "thank you"]
    (loss,) = done.losses.told()
    assert loss["place"] == f"s.jsonl line 6, byte {raw.rindex(b'{', 0, raw.rindex(b'uuid'))}"
    assert loss["reason"].startswith("the file ends inside this record")
    assert path.read_bytes() == raw


@pytest.mark.parametrize("cut", [0, 30, 200])
def test_records_in_one_line_are_taken_apart(tmp_path: Path, cut: int) -> None:
    """Two whole records in a line are both had; behind a torn one, the whole one is had and the torn one told."""
    lines = small().lines()
    glued = lines[0][: len(lines[0]) - cut] + lines[1]
    (tmp_path / "s.jsonl").write_bytes(b"\n".join([glued, *lines[2:]]) + b"\n")
    done = Result(tmp_path / "s.jsonl")
    want = ["start it"] if not cut else []
    assert done.said() == [*want, "Starting.", "It runs.", "thank you", "Gladly."]
    assert len(done.losses.told()) >= 1
    assert "s.jsonl line 1, byte" in done.losses.told()[0]["place"]


def test_a_hole_of_nul_bytes_costs_what_stood_there(tmp_path: Path) -> None:
    """NUL bytes between, before and instead of records are told with their number, and the rest is had."""
    lines = small().lines()
    raw = lines[0] + b"\n" + b"\0" * 4096 + lines[1] + b"\n" + b"\n".join(lines[2:])
    (tmp_path / "s.jsonl").write_bytes(raw)
    done = Result(tmp_path / "s.jsonl")
    assert done.said() == ["start it", "Starting.", "It runs.", "thank you", "Gladly."]
    assert done.losses.told() == [
        {"place": f"s.jsonl line 2, byte {len(lines[0]) + 1}", "reason": "4096 NUL bytes and no content"}
    ]


def test_texts_that_a_database_refuses_are_made_storable(tmp_path: Path) -> None:
    """Half a surrogate pair, a NUL character and bytes that are no UTF-8 do not cost the record they stand in."""
    session = Claude()
    session.says("u1", "half \ud83d and \x00 and whole \U0001f600")
    path = session.write(tmp_path / "s.jsonl")
    path.write_bytes(
        path.read_bytes() + b'{"type":"user","uuid":"u2","parentUuid":"u1","message":{"content":"\xff\xfe"}}\n'
    )
    done = Result(path)
    assert done.said() == ["half � and � and whole \U0001f600", "��"]
    assert done.reasons() == ["bytes that are no UTF-8 were replaced"]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_damage_breaks_the_import(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is cut out, doubled, glued or zeroed: it imports, each call has one answer, and the log rebuilds."""
    raw = b"\n".join(small().lines()) + b"\n"
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(len(raw), start + 900)))
        instead = data.draw(st.sampled_from([b"", b"\0" * 7, raw[start:end] * 2, b"\n", b"{", b'"', b"\xff"]))
        raw = raw[:start] + instead + raw[end:]
    path = tmp_path_factory.mktemp("damaged") / "s.jsonl"
    path.write_bytes(raw + b'{"type":"user","sessionId":"s1","uuid":"z","message":{"content":"still here"}}\n')
    done = Result(path)
    assert unanswered(done.log()) == []
    seqs = [m.seq for m in done.log()]
    assert seqs == list(range(1, len(seqs) + 1))
    before = done.db.read(snapshot)
    done.db.write(rebuild)
    assert done.db.read(snapshot) == before
    json.dumps([m.payload for m in done.log()]).encode()
    done.db.close()
