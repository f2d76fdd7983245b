"""A host of the eagle3 tests: the payload as a package, a work directory, a tiny target, and its steps as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.eagle3_helpers import save_tiny_target

PAYLOAD = Path(__file__).parent.parent / "playbooks" / "eagle3" / "payload"
SETTINGS = [
    "data.train_prompts=12", "data.eval_prompts=6", "generate.max_new_tokens=24", "extract.boundaries=[1, 2, 3]",
    "extract.shard_tokens=200", "draft.vocab_size=60", "train.steps=60", "train.checkpoint_every=8",
    "train.batch_tokens=130", "train.learning_rate=5e-3", "train.warmup_steps=5", "threads=1",
]  # fmt: skip
SILENT = ("fetch", "export", "report", "estimate", "import_drafter")


class Host:
    """Runs the steps as a host does: the payload as a package `eagle3`, one shared folder, a path for the result."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        packages = folder / "packages"
        packages.mkdir()
        (packages / "eagle3").symlink_to(PAYLOAD)
        self.environment = {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        target = save_tiny_target(folder / "tiny")
        self.settings = [*SETTINGS, f"target={target}"]

    def start(
        self, step: str, *more: str, launcher: tuple[str, ...] = (sys.executable,), shell: str = ""
    ) -> subprocess.Popen[str]:
        """The step as a process; `shell` is what bash does before it."""
        options = [part for s in (*self.settings, *more) for part in ("--set", s)]
        environment = {**self.environment, "TURNOUT_OUTPUT": str(self.work / f"{step}.output.json")}
        command = [*launcher, "-m", f"eagle3.{step}", *options]
        return subprocess.Popen(
            ["bash", "-c", f'{shell} exec "$@"', "bash", *command],
            cwd=self.work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, step: str, *more: str, launcher: tuple[str, ...] = (sys.executable,)) -> dict:
        """The step to its end; its result."""
        process = self.start(step, *more, launcher=launcher)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "::progress" in out or step in SILENT or "nothing to store" in out
        return json.loads((self.work / f"{step}.output.json").read_text())

    def fails(self, step: str, *more: str, shell: str = "") -> str:
        """What the step says when it ends with 1 by itself."""
        process = self.start(step, *more, shell=shell)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "Traceback" not in err
        return err

    def losses(self) -> list[float]:
        """The loss of each step in the training log."""
        return [json.loads(line)["loss"] for line in (self.work / "drafter" / "log.jsonl").read_text().splitlines()]
