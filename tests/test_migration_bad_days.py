"""Bad days of the move from vLLM to SGLang: whatever goes wrong, users are served, and the operator is told what."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.migration_site import Load, Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as made:
        yield made


def test_a_server_in_the_way_is_named_before_anything_is_started(site: Site) -> None:
    """Somebody else on SGLang's port, who answers `/health`, is not taken for SGLang."""
    site.vllm()
    other = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(site.new_port), "--bind", "127.0.0.1"],
        cwd=site.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    site.processes.append(other)
    site.wait(lambda: site.serves(site.new_port))
    told = site.move("--yes")
    assert told["status"] == "failed"
    reason = told["todos"]["plan@base"]["reason"]
    assert f"port {site.new_port} of `local` is taken by {other.pid}" in reason
    assert "give another with `new_port`" in reason
    assert site.serves() == "vllm"


def test_out_of_memory_lowers_what_the_log_says_once(site: Site) -> None:
    """The second start has the one change that the log asked for, and is the one that takes over."""
    site.vllm()
    told = site.move("--yes", faults={"STANDIN_FRACTION": "0.66"})
    assert told["status"] == "completed", told
    assert told["todos"]["serve@base"]["status"] == "failed"
    assert told["todos"]["adjust@base"]["result"]["changed"] == "--mem-fraction-static from 0.7 to 0.65"
    assert site.serves() == "sglang"


def test_out_of_memory_twice_asks_and_takes_no_for_an_answer(site: Site) -> None:
    """A server that does not start even so is put to the operator; vLLM serves on."""
    old = site.vllm()
    told = site.move("--yes", faults={"STANDIN_FRACTION": "0.1"})
    assert told["todos"]["again@base"]["status"] == "failed"
    assert told["todos"]["without@base"]["status"] == "completed"
    assert told["status"] == "failed"
    assert "no candidate can take over" in told["todos"]["choose"]["reason"]
    assert old.poll() is None


def test_a_drafter_of_another_size_is_left_out(site: Site) -> None:
    """What a drafter's start says is told, and after a yes the others go on; the base model takes over."""
    site.vllm()
    told = site.move("--yes", drafter=str(site.folder / "own"), faults={"STANDIN_SIZE": "/own"})
    assert told["status"] == "completed", told
    assert told["todos"]["adjust@own"]["status"] == "failed"
    assert told["todos"]["without@own"]["result"]["answer"] == "yes"
    assert told["todos"]["choose"]["result"]["name"] == "base"
    assert site.serves() == "sglang"


@pytest.mark.parametrize(
    ("fault", "why"), [("STANDIN_GARBAGE", "agree by"), ("STANDIN_DEAF", "a tool call is no longer parsed")]
)
def test_a_server_that_answers_otherwise_does_not_take_over(site: Site, fault: str, why: str) -> None:
    """Garbage, and tool calls that come as text, are found before users see them."""
    old = site.vllm()
    told = site.move("--yes", faults={fault: "1"})
    assert told["status"] == "failed"
    assert why in told["todos"]["choose"]["reason"]
    assert old.poll() is None
    assert site.serves() == "vllm"


def test_a_stopped_vllm_is_brought_back_when_nothing_can_take_over(site: Site) -> None:
    """If vLLM was stopped for nothing, it is started again as it was."""
    site.vllm()
    told = site.move("--yes", mode="stop-start", faults={"STANDIN_GARBAGE": "1"})
    assert told["status"] == "failed"
    assert told["todos"]["back"]["result"]["started"] is True
    assert site.serves() == "vllm"
    assert told["todos"]["report"]["result"]["outcome"] == "rolled back"


def test_a_server_that_dies_while_it_is_watched_is_replaced_by_the_old_one(site: Site) -> None:
    """A watchdog's end of SGLang after the switch brings vLLM back by itself."""
    site.vllm()
    told = site.move("--yes", faults={"STANDIN_DIES": "60"}, watch=60)
    assert told["todos"]["watch"]["status"] == "failed", told
    assert told["todos"]["back"]["status"] == "completed"
    assert site.serves() == "vllm"


def test_a_server_that_somebody_starts_again_is_told_with_who(site: Site) -> None:
    """A loop that restarts vLLM behind our back is found at once, with its parent; users are served all the same."""
    script = site.folder / "loop"
    model = site.folder / "model"
    command = f"{sys.executable} -m vllm.entrypoints.openai.api_server"
    script.write_text(f"while true; do {command} --model {model} --served-model-name k2 --port {site.port}; done\n")
    site.vllm(command=["sh", str(script)])
    with Load(site.port) as users:
        told = site.move("--yes")
        assert told["status"] == "failed"
        reason = told["todos"]["retire"]["reason"]
        assert "came back as process" in reason
        assert "sh " in reason
        site.processes[0].kill()
        assert site.serves()  # the one that came back may have the port as well: both serve
    assert users.failures == []
