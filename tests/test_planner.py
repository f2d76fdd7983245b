"""The planner: what is said and what ends is heard, and answers edit a graph that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio

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


def tool(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "input": given}


def results(body: dict[str, Any]) -> dict[str, str]:
    """The tool results of a request's last message, by call."""
    blocks = body["messages"][-1]["content"]
    return {b["tool_use_id"]: b["content"] for b in blocks if b["type"] == "tool_result"}


def test_a_quick_command_is_answered_with_its_output_and_told_of_once(tmp_path: Path) -> None:
    """`run` waits a little; its result needs no notice afterwards, and the log says that it was heard."""
    turns = [
        {"when": "who", "tools": [tool("run", command="echo '{{.Names}}' it is; id -u")]},
        {"when": "exit code 0", "say": "You are you."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("who am I?")
            await face.until(lambda: "You are you." in face.words())
            assert talk.transcript.notices == {}
            assert len(face.kinds("notice.raised")) == len(face.kinds("notice.delivered")) == 1

    server = play(turns, main)
    (told,) = results(server.requests[1]).values()
    assert "{{.Names}} it is" in told
    assert "<notice" not in last_text(server.requests[1])


def test_a_slow_command_becomes_a_job_by_itself(tmp_path: Path) -> None:
    """After `wait_s` the call is answered with a handle, and the end of the command is a notice."""
    gate = tmp_path / "gate"
    turns = [
        {"when": "go", "tools": [tool("run", command=f"until [ -e {gate} ]; do sleep 0.05; done", wait_s=0.2)]},
        {"when": "goes on as a todo", "say": "It takes longer."},
        {"when": "todo `run-1`", "say": "Now it is done."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("go")
            await face.until(lambda: "It takes longer." in face.words())
            await anyio.Path(gate).touch()
            await face.until(lambda: "Now it is done." in face.words())

    play(turns, main)


def test_what_wants_leave_waits_for_the_operator_and_nothing_else_does(tmp_path: Path) -> None:
    """A question stands before the dangerous job only; refused, the job is not run and the model hears why."""
    turns = [
        {
            "when": "clean up",
            "tools": [tool("job", run="rm -rf build", id="clean"), tool("job", run="echo hello", id="greet")],
        },
        {"when": "in_progress", "say": "Asked."},
        {"when": "todo `greet`", "say": "Greeted."},
        {"when": "not today", "say": "Refused, so not."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("clean up")
            await face.until(lambda: face.status("greet") == "completed" and face.questions)
            ((door, question),) = face.questions
            assert door.startswith("call:toolu_")
            assert "rm -rf build" in question
            assert face.status("clean") is None
            talk.answer(door, "no", reason="not today")
            await face.until(lambda: "Refused, so not." in face.words())
            assert face.status("clean") == "skipped"
            assert not any(p["todo"] == "clean" for p in face.kinds("job.submitted"))

    play(turns, main)


def test_a_refused_quick_command_is_told_in_its_result_and_leave_that_was_given_is_no_news(tmp_path: Path) -> None:
    """`run` waits for the operator too: a no is its result; a yes is told by what it lets happen, and not by itself."""
    turns = [
        {"when": "first", "tools": [tool("run", command="rm -f one")]},
        {"when": "not run: answered `no`", "say": "Not so."},
        {"when": "second", "tools": [tool("run", command="rm -f two")]},
        {"when": "exit code 0", "say": "Done so."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("no")) as (talk, face):
            talk.hear("first")
            await face.until(lambda: "Not so." in face.words())
            face._answers = "yes"
            talk.hear("second")
            await face.until(lambda: "Done so." in face.words())
            assert talk.transcript.notices == {}

    server = play(turns, main)
    assert len(server.requests) == 4


def test_a_vllm_command_is_translated_and_a_bench_asks_before_it_copies_secrets(tmp_path: Path) -> None:
    """Looking answers at once; the prompt files of a bench are copied only if the policy would read them."""
    command = "vllm serve /models/k2 --tensor-parallel-size 8 --max-model-len 4096"
    sets = {"mine": "/home/me/.ssh/id_ed25519"}
    turns = [
        {
            "when": "move",
            "tools": [tool("translate", text=command), tool("bench", url="http://127.0.0.1:9", sets=sets)],
        },
        {"when": "sglang", "say": "Translated."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("move")
            await face.until(lambda: "Translated." in face.words() and face.questions)
            assert "id_ed25519" in face.questions[0][1]
            assert face.status("bench-plan-1") is None

    server = play(turns, main)
    told = " ".join(results(server.requests[1]).values())
    assert "tp" in told


def test_the_graph_is_edited_in_one_call_and_told_exactly(tmp_path: Path) -> None:
    """Jobs, a race, a gate and its contingency in one edit; what cannot be is told beside what was done."""
    add = [
        {"id": "old", "job": {"run": "exit 3"}},
        {"id": "new", "job": {"run": "echo '{\"rate\": 7}' > $TURNOUT_OUTPUT"}},
        {"id": "either", "race": ["old", "new"]},
        {"id": "fast", "gate": "todos.either.rate >= 100", "after": ["either"]},
        {"id": "ship", "job": {"run": "echo ship"}, "after": ["fast"]},
        {"id": "look", "job": {"run": "echo look"}, "after": [{"todo": "fast", "on": "failure"}]},
    ]
    link = [{"todo": "old", "after": "look"}]
    turns = [
        {"when": "move", "tools": [tool("todo", add=add, link=link)]},
        {"when": '"op": "add"', "say": "Planned."},
        {"again": True, "say": "Heard."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("move")
            await face.until(lambda: face.status("look") == "completed")
            assert face.status("either") == "completed"
            assert face.status("fast") == "failed"
            assert face.status("ship") == "skipped"

    server = play(turns, main)
    (told,) = results(server.requests[1]).values()
    assert '"error": "these todos wait for each other' in told or "cannot be made to wait" in told


def test_the_operator_is_heard_while_the_model_speaks(tmp_path: Path) -> None:
    """Words that come during an answer are stored as queued, and are in the very next request."""
    turns = [
        {"when": "first", "say": "I am speaking slowly " * 8, "piece_s": 0.02},
        {"when": "second", "say": "Heard both."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("first")
            await face.until(lambda: any(h[0] == "text" for h in face.heard))
            talk.hear("second")
            await face.until(lambda: "Heard both." in face.words())
            assert [bool(p.get("queued")) for p in face.kinds("operator.said")] == [False, True]

    server = play(turns, main)
    assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "user"]


def test_an_interruption_ends_the_turn_and_nothing_else(tmp_path: Path) -> None:
    """Escape: the answer is given up, the job goes on, and the next word is answered."""
    gate = tmp_path / "gate"
    turns = [
        {"when": "start", "tools": [tool("job", run=f"until [ -e {gate} ]; do sleep 0.05; done", id="slow")]},
        {"when": "in_progress", "say": "talking " * 200, "piece_s": 0.05},
        {"when": "listen", "say": "Yes?"},
        {"when": "todo `slow`", "say": "Slow is done."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("start")
            await face.until(lambda: len([h for h in face.heard if h[0] == "text"]) > 2)
            talk.interrupt()
            await face.until(lambda: any(p["kind"] == "interrupted" for p in face.kinds("model.failed")))
            assert face.status("slow") == "in_progress"
            talk.hear("listen")
            await face.until(lambda: "Yes?" in face.words())
            await anyio.Path(gate).touch()
            await face.until(lambda: "Slow is done." in face.words())

    play(turns, main)


def test_an_interruption_of_tools_gives_each_its_result(tmp_path: Path) -> None:
    """The calls that were waited for are answered as interrupted; what they started goes on in the graph."""
    turns = [
        {"when": "start", "tools": [tool("run", command=f"until [ -e {tmp_path}/x ]; do sleep 0.05; done", wait_s=50)]},
        {"when": "and now", "say": "Here."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("start")
            await face.until(lambda: face.status("run-1") == "in_progress")
            talk.interrupt()
            await face.until(lambda: face.kinds("tool.answered"))
            talk.hear("and now")
            await face.until(lambda: "Here." in face.words())
            await anyio.Path(tmp_path / "x").touch()

    server = play(turns, main)
    assert "interrupted by the operator" in next(iter(results(server.requests[1]).values()))


def test_a_weak_model_is_told_the_schema_and_after_three_times_the_operator_is_asked(tmp_path: Path) -> None:
    """Broken JSON, a missing key and an unknown tool are results with what is wanted; then somebody has to look."""
    turns = [
        {"when": "try", "tools": [{"name": "job", "input": '{"run": '}]},
        {"tools": [tool("job", command="ls")]},
        {"tools": [tool("launch", run="ls")]},
        {"when": "with care", "say": "I will."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("try")
            await face.until(lambda: face.questions)
            assert face.questions[0][0] == "planner-1"
            assert len(server.requests) == 3
            talk.answer("planner-1", "with care")
            talk.hear("do it with care")
            await face.until(lambda: "I will." in face.words())

    server = play(turns, main)
    assert "is no JSON object" in next(iter(results(server.requests[1]).values()))
    wrong = next(iter(results(server.requests[2]).values()))
    assert "`run`: Field required" in wrong
    assert '"properties"' in wrong


def test_thirty_tools_at_once_are_each_answered_once(tmp_path: Path) -> None:
    """A model that calls thirty tools in one answer gets thirty results, in the next message."""
    (tmp_path / "file").write_text("content\n" * 10)
    calls = [tool("read", path=str(tmp_path / "file")) for _ in range(30)]
    turns = [{"when": "read", "tools": calls}, {"when": "80 bytes", "say": "Read."}]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server)) as (talk, face):
            talk.hear("read it all")
            await face.until(lambda: "Read." in face.words())
            assert len(face.kinds("tool.answered")) == 30

    server = play(turns, main)
    assert len(results(server.requests[1])) == 30


def test_a_result_of_two_megabytes_is_shown_head_and_tail_with_exact_counts(tmp_path: Path) -> None:
    """The model sees a bounded part, how much there is, and where the rest can be read."""
    turns = [
        {"when": "print", "tools": [tool("run", command="seq 1 300000")]},
        {"when": "exit code 0", "say": "Long."},
    ]

    async def main(server: ScriptedModel) -> None:
        async with talking(tmp_path, configured(server), Face("yes")) as (talk, face):
            talk.hear("print")
            await face.until(lambda: "Long." in face.words())
            assert face.kinds("tool.answered")[0]["whole"]["bytes"] == 1_988_895

    server = play(turns, main)
    (told,) = results(server.requests[1]).values()
    assert len(told) < 30_000
    assert "1,988,895 bytes of output" in told
    assert "\n300000\n" in told
    assert "left out" in told
