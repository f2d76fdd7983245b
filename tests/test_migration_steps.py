"""The steps of the move by themselves: the router, the client that asks all the time, comparison, install, report."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from playbooks.vllm_to_sglang.payload import ask, compare, gap, install, old, page, report, units
from playbooks.vllm_to_sglang.payload.common import StepError
from tests.hosting import free_port, oldest_python
from tests.migration_site import ROOT, Site
from tests.standin_engine import StandIn

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a step of the payload as a process; its first line says how it stands."""
    started: list[subprocess.Popen[str]] = []

    def run(step: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-m", f"playbooks.vllm_to_sglang.payload.{step}", *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(process: subprocess.Popen[str], *words: str) -> str:
    """Read the step's lines until one has one of these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if any(word in line for word in words):
            return line
    raise AssertionError("it ended first")


def get(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/models")
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def router(start: Start, tmp_path: Path, port: int, to: int) -> subprocess.Popen[str]:
    return start("router", "--port", str(port), "--to", str(to), "--state", str(tmp_path / "router.json"))


def test_a_router_waits_for_a_port_that_is_not_shared(start: Start, tmp_path: Path) -> None:
    """It stands by, and has the port as soon as its holder has let it go."""
    with StandIn("vllm") as new, socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        process = router(start, tmp_path, port, int(new.url.rpartition(":")[2]))
        assert "standing by" in until(process, "standing by", "took over")
        holder.close()
        Site.wait(lambda: json.loads((tmp_path / "router.json").read_text())["way"] == "alone")
        assert get(port)[0] == 200


def test_a_router_says_that_the_server_is_being_restarted(start: Start, tmp_path: Path) -> None:
    """While nobody answers behind it, a client gets 503 and is told to come again."""
    port = free_port()
    until(router(start, tmp_path, port, free_port()), "took over")
    status, body = get(port)
    assert status == 503
    assert "restarted" in json.loads(body)["error"]["message"]


def test_a_router_passes_streams_on_as_they_come(start: Start, tmp_path: Path) -> None:
    """A piece that the server sends is with the client before the server sends the next."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = free_port()
        until(router(start, tmp_path, port, server.getsockname()[1]), "took over")
        client = socket.create_connection(("127.0.0.1", port))
        behind, _ = server.accept()
        client.sendall(b"ask")
        assert behind.recv(3) == b"ask"
        for piece in (b"one", b"two"):
            behind.sendall(piece)
            assert client.recv(3) == piece
        behind.close()
        assert client.recv(1) == b""
        client.close()


def test_the_client_counts_what_failed_and_how_long_nobody_was_served() -> None:
    """The gap is from the last answer before a failure to the first that was asked for and answered after it."""
    account = gap.Account()
    account.answered(time.monotonic())
    assert account.as_json()["gap_s"] == 0
    account.refused("refused")
    assert account.as_json()["open"] is True
    account.answered(time.monotonic())
    told = account.as_json()
    assert (told["requests"], told["failed"], told["open"]) == (3, 1, False)
    assert told["gap_s"] >= 0
    assert told["errors"][0]["error"] == "refused"


def test_the_client_writes_its_account_when_it_is_told_to_stop(start: Start, tmp_path: Path) -> None:
    """Requests that failed are in the file, whatever happened to the server."""
    out = tmp_path / "gap.json"
    with StandIn("vllm") as server:
        process = start("gap", "--url", server.url, "--out", str(out), "--pause", "0.01")
        until(process, "asking")
    Site.wait(lambda: out.exists() and json.loads(out.read_text())["failed"] > 0)
    process.terminate()
    assert process.wait(10) == 0
    told = json.loads(out.read_text())
    assert told["open"] is True
    assert told["gap_s"] > 0


def answer(text: str, **more: Any) -> dict[str, Any]:
    """One answer, as `ask` keeps it."""
    tokens = text.split(" ")
    return {"text": text, "tokens": tokens, "logprobs": [-0.5] * len(tokens), "tool_calls": [], "reasoning": "", **more}


CALL = {"name": "get_weather", "arguments": {"city": "Paris"}}


@pytest.mark.parametrize(
    ("a", "b", "share"),
    [
        (answer("a b c d"), answer("a b c d"), 1.0),
        (answer("a b c d"), answer("a b x d"), 0.5),
        (answer("a"), answer("b"), 0.0),
        (answer(""), answer(""), 1.0),
        (answer("a b"), {"error": "HTTP 500"}, 0.0),
        (answer("a b", tokens=[]), answer("a b"), 1.0),
        (answer("a b", tokens=["Ġa", "Ġb"]), answer("a b"), 1.0),
        (answer("w " * 40 + "x"), answer("w " * 40 + "y"), 1.0),
    ],
)
def test_answers_agree_as_far_as_their_beginnings_do(a: dict[str, Any], b: dict[str, Any], share: float) -> None:
    """The share of the first sixteen tokens that are the same; near ties further on say nothing of an engine."""
    assert compare.agreement(a, b) == share


@pytest.mark.parametrize(
    ("old_tool", "new_tool", "said"),
    [
        ({"tool_calls": [CALL]}, {"tool_calls": []}, "no longer parsed"),
        ({"tool_calls": [CALL]}, {"tool_calls": [{**CALL, "arguments": "{city"}]}, "no JSON object"),
        ({"tool_calls": [CALL]}, {"tool_calls": [{**CALL, "name": "x"}]}, "another tool"),
        ({"tool_calls": []}, {"error": "HTTP 400"}, "is refused"),
        ({"error": "HTTP 400"}, {"tool_calls": []}, None),
        ({"tool_calls": [CALL]}, {"tool_calls": [CALL]}, None),
    ],
)
def test_a_changed_form_is_named(old_tool: dict[str, Any], new_tool: dict[str, Any], said: str | None) -> None:
    """What a client would trip over is told; what was refused before may be refused now."""
    plain = {"answers": [], "reasoning": answer("x")}
    found = compare.compare({**plain, "tool": old_tool}, {**plain, "tool": new_tool})["broken"]
    assert [said in line for line in found] == [True] if said else found == []


def test_reasoning_that_moved_into_the_answer_is_named() -> None:
    """In both directions: a parser that is missing, and one that was not there before."""
    with_it, without = answer("x", reasoning="because"), answer("because x")
    told = {"answers": [], "tool": {"tool_calls": []}}
    assert "no longer kept apart" in compare.forms({**told, "reasoning": with_it}, {**told, "reasoning": without})[0]
    assert "was not before" in compare.forms({**told, "reasoning": without}, {**told, "reasoning": with_it})[0]


def test_prompts_of_the_benchs_shapes_are_asked(tmp_path: Path) -> None:
    """Messages, texts and turns become conversations; a file without any is an error."""
    lines = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "no"}]},
             {"question": "b"}, {"turns": ["c", "d"]}, {"prompt": "e"}]  # fmt: skip
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [turn[0]["content"] for turn in ask.prompts(path, 0)] == ["a", "b", "c", "e"]
    path.write_text("{}\n")
    with pytest.raises(StepError, match="has no prompt"):
        ask.prompts(path, 0)


