"""Sessions as files: what is exported comes back equal, tells no secret, and goes on elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli_export import export_, unpack_extras
from agent.cli_import import bring, bring_export, take_in
from agent.core import Core
from agent.events import Go, JobSeen
from agent.load import creation, load
from agent.payload import snapshot as keep_payload
from state import conversation as talk
from state import export
from state.db import Database
from state.errors import SessionBusy, StateError, UsageError
from state.foreign.damage import Losses
from state.log import append, snapshot
from state.owner import acquire, this_process
from state.specs import EdgeSpec, Plan, TodoSpec
from tests.cli_helpers import begin, job_runs, playbook, turnout, until
from tests.foreign_helpers import Claude, Result, unanswered, use


def plan() -> Plan:
    todos = (
        TodoSpec("a", "First", "job", {"host": "gpu1", "run": "true", "gpus": 1}),
        TodoSpec("b", "Second", "job", {"host": "gpu1", "run": "true"}),
    )
    return Plan("two", "Two jobs", {"host": "gpu1"}, todos, (EdgeSpec("a", "b"),), "two.yaml")


def stored(path: Path, **more: Any) -> Database:
    """A session in the middle: one job has ended, another runs, the model spoke, a subagent reported."""
    db = Database.open(str(path))
    settings_: dict[str, Any] = {"params": {"host": "gpu1"}, "hosts": {"gpu1": {"gpus": 2}}, **more}
    db.write(lambda conn: append(conn, "abcd2345", creation(plan(), settings_), 10.5))
    state = db.read(lambda conn: load(conn, "abcd2345"))
    core = Core(state)
    for moment, event in enumerate([Go(), JobSeen("abcd2345.a.1", "exited", rc=0, output={"n": 1}, started=11.0)]):
        changes = core.step(event)
        db.write(lambda conn, changes=changes, at=12.0 + moment: append(conn, "abcd2345", changes, at))
    said = [
        talk.operator_said("go on"),
        talk.model_answered(
            "c1", model="m", content=[{"type": "text", "text": "I do."}, use("t1", command="ls")],
            stop_reason="tool_use", usage={"input": 1, "output": 2, "cache_read": 0, "cache_write": 0}, cost=0.1,
        ),
        talk.tool_answered("c1", "t1", "Bash", "a.py"),
        talk.notice_raised("n9", "it ended", about={"job": "abcd2345.a.1"}),
        talk.child_started("kid23456", title="Look", prompt="find"),
    ]  # fmt: skip
    db.write(lambda conn: append(conn, "abcd2345", said, 14.25))
    from state.changes import session_created

    child = session_created(kind="subagent", title="Look", playbook=None, source=None, parent="abcd2345", settings={})
    db.write(lambda conn: append(conn, "kid23456", [child, talk.operator_said("find")], 15.0))
    return db


def written(db: Database, path: Path, **options: Any) -> Path:
    given = {"format": "turnout", "redact": False, "redact_hosts": False, "redact_paths": False, "yes": True}
    export_(db, "abcd2345", out=str(path), **{**given, **options})
    return path


def of_sessions(db: Database) -> dict[str, Any]:
    rows = db.read(snapshot)
    return {name: [r for r in found if r.get("id") != "system"] for name, found in rows.items() if name != "hosts"}


def test_what_is_exported_comes_back_equal(tmp_path: Path) -> None:
    """Every table and every message of the session and its subagent are the same on the other side."""
    db = stored(tmp_path / "a.db")
    path = written(db, tmp_path / "s.jsonl")
    other = Database.open(str(tmp_path / "b.db"))
    losses = Losses()
    (done,) = bring(other, path, losses)
    assert losses.told() == []
    assert (done.session, [c.session for c in done.children]) == ("abcd2345", ["kid23456"])
    assert of_sessions(other) == of_sessions(db)
    again = written(other, tmp_path / "again.jsonl")
    assert again.read_bytes() == path.read_bytes()


def test_taking_in_twice_changes_nothing_and_more_goes_on(tmp_path: Path) -> None:
    """The same file again adds nothing; a later export of the same session adds what is new."""
    db = stored(tmp_path / "a.db")
    first = written(db, tmp_path / "1.jsonl")
    other = Database.open(str(tmp_path / "b.db"))
    bring(other, first, Losses())
    before = of_sessions(other)
    bring(other, first, Losses())
    assert of_sessions(other) == before
    db.write(lambda conn: append(conn, "abcd2345", [talk.operator_said("and more")], 20.0))
    bring(other, written(db, tmp_path / "2.jsonl"), Losses())
    assert of_sessions(other) == of_sessions(db)
    bring(other, first, Losses())
    assert of_sessions(other) == of_sessions(db)


def test_a_folder_of_exports_is_imported_whole(tmp_path: Path) -> None:
    """Every export in a folder comes in, beside other programs' sessions; one that cannot is a loss with its name."""
    folder = tmp_path / "kept"
    (folder / "more").mkdir(parents=True)
    db = stored(tmp_path / "a.db")
    written(db, folder / "more" / "s.jsonl")
    written(db, folder / "theirs.jsonl", format="claude-code")
    (folder / "later.jsonl").write_text('{"turnout": "session", "version": 99, "session": "x"}\n')
    (folder / "notes.txt").write_text("not a session\n")
    other = Database.open(str(tmp_path / "b.db"))
    losses = Losses()
    done = bring(other, folder, losses)
    assert [one.found.format for one in done] == ["claude-code", "turnout"]
    assert done[1].session == "abcd2345"
    (refused,) = [loss for loss in losses.told() if loss["place"] == "later.jsonl"]
    assert "this Turnout knows 1" in refused["reason"]


