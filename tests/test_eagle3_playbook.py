"""The playbook as the operator sees it before a run: commands, sizes and times of every preset."""

from __future__ import annotations

import json

import pytest

from tests.cli_helpers import turnout


def dry_run(*argv: str) -> dict:
    done = turnout("run", "eagle3", *argv, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def todo(told: dict, name: str) -> dict:
    return next(t for t in told["todos"] if t["id"] == name)


def test_the_largest_preset_tells_every_command_and_what_it_takes() -> None:
    """`kimi-k2.5` cannot be run here: its dry run says the servers' and the trainer's commands, disk and time."""
    told = dry_run("--set", "preset=kimi-k2.5")
    assert "sglang.launch_server --model-path target" in todo(told, "server@sglang")["body"]["run"]
    assert "--tp-size 8" in todo(told, "server@sglang")["body"]["run"]
    assert "torch.distributed.run --standalone --nproc-per-node 8 -m eagle3.train" in todo(told, "train")["body"]["run"]
    assert todo(told, "train")["body"]["gpus"] == 8
    estimate = told["estimate"]
    assert "1.03 trillion weights (31.5 billion for a token), 595 GB" in estimate
    assert "57,353 bytes a token" in estimate  # 8 bytes of each of 7168 hidden values, ids and mask
    extract = next(line for line in estimate.splitlines() if line.startswith("extract"))
    assert "900 GB" in extract
    assert "warning: 1.5 TB are needed on disk" in estimate


def test_the_small_presets_say_what_they_take() -> None:
    """Online training stores no states, and the smoke preset fits a laptop."""
    assert "online: nothing is stored" in dry_run("--set", "preset=h200-smollm2")["estimate"]
    assert "warning" not in dry_run()["estimate"]


def test_settings_reach_every_step() -> None:
    """What the operator sets is part of each command of the payload."""
    told = dry_run("--set", "target=/models/my model", "--set", "train_steps=7", "--set", "eval_sets=gsm=/p/g.jsonl")
    for name in ("fetch", "extract", "train", "evaluate", "export", "report"):
        run = todo(told, name)["body"]["run"]
        assert "--set target='/models/my model' --set train.steps=7" in run
        assert """--set evaluate.prompts='["gsm=/p/g.jsonl"]'""" in run


@pytest.mark.parametrize("engine, sign", [("sglang", "/health_generate"), ("vllm", "/health")])
def test_the_server_is_the_one_that_was_chosen(engine: str, sign: str) -> None:
    """The engine that answers and the one that is measured are chosen apart, each with its own sign of readiness."""
    told = dry_run("--set", "preset=h200-smollm2", "--set", f"measure={engine}")
    assert todo(told, f"drafted@{engine}")["body"]["ready"]["http"].endswith(sign)
    assert ("EAGLE3" in todo(told, f"drafted@{engine}")["body"]["run"]) == (engine == "sglang")
    assert "sglang.launch_server" in todo(told, "server@sglang")["body"]["run"]


def test_steps_that_the_settings_make_needless_are_not_there() -> None:
    """Without an engine there is no server to start or to stop, and without measuring nothing is served."""
    small = {t["id"].partition("@")[0] for t in dry_run()["todos"]}
    assert small == {
        "estimate", "fetch", "answer", "extract", "train", "baseline", "evaluate", "export", "learned", "report",
    }  # fmt: skip
    large = {
        t["id"].partition("@")[0] for t in dry_run("--set", "preset=h200-smollm2", "--set", "measure=vllm")["todos"]
    }
    assert {"server", "compose", "generate", "server_off", "plain_bench", "drafted_bench", "verdict"} < large
    assert "answer" not in large
