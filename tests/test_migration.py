"""The move from vLLM to SGLang as a whole, through `turnout run`, with stand-ins for both engines on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosting import free_port
from tests.migration_site import ROOT, Load, Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as made:
        yield made


def test_a_switch_under_load_loses_no_request_and_can_be_taken_back(site: Site) -> None:
    """With room for both, users notice nothing: not of the switch, and not of the way back."""
    old = site.vllm()
    with Load(site.port) as users:
        told = site.move("--yes", drafter=str(site.folder / "own"), last_try="yes")
        assert told["status"] == "completed", told
        assert site.serves() == "sglang"
        assert old.wait(10) == 0
        before_back = users.served
        assert '"router_released": true' in site.back()
        assert site.serves() == "vllm"
        assert users.served > before_back > 100
    assert users.failures == []
    todos = told["todos"]
    assert todos["choose"]["result"]["name"] == "own"
    assert todos["bench@own"]["result"]["multiplier"] > 1
    assert todos["retire"]["result"]["was_running"] is True
    assert site.serves(site.new_port) is None
    page = Path(told["report"]).read_text()
    for part in ("Outcome: switched", "Gap in service", "0 failed", "SGLang, own drafter", "The way back"):
        assert part in page


def test_a_key_goes_along_and_is_written_nowhere(site: Site) -> None:
    """A server that wants a key is replaced by one that wants it too, and the key is in no log and no database."""
    site.key = "sk-a-very-secret-thing"
    site.vllm()
    told = site.move("--yes")
    assert told["status"] == "completed", told
    assert site.serves() == "sglang"
    assert any(site.key in p.cmdline() for p in site.standins())
    kept = [*site.folder.glob("turnout.db*"), *site.root.glob("jobs/*/*"), *site.root.glob("work/*/*")]
    assert [path for path in kept if path.is_file() and site.key.encode() in path.read_bytes()] == []
    assert '"router_released": true' in site.back()


def test_a_router_of_the_operators_own_is_switched_by_a_command(site: Site) -> None:
    """Users ask at its address, before, while and after it is pointed to SGLang, and back to vLLM."""
    site.vllm()
    state, front = site.folder / "front.json", free_port()
    words = ["--port", str(front), "--to", str(site.port), "--state", str(state)]
    router = subprocess.Popen(
        [sys.executable, "-m", "playbooks.vllm_to_sglang.payload.router", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    site.processes.append(router)
    site.wait(lambda: site.serves(front))
    point = "echo '{\"to\": '$%s'}' > " + f"{state} && kill -HUP {router.pid}"
    with Load(front) as users:
        told = site.move(
            "--yes", users_url=f"http://127.0.0.1:{front}", switch_command=point % "NEW_PORT",
            back_command=point % "OLD_PORT",
        )  # fmt: skip
        assert told["status"] == "completed", told
        assert site.serves(front) == "sglang"
        assert site.serves() is None
        site.back()
        assert site.serves(front) == "vllm"
    assert users.failures == []


def test_no_at_the_door_leaves_everything_as_it_was(site: Site) -> None:
    """Without a yes nothing is started, stopped or asked for; the report says who said no."""
    old = site.vllm()
    told = site.move()
    assert (told["status"], told["code"]) == ("failed", 1)
    assert told["todos"]["door"]["result"]["answer"] == "no"
    assert old.poll() is None
    assert site.serves() == "vllm"
    assert [" ".join(p.cmdline()) for p in site.standins() if "sglang.launch" in " ".join(p.cmdline())] == []
    assert told["todos"]["report"]["result"]["outcome"] == "stopped at the door"


def test_vllm_stays_when_its_speculation_pays(site: Site) -> None:
    """If the evidence speaks for vLLM there is no door: the session completes and changes nothing."""
    old = site.vllm()
    told = site.move("--yes", stay_length=1.1, stay_multiplier=0.01, last_try="yes")
    assert told["status"] == "completed"
    assert told["todos"]["door"]["status"] == "skipped"
    assert told["todos"]["report"]["result"]["outcome"] == "stayed"
    assert old.poll() is None


def test_a_killed_run_goes_on_where_it_was(site: Site) -> None:
    """After kill -9 in the middle `turnout resume` finishes it; nothing is started twice."""
    site.vllm()
    words = [sys.executable, "-m", "agent", *site.arguments("--yes", "--json", drafter=str(site.folder / "own"))]
    run = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    assert run.stdout is not None
    for line in run.stdout:
        said = json.loads(line)
        if said["kind"] == "job.state" and "serve_own" in said["id"]:
            break
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    told = site.turnout("resume", "--yes", "--json")
    assert told["status"] == "completed", told
    assert site.serves() == "sglang"
    started = [folder.name for folder in (site.root / "jobs").iterdir()]
    assert all(name.endswith(".1") for name in started), started


def test_without_room_the_gap_is_measured(site: Site) -> None:
    """One after the other: vLLM ends first, SGLang takes its port, and the report tells how long nobody was served."""
    old = site.vllm()
    told = site.move("--yes", mode="stop-start")
    assert told["status"] == "completed", told
    assert old.wait(10) == 0
    assert site.serves() == "sglang"
    gap = json.loads((Path(told["report"]).parent / "summary.json").read_text())["gap"]
    assert gap["failed"] > 0
    assert gap["gap_s"] > 0.1
    assert gap["open"] is False


def test_a_dry_run_prints_commands_and_starts_nothing(site: Site) -> None:
    """Every command with what is known before it runs."""
    words = [sys.executable, "-m", "agent", *site.arguments("--dry-run", drafter="/drafters/mine")]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for part in ("vllm_to_sglang.install --version 0.5.14", "vllm_to_sglang.router --port", "/drafters/mine"):
        assert part in told
    assert not (site.root / "jobs").exists()


def test_the_way_back_is_a_playbook_too(site: Site) -> None:
    """`turnout run back-to-vllm` does what the script does, and a move that was done is not done again."""
    site.vllm()
    assert site.move("--yes")["status"] == "completed"
    again = site.move("--yes")
    assert "the move was done" in again["todos"]["find"]["reason"]
    told = site.turnout("run", "back-to-vllm", "--set", f"port={site.port}", "--yes", "--json")
    assert told["status"] == "completed", told
    assert told["todos"]["back"]["result"]["started"] is True
    assert site.serves() == "vllm"