def test_two_sessions_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    """A file (edited, without its checksums) whose log differs from the one here is refused; nothing is written."""
    db = stored(tmp_path / "a.db")
    path = written(db, tmp_path / "s.jsonl")
    lines = [json.loads(line) for line in path.read_text().replace("go on", "no, stop").splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "crc"}) + "\n" for line in lines))
    before = of_sessions(db)
    with pytest.raises(StateError, match="differs from that in the file"):
        bring(db, path, Losses())
    assert of_sessions(db) == before


def test_a_session_that_is_driven_is_not_written_to(tmp_path: Path) -> None:
    """While a process drives a session here, nobody takes a file in behind its back."""
    db = stored(tmp_path / "a.db")
    path = written(db, tmp_path / "s.jsonl")
    db.write(lambda conn: acquire(conn, "abcd2345", this_process(), time.time()))
    with pytest.raises(SessionBusy, match="is driven here"):
        bring(db, path, Losses())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_export_gives_the_session_as_it_was_earlier(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut, glued or zeroed: what comes back is the beginning of the log, and the rest is told."""
    folder = tmp_path_factory.mktemp("damaged")
    db = stored(folder / "a.db")
    path = written(db, folder / "s.jsonl")
    raw = path.read_bytes()
    start = data.draw(st.integers(90, len(raw) - 1))
    end = data.draw(st.integers(start + 1, min(len(raw), start + 600)))
    path.write_bytes(raw[:start] + data.draw(st.sampled_from([b"", b"\0" * 9, b"{"])) + raw[end:])
    other = Database.open(str(folder / "b.db"))
    losses = Losses()
    done = bring(other, path, losses)
    assert losses.told() or of_sessions(other) == of_sessions(db)  # a last line feed is no loss
    if done:
        whole = db.read(lambda conn: list(export.read_log(conn, "abcd2345")))
        had = other.read(lambda conn: list(export.read_log(conn, "abcd2345")))
        assert [m.model_dump() for m in had] == [m.model_dump() for m in whole[: len(had)]]
    db.close()
    other.close()


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    """A file of a version that this code does not know is not guessed at."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"turnout":"session","version":99,"session":"x"}\n')
    with pytest.raises(UsageError, match="version 99"):
        export.read(path, Losses())


def test_an_export_does_not_replace_a_file_without_leave(tmp_path: Path) -> None:
    """A file that is there stays, unless `--yes` is given."""
    db = stored(tmp_path / "a.db")
    path = tmp_path / "s.jsonl"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        written(db, path, yes=False)
    assert path.read_text() == "mine"


# Elsewhere


def test_a_file_in_a_folder_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    """`export --out` and `replay --html` name the missing folder and how to make it; a folder is no file."""
    stored(tmp_path / "turnout.db").close()
    place = tmp_path / "no" / "out"
    for command in (["export", "--out", str(place)], ["replay", "--html", str(place)]):
        done = turnout(*command)
        assert done.returncode == 2
        assert f"there is no folder `{place.parent}`" in done.stderr
        assert f"hint: make it: `mkdir -p {place.parent}`" in done.stderr
        assert "is a folder" in turnout(*command[:2], str(tmp_path)).stderr


def test_a_session_takes_its_hosts_and_payload_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine the hosts are known with their pinned keys, and the payload lies under its hash."""
    from state.changes import host_saved
    from state.log import append_system

    source = tmp_path / "payload"
    source.mkdir()
    (source / "train.py").write_text("print('training')\n")
    payload = keep_payload(source, "two")
    db = stored(tmp_path / "a.db", payload=payload)
    saved = host_saved("gpu1", address="op@10.0.0.7", settings={"gpus": 2}, key="ssh-ed25519 AAAA", facts={})
    db.write(lambda conn: append_system(conn, [saved], 1.0))
    path = written(db, tmp_path / "s.jsonl")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    other = Database.open(str(tmp_path / "b.db"))
    assert take_in(other, str(path)) == "abcd2345"
    hosts = other.read(snapshot)["hosts"]
    assert [(h["name"], h["address"], h["key"]) for h in hosts] == [("gpu1", "op@10.0.0.7", "ssh-ed25519 AAAA")]
    kept = tmp_path / "elsewhere/turnout/payloads" / payload["hash"] / "two/train.py"
    assert kept.read_text() == "print('training')\n"
    state = other.read(lambda conn: load(conn, "abcd2345"))
    assert list(state.jobs) == ["abcd2345.b.1"]


def test_a_moved_session_finds_its_job_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported in the middle and resumed with an empty database: the running job is adopted, and it ran once."""
    flag = tmp_path / "go"
    waits = f"echo once >> {tmp_path}/ran; until [ -e {flag} ]; do sleep 0.1; done"
    steps = f"  - {{id: slow, job: {{host: local, run: '{waits}'}}}}\n"
    process = begin("run", playbook(tmp_path, steps), "--json", "--db", str(tmp_path / "here.db"))
    until(process, job_runs)
    process.kill()
    process.communicate()
    out = str(tmp_path / "s.jsonl")
    assert turnout("export", "-o", out, "--db", str(tmp_path / "here.db")).returncode == 0
    process = begin("resume", "--from", out, "--json", "--db", str(tmp_path / "there.db"))
    until(process, lambda said: said.get("kind") == "session")
    flag.touch()
    told, _ = process.communicate(timeout=60)
    assert json.loads(told.splitlines()[-1])["status"] == "completed"
    assert (tmp_path / "ran").read_text() == "once\n"


def test_a_payload_that_was_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is not what its hash says does not get onto a host, nor does a file outside of the folder."""
    source = tmp_path / "payload"
    source.mkdir()
    (source / "train.py").write_text("print('training')\n")
    db = stored(tmp_path / "a.db", payload=keep_payload(source, "two"))
    exported = export.read(written(db, tmp_path / "s.jsonl"), Losses())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    (extra,) = [e for e in exported.extras if e["extra"] == "payload"]
    for change in ({"content": "cm0gLXJmCg=="}, {"path": "../../evil.py"}):
        with pytest.raises(StateError, match=r"is not what its hash says|outside of it"):
            unpack_extras(db, [{**extra, "files": [{**extra["files"][0], **change}]}])
    assert not list((tmp_path / "elsewhere").rglob("*.py"))


def test_a_redacted_session_is_not_resumed(tmp_path: Path) -> None:
    """Its hosts have other names: it can be looked at, and not be driven."""
    db = stored(tmp_path / "a.db")
    path = written(db, tmp_path / "s.jsonl", redact_hosts=True)
    other = Database.open(str(tmp_path / "b.db"))
    with pytest.raises(UsageError, match="was redacted"):
        take_in(other, str(path))
    assert bring_export(other, path, Losses())[0][0].session == "abcd2345"


def test_a_redacted_export_holds_no_secret_and_comes_back(tmp_path: Path) -> None:
    """The whole file is free of what was said, in words, commands and results, and is still a session."""
    db = stored(tmp_path / "a.db")
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    more = [
        talk.operator_said(f"my token is {secret}"),
        talk.tool_answered("c1", "t2", "Bash", [{"type": "text", "text": secret}]),
    ]
    db.write(lambda conn: append(conn, "abcd2345", more, 30.0))
    path = written(db, tmp_path / "s.jsonl", redact=True)
    assert secret not in path.read_text()
    assert json.loads(path.read_text().splitlines()[0])["redacted"] == ["secrets"]
    other = Database.open(str(tmp_path / "b.db"))
    losses = Losses()
    assert bring(other, path, losses)
    assert losses.told() == []


# Claude Code's form


def test_a_session_comes_back_from_claude_codes_form(tmp_path: Path) -> None:
    """Words, answers, calls, results, usage and the subagent survive the way there and back."""
    db = stored(tmp_path / "a.db")
    path = written(db, tmp_path / "s.jsonl", format="claude-code")
    done = Result(path)
    assert done.said() == ["go on", "I do."]
    assert unanswered(done.log()) == []
    assert done.of("tool.answered")[0]["content"] == "a.py"
    assert done.of("model.answered")[0]["usage"]["output"] == 2
    assert done.of("notice.raised")[0]["text"].count("it ended") == 1
    assert len(done.done[0].children) == 1
    assert [r for r in done.reasons() if "subagent" not in r] == []


def test_a_transcript_survives_the_way_through_ours(tmp_path: Path) -> None:
    """Imported from Claude Code and exported as it: the same talk, compaction and unknown records."""
    session = Claude()
    session.says("u1", "start")
    session.answers("a1", "Starting.", use("t1", command="x"))
    session.result("r1", "t1", "ok")
    session.add("system", "cb", subtype="compact_boundary", parentUuid=None, logicalParentUuid="r1")
    session.says("cs", "Summary: started.", isCompactSummary=True)
    session.says("u2", "go on")
    session.answers("a2", "Gone.")
    session.loose("hologram", value=[1, 2])
    first = Result(session.write(tmp_path / "s.jsonl"))
    path = tmp_path / "back.jsonl"
    given = {"redact": False, "redact_hosts": False, "redact_paths": False, "yes": False}
    export_(first.db, first.done[0].session, format="claude-code", out=str(path), **given)
    second = Result(path)
    assert second.said() == first.said()
    assert second.of("conversation.compacted") == first.of("conversation.compacted")
    assert second.of("foreign.record")[0]["raw"]["value"] == [1, 2]
    assert [m.time for m in second.log()][1:-1] == [m.time for m in first.log()][1:-1]
    assert second.losses.told() == []


def test_a_file_to_go_on_from_must_be_there(tmp_path: Path) -> None:
    """A mistyped path is said to be one, not taken for a foreign file."""
    with pytest.raises(UsageError, match="there is no file"):
        take_in(Database.open(str(tmp_path / "a.db")), str(tmp_path / "nothing.jsonl"))
