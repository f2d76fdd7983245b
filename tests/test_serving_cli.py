"""What the commands of serving say: the doctor's words and exit codes, and the tables of bench and search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent import cli_serving
from agent.cli_frame import guard
from tests import serving_folders as made
from tests.standin_engine import StandIn

ROOT = Path(__file__).parent.parent
NOTHING = {"target": "", "prediction": "", "measured": [], "reference": "", "captured": "", "json": False}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """A drafter without a fault, and its target."""
    own = made.write_folder(tmp_path / "drafter", made.drafter_config(), made.drafter_tensors())
    weights = {"model.embed_tokens.weight": made.matrix(made.VOCABULARY, made.SIZE)}
    return str(own), str(made.write_folder(tmp_path / "target", made.target_config(), weights))


def doctor(folder: str | None, **given: Any) -> int:
    return guard(lambda: cli_serving.doctor(folder, **{**NOTHING, **given}), json=bool(given.get("json")))


def test_a_good_folder_is_said_to_be_good(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """What each engine will feed the drafter is told, and the exit code is 0."""
    assert doctor(folders[0], target=folders[1]) == 0
    told = capsys.readouterr().out
    assert "boundaries [2, 6, 9]" in told
    assert "nothing found" in told


def test_a_fault_ends_with_1_and_its_remedy(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The finding is told with its code, the engines and what to do; as JSON it has the same parts."""
    config = made.drafter_config() | {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}
    (Path(folders[0]) / "config.json").write_text(json.dumps(config))
    assert doctor(folders[0], target=folders[1]) == 1
    told = capsys.readouterr().out
    assert "aux-ids-level; sglang" in told
    assert "[1, 5, 8]" in told
    assert doctor(folders[0], target=folders[1], json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in found["findings"]] == ["aux-ids-level"]
    assert found["engines"]["boundaries"]["vllm"] == [2, 6, 9]


def test_a_verdict_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a prediction and a measurement the verdict, its evidence and the next step are the first lines."""
    (tmp_path / "p.json").write_text('{"histogram": [200, 100, 700]}')
    (tmp_path / "m.json").write_text('{"histogram": [980, 15, 5]}')
    assert doctor(None, prediction=str(tmp_path / "p.json"), measured=[str(tmp_path / "m.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1)[1] == "all: engine integration broken"
    assert lines[-1].startswith("next")


def test_two_engines_stand_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a measurement of each engine, the first lines hold prediction, SGLang and vLLM beside each other."""
    (tmp_path / "p.json").write_text('{"histogram": [200, 100, 700]}')
    for name, counts in (("sglang", [210, 100, 690]), ("vllm", [980, 15, 5])):
        (tmp_path / f"{name}.json").write_text(json.dumps(measured_by(name, counts)))
    paths = [str(tmp_path / f"{name}.json") for name in ("sglang", "vllm")]
    assert doctor(None, prediction=str(tmp_path / "p.json"), measured=paths) == 1
    head, row, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["set", "predicted", "sglang", "vllm"]
    assert row == "mine  2.50       2.48 healthy  1.02 engine integration broken"
    assert "mine in sglang: healthy" in first


def measured_by(engine: str, histogram: list[int]) -> dict[str, Any]:
    """A result of the bench, as far as the doctor reads it."""
    one = {"set": "mine", "temperature": 0.0, "concurrency": 1, "degenerate": 0, "prompts": 9, "like_reference": None,
           "acceptance": {"histogram": histogram, "shape": "chain"}}  # fmt: skip
    told = {"name": engine, "speculation": None, "arguments": {}}
    return {"passes": [one], "engine": told, "sets": {"mine": {"template_agrees": None}}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "nothing to look at"),
        ({"prediction": "p.json"}, "half of a pair"),
        ({"captured": "c"}, "half of a pair"),
        ({"reference": "r", "captured": "c"}, "which boundaries"),
    ],
)
def test_what_is_missing_is_said(given: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error, with exit code 2 and what to give."""
    assert doctor(None, **given) == 2
    assert said in capsys.readouterr().err


def test_a_bench_is_a_session_that_ends_with_a_table(tmp_path: Path) -> None:
    """`turnout bench` runs its playbook on a host and prints the figures; the whole result is its report."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with StandIn("sglang", accept=[0.8, 0.8]) as server:
        words = ["bench", "--url", server.url, "--set", f"mine={tmp_path / 'p.jsonl'}", "--yes"]
        done = subprocess.run([sys.executable, "-m", "agent", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "report: " in done.stdout
    head, row = done.stdout.splitlines()[-2:]
    assert head.split()[0] == "set"
    assert row.split()[0] == "mine"


def test_a_bench_without_a_server_fails_and_is_no_bug(tmp_path: Path) -> None:
    """The measurement that did not come about has no table; a file that is not there is said before anything runs."""
    prompts = tmp_path / "p.jsonl"
    words = [sys.executable, "-m", "agent", "bench", "--url", "http://127.0.0.1:9", "--set", f"mine={prompts}", "--yes"]
    missing = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (missing.returncode, f"there is no file `{prompts}`" in missing.stderr) == (2, True)
    prompts.write_text('{"prompt": ""}\n{not json\n')
    failed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 1, failed.stderr
    assert "measure" in failed.stdout


def test_a_search_is_told_setting_by_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Each setting with what it gave or why it was left out, then the flags to use."""
    trial = {"setting": "3-1-4", "multiplier": 1.5, "prompts": 32, "predicted": None, "left_out": None}
    skipped = {"setting": "1-1-2", "multiplier": None, "prompts": 0, "predicted": 1.1, "left_out": "predicted 1.10"}
    cli_serving.tell_tuning({
        "trials": [trial, skipped], "failed": {"7-1-8": "out of memory"}, "by_set": {"a": "--x", "b": ""},
        "flags": "--speculative-num-steps 3", "multiplier": 1.5,
    })  # fmt: skip
    told = capsys.readouterr().out
    for line in ("3-1-4    1.50x over 32 prompts", "1-1-2    not started, predicted 1.10x", "out of memory",
                 "best for b: no speculation", "best overall: --speculative-num-steps 3 (1.50x)"):  # fmt: skip
        assert line in told
