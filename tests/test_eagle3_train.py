"""Training repeats itself exactly after a kill, stops before it does harm, and the whole chain of steps runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload.checkpoint import latest_checkpoint, save_checkpoint  # noqa: E402
from playbooks.eagle3.payload.config import Train  # noqa: E402
from playbooks.eagle3.payload.runtime import Progress  # noqa: E402
from playbooks.eagle3.payload.train import batch_indices, learning_rate  # noqa: E402
from tests.eagle3_helpers import save_tiny_target  # noqa: E402

pytestmark = pytest.mark.train
PAYLOAD = Path(__file__).parent.parent / "playbooks" / "eagle3" / "payload"
SETTINGS = [
    "data.train_prompts=12", "data.eval_prompts=6", "generate.max_new_tokens=24", "extract.boundaries=[1, 2, 3]",
    "extract.shard_tokens=200", "draft.vocab_size=60", "train.steps=60", "train.checkpoint_every=8",
    "train.batch_size=3", "train.learning_rate=5e-3", "train.warmup_steps=5", "threads=1",
]  # fmt: skip


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

    def start(self, step: str, *more: str) -> subprocess.Popen[str]:
        options = [part for s in (*self.settings, *more) for part in ("--set", s)]
        environment = {**self.environment, "TURNOUT_OUTPUT": str(self.work / f"{step}.output.json")}
        return subprocess.Popen(
            [sys.executable, "-m", f"eagle3.{step}", *options],
            cwd=self.work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, step: str, *more: str) -> dict:
        process = self.start(step, *more)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "::progress" in out or step in ("fetch", "export", "report")
        return json.loads((self.work / f"{step}.output.json").read_text())


def losses(host: Host) -> list[float]:
    return [json.loads(line)["loss"] for line in (host.work / "drafter" / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host on which everything up to the hidden states is there."""
    host = Host(tmp_path_factory.mktemp("host"))
    for step in ("fetch", "generate", "extract"):
        host.run(step)
    return host


@pytest.mark.slow
def test_a_killed_training_repeats_the_undisturbed_one(host: Host) -> None:
    """After SIGKILL between two checkpoints, the run goes on from the older and logs the very same losses."""
    host.run("train")
    undisturbed = losses(host)
    model = (host.work / "drafter" / "model" / "model.safetensors").read_bytes()
    (host.work / "drafter").rename(host.work / "drafter.undisturbed")
    process = host.start("train")
    for line in process.stdout:
        if line.startswith("step 30 "):
            process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    process.stderr.close()
    result = host.run("train")
    assert 8 <= result["resumed_at"] < 60
    assert losses(host) == undisturbed
    assert (host.work / "drafter" / "model" / "model.safetensors").read_bytes() == model


@pytest.mark.slow
def test_the_whole_chain_gives_a_drafter_that_beats_the_untrained_one(host: Host) -> None:
    """From a target to a report on tiny sizes; each step again does nothing that was done."""
    host.run("train")
    untrained = host.run("baseline")
    trained = host.run("evaluate")
    assert trained["acceptance_length"] > untrained["acceptance_length"] + 0.1
    exported = Path(host.run("export")["path"])
    assert {p.name for p in exported.iterdir()} == {"config.json", "model.safetensors"}
    host.run("report")
    summary = json.loads((host.work / "report" / "summary.json").read_text())
    assert summary["acceptance_length"] == trained["acceptance_length"]
    page = (host.work / "report" / "report.md").read_text()
    assert f"**{trained['acceptance_length']:.2f} tokens a round**" in page
    for picture in ("training.png", "acceptance.png"):
        assert f"({picture})" in page
        assert (host.work / "report" / picture).read_bytes().startswith(b"\x89PNG")
    assert host.run("train")["resumed_at"] == 60
    assert host.run("evaluate")["histogram"] == trained["histogram"]


@pytest.mark.slow
def test_a_killed_generation_keeps_what_was_answered(host: Host) -> None:
    """A torn answers file gives the same file again, with the whole lines taken over."""
    path = host.work / "answers.jsonl"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    kept = whole[: len(whole) // 2].count("\n")
    process = host.start("generate")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads((host.work / "generate.output.json").read_text())["kept_from_before"] == kept
    assert path.read_text() == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "more", "seen"),
    [
        ("evaluate", ("target=other",), "no drafter in"),
        ("extract", ("extract.boundaries=[1, 2, 9]",), "do not fit a target of 4 layers"),
        ("train", ("train.lr=1",), "no setting `train.lr`"),
        pytest.param(
            "baseline", ("device=cuda",), "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here"),
        ),
    ],
)  # fmt: skip
def test_a_step_that_cannot_work_says_why_and_shows_no_traceback(
    host: Host, step: str, more: tuple[str, ...], seen: str, request: pytest.FixtureRequest
) -> None:
    """Missing input, an impossible setting and a missing device end in exit code 1 and one message with a hint."""
    drafter = host.work / "drafter"
    if drafter.exists():
        drafter.rename(host.work / f"drafter.before.{request.node.name}")
    process = host.start(step, *more)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert seen in err
    assert "hint: " in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_with_the_last_good_state(host: Host) -> None:
    """A learning rate that explodes ends the run; no checkpoint holds a weight that is no number."""
    process = host.start("train", "train.learning_rate=1e30", "train.clip=1e30", "train.checkpoint_every=1")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the last good state is" in err
    for path in (host.work / "drafter" / "checkpoints").glob("step-*.pt"):
        weights = torch.load(path, weights_only=True)["model"]
        assert all(w.isfinite().all() for w in weights.values() if w.is_floating_point())


def test_a_checkpoint_of_another_run_and_a_torn_one_are_passed_over(tmp_path: Path) -> None:
    """The newest whole checkpoint of this very run is taken, and only two are kept."""
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"fingerprint": "mine", "model": {"w": torch.ones(1) * step}})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002.pt", "step-00000003.pt"]
    (tmp_path / "step-00000003.pt").write_bytes(b"PK\x03\x04torn")
    assert latest_checkpoint(tmp_path, "mine")["step"] == 2
    assert latest_checkpoint(tmp_path, "other") is None


def test_each_epoch_sees_every_sequence_once() -> None:
    """Batches run through seeded permutations, across the seam of two epochs, and need no memory of earlier steps."""
    seen = [n for step in range(5) for n in batch_indices(10, 4, step, seed=3)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    assert batch_indices(10, 4, 2, seed=3) == seen[8:12]


def test_the_learning_rate_warms_up_and_decays_to_nothing() -> None:
    """Linear to the top over the warm-up, half of it midway through the cosine, next to nothing at the end."""
    settings = Train(steps=110, warmup_steps=10, learning_rate=1.0)
    assert [learning_rate(settings, s) for s in (0, 4, 9, 10)] == [0.1, 0.5, 1.0, 1.0]
    assert learning_rate(settings, 60) == pytest.approx(0.5)
    assert learning_rate(settings, 109) < 0.001


def test_progress_is_printed_at_most_once_a_second_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Updates in between are silent; the last is always said."""
    now = [0.0]
    progress = Progress(4, "steps", clock=lambda: now[0])
    for done, at in ((1, 0.1), (2, 0.5), (3, 1.2), (4, 1.3)):
        now[0] = at
        progress.update(done)
    assert capsys.readouterr().out.splitlines() == [f"::progress {n}/4 steps" for n in (1, 3, 4)]