def test_an_install_looks_at_the_disk_before_it_writes(start: Start, tmp_path: Path) -> None:
    """Too little room is an error with both sizes and what to do; nothing was made."""
    process = subprocess.run(
        [sys.executable, "-m", "playbooks.vllm_to_sglang.payload.install", "--venv", str(tmp_path / "venv"),
         "--need-gib", "1e9"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 1
    assert "GiB free, and SGLang needs 1000000000.0" in process.stderr
    assert "--set venv=" in process.stderr
    assert not (tmp_path / "venv").exists()


def test_what_is_installed_is_not_installed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole environment of the wanted version is taken as it is; one without SGLang, named by hand, is refused."""
    binary = tmp_path / "venv" / "bin"
    binary.mkdir(parents=True)
    (binary / "python3").write_text("#!/bin/sh\necho 0.5.14\n")
    (binary / "python3").chmod(0o755)
    (tmp_path / "venv" / ".turnout-whole").write_text("0.5.14")
    assert install.install(_given(venv=str(tmp_path / "venv"))) == 0
    assert '"installed": false' in capsys.readouterr().out
    with pytest.raises(StepError, match="has no SGLang"):
        install.install(_given(python="/bin/false"))


def _given(**more: str) -> Any:
    base = {"version": "0.5.14", "venv": "", "wheelhouse": "", "python": "", "need_gib": 1.0}
    return argparse.Namespace(**{**base, **more})


@pytest.mark.parametrize(
    ("argv", "env", "key"),
    [
        (["vllm", "serve", "m", "--api-key", "a"], {}, "a"),
        (["vllm", "serve", "m", "--api_key=b"], {"VLLM_API_KEY": "c"}, "b"),
        (["vllm", "serve", "m"], {"VLLM_API_KEY": "c"}, "c"),
        (["vllm", "serve", "m"], {}, ""),
    ],
)
def test_a_servers_key_is_where_vllm_looks_for_it(argv: list[str], env: dict[str, str], key: str) -> None:
    """The command goes before the environment."""
    assert old.key_of(argv, env) == key


def test_units_lie_beside_the_old_one_unless_that_is_the_distributions() -> None:
    """Nothing is written below /usr or /lib."""
    assert units.folder_of("/etc/systemd/system/vllm.service", False) == Path("/etc/systemd/system")
    assert units.folder_of("/usr/lib/systemd/system/vllm.service", False) == Path("/etc/systemd/system")
    assert units.folder_of("", True) == Path("~/.config/systemd/user").expanduser()


@pytest.mark.parametrize(
    ("todos", "word"),
    [
        ({"watch": {"looks": 9}, "router": {"job": "j"}}, "switched"),
        ({"watch": {"failure": "failed"}, "router": {"job": "j"}}, "switched, not proved"),
        ({"watch": {"failure": "failed"}, "router": {"job": "j"}, "back": {"port": 8000}}, "rolled back"),
        ({"weigh": {"stay": True, "why": "it pays"}}, "stayed"),
        ({"door": {"answer": "no", "by": "operator"}}, "stopped at the door"),
        ({}, "not switched"),
    ],
)
def test_the_reports_first_word_is_how_it_ended(todos: dict[str, Any], word: str) -> None:
    """Whatever of the steps there was, the outcome is named."""
    assert report.outcome(todos)[0] == word


def test_the_steps_run_on_the_oldest_python_of_hosts(tmp_path: Path) -> None:
    """Everything that is sent to a host can be imported there, with the standard library alone."""
    (tmp_path / "vllm_to_sglang").symlink_to(ROOT / "playbooks" / "vllm_to_sglang" / "payload")
    (tmp_path / "onhost").symlink_to(ROOT / "tools" / "serving" / "onhost")
    modules = [f"{place.name}.{path.stem}" for place in tmp_path.iterdir() for path in place.glob("[a-z]*.py")]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    words = [oldest_python(), "-B", "-c", code, *modules]
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(modules) >= 15


def test_a_page_holds_nothing_that_a_browser_would_run() -> None:
    """Texts of the host are escaped in HTML, and cells of a table cannot break it in Markdown."""
    bars = page.Bars("u", [("<n>", 1.0), ("m", None)])
    blocks = ["<script>", page.Table(("a",), [("x|<i>",)]), bars, page.Code("<c>"), page.Items(["<l>"])]
    parts = [page.Part("<b>", blocks)]
    text = page.html("<t>", parts)
    for tag in ("<script>", "<i>", "<n>", "<c>", "<l>", "<t>"):
        assert tag not in text
    assert "x\\|<i>" in page.markdown("t", parts)
