"""Training repeats itself exactly after a kill, stops before it does harm, and the whole chain of steps runs."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from playbooks.eagle3.payload.checkpoint import latest_checkpoint, save_checkpoint  # noqa: E402
from playbooks.eagle3.payload.config import Train  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.feed import batches, epoch_batches  # noqa: E402
from playbooks.eagle3.payload.runtime import Progress  # noqa: E402
from playbooks.eagle3.payload.trainer import learning_rate, share_done  # noqa: E402
from tests.eagle3_host import Host  # noqa: E402

pytestmark = pytest.mark.train


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
    undisturbed = host.losses()
    model = load_file(host.work / "drafter" / "model" / "model.safetensors")
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
    assert host.losses() == undisturbed
    again = load_file(host.work / "drafter" / "model" / "model.safetensors")
    assert again.keys() == model.keys()
    assert all(again[name].equal(model[name]) for name in model)


@pytest.mark.slow
def test_the_whole_chain_gives_a_drafter_that_beats_the_untrained_one(host: Host) -> None:
    """From a target to a report on tiny sizes; each step again does nothing that was done."""
    first = host.run("train")
    untrained = host.run("baseline")
    trained = host.run("evaluate", "evaluate.verify=2")
    assert trained["acceptance_length"] > untrained["acceptance_length"] + 0.1
    assert trained["verified"]["equal"] == trained["verified"]["as_predicted"] == 2
    exported = Path(host.run("export")["path"])
    assert {p.name for p in exported.iterdir()} == {"config.json", "model.safetensors"}
    host.run("report")
    summary = json.loads((host.work / "report" / "summary.json").read_text())
    assert summary["acceptance_length"] == trained["acceptance_length"]
    page = (host.work / "report" / "report.md").read_text()
    assert f"**{trained['acceptance_length']:.2f} tokens a round**" in page
    for picture in ("training.png", "acceptance.png", "acceptance_steps.png", "sets.png", "spent.png"):
        assert f"({picture})" in page
        assert (host.work / "report" / picture).read_bytes().startswith(b"\x89PNG")
    whole = (host.work / "report" / "report.html").read_text()
    assert whole.count("<svg") == 5
    assert not re.search(r'(src|href)="(?!#)', whole)  # all of it is in the one file
    assert "it was not measured in this run" in whole
    again = host.run("train")
    assert again["resumed_at"] == 60
    assert 0 < again["trained_seconds"] <= first["trained_seconds"]  # and so the rate is still that of the training
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


def test_each_epoch_sees_every_sequence_once_in_batches_that_fit() -> None:
    """Epochs are seeded, differ, cover all, and no batch is larger with its padding than allowed, but for one alone."""
    lengths = [7 * n % 50 + 3 for n in range(200)]
    first, second = (epoch_batches(lengths, 100, seed=3, epoch=e) for e in (0, 1))
    for epoch in (first, second):
        assert sorted(n for batch in epoch for n in batch) == list(range(200))
        assert all(max(lengths[n] for n in batch) * len(batch) <= 100 for batch in epoch)
    assert first != second
    stream = batches(lengths, 100, seed=3)
    assert [next(stream) for _ in range(len(first) + 1)] == [*first, second[0]]
    assert epoch_batches([500, 4], 100, seed=0, epoch=0) in ([[0], [1]], [[1], [0]])


def test_little_of_a_batch_is_padding() -> None:
    """Sequences of similar length go together: of ten thousand, under a tenth of all places is padding."""
    lengths = [31 * n % 400 + 40 for n in range(10_000)]
    places = sum(max(lengths[n] for n in b) * len(b) for b in epoch_batches(lengths, 16384, seed=0, epoch=0))
    assert sum(lengths) > 0.9 * places


def test_the_learning_rate_warms_up_and_decays_to_nothing() -> None:
    """Linear over the warm-up, half of the top midway, next to nothing at the end."""
    settings = Train(steps=1000, warmup_steps=10, learning_rate=1.0)
    rates = [learning_rate(settings, s, s / 1000) for s in range(1000)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] > 0.999
    assert rates[500] == pytest.approx(0.5)
    assert rates[999] < 0.001


def test_training_ends_by_steps_or_by_seconds_whichever_is_first() -> None:
    """Both limits count, each may be left out, and having none is refused."""
    assert share_done(Train(steps=10, max_seconds=100.0), 5, 80.0) == 0.8
    assert share_done(Train(steps=10, max_seconds=0.0), 10, 1e9) == 1.0
    assert share_done(Train(steps=0, max_seconds=100.0), 10**9, 50.0) == 0.5
    with pytest.raises(StepError, match="would not end"):
        share_done(Train(steps=0, max_seconds=0.0), 0, 0.0)


def test_progress_is_printed_at_most_once_a_second_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Updates in between are silent; the last is always said."""
    now = [0.0]
    progress = Progress(4, "steps", clock=lambda: now[0])
    for done, at in ((1, 0.1), (2, 0.5), (3, 1.2), (4, 1.3)):
        now[0] = at
        progress.update(done)
    assert capsys.readouterr().out.splitlines() == [f"::progress {n}/4 steps" for n in (1, 3, 4)]
