"""Data parallel training is the same training: two processes learn what one does from the same batches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tests.eagle3_host import Host  # noqa: E402

pytestmark = [pytest.mark.train, pytest.mark.slow]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", "--master-port")
SHORT = ("train.steps=12", "train.evaluate_every=6", "train.checkpoint_every=6")


def free_port() -> str:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.mark.parametrize("states", ["stored", "online"])
def test_two_processes_learn_what_one_does_with_twice_the_passes(tmp_path: Path, states: str) -> None:
    """Losses and weights agree with a single process that accumulates; one process alone writes the files."""
    host, more = Host(tmp_path), f"train.states={states}"
    for step in ("fetch", "generate", "extract"):
        host.run(step, more)
    host.run("train", *SHORT, "train.accumulate=2", more)
    alone, one = host.losses(), load_file(host.work / "drafter" / "model" / "model.safetensors")
    (host.work / "drafter").rename(host.work / "drafter.alone")
    result = host.run("train", *SHORT, more, launcher=(*TORCHRUN, free_port()))
    assert host.losses() == pytest.approx(alone, rel=1e-4)
    two = load_file(host.work / "drafter" / "model" / "model.safetensors")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=2e-2, atol=2e-3)
    assert result["steps"] == 12
    rows = (host.work / "drafter" / "log.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(1, 13))
    again = host.run("train", *SHORT, more, launcher=(*TORCHRUN, free_port()))
    assert again["resumed_at"] == 12
