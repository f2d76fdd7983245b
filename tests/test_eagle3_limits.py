"""Training from an existing drafter, keeping the best one, and what is said when memory does not suffice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from playbooks.eagle3.payload.config import Config, load_config  # noqa: E402
from playbooks.eagle3.payload.distributed import Group  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.export import load_drafter, save_drafter  # noqa: E402
from playbooks.eagle3.payload.feed import Online  # noqa: E402
from playbooks.eagle3.payload.generate import generate  # noqa: E402
from playbooks.eagle3.payload.journal import read_log  # noqa: E402
from playbooks.eagle3.payload.model import Drafter  # noqa: E402
from playbooks.eagle3.payload.runtime import Workdir, run_step  # noqa: E402
from playbooks.eagle3.payload.target import load_model, read_embedding  # noqa: E402
from playbooks.eagle3.payload.train import train  # noqa: E402
from playbooks.eagle3.payload.trainer import Trainer  # noqa: E402
from tests.eagle3_helpers import VOCAB, save_tiny_target, tiny_drafter, tiny_target  # noqa: E402
from tests.eagle3_host import SETTINGS  # noqa: E402

pytestmark = pytest.mark.train
ONLINE = "train.states=online"


def configured(work: Workdir, *more: str) -> Config:
    return load_config("smoke", [*SETTINGS, f"target={work.target}", ONLINE, *more])


@pytest.fixture
def work(tmp_path: Path) -> Workdir:
    """A work directory with the tiny target's answers."""
    work = Workdir(tmp_path / "work")
    work.root.mkdir()
    work.target.symlink_to(save_tiny_target(tmp_path / "tiny"))
    generate(configured(work), work)
    return work


def test_training_goes_on_from_a_drafter_that_was_given(work: Workdir, tmp_path: Path) -> None:
    """A warm start begins where the earlier training ended, with its vocabulary."""
    train(configured(work, "train.steps=40"), work)
    first = read_log(work.drafter / "log.jsonl")
    (work.drafter / "model").rename(tmp_path / "start")
    train(configured(work, "train.steps=5", f"draft.start={tmp_path / 'start'}", "draft.vocab_size=10"), work)
    again = read_log(work.drafter / "log.jsonl")
    assert again[0]["loss"] < 0.9 * first[0]["loss"]
    assert len(load_drafter(work.drafter / "model", read_embedding(work.target)).d2t) == 60


def test_a_start_that_reads_other_states_is_refused(work: Workdir, tmp_path: Path) -> None:
    """A drafter of other boundaries than the stored states have is not trained on."""
    save_drafter(tiny_drafter(tiny_target(), list(range(VOCAB))), tmp_path / "start", torch.float32)
    with pytest.raises(StepError, match=r"reads the boundaries \[1, 2, 3\]"):
        train(configured(work, f"draft.start={tmp_path / 'start'}", "extract.boundaries=[0, 2, 3]"), work)


def test_the_drafter_with_the_longest_acceptance_is_the_one_that_is_kept(work: Workdir) -> None:
    """After a training whose rate ruins the drafter at its end, the finished one is the best that was measured."""
    more = ("train.evaluate_every=10", "train.steps=40", "train.learning_rate=3e-2", "train.clip=100.0")
    result = train(configured(work, *more), work)
    lengths = [row["acceptance_length"] for row in read_log(work.drafter / "log.jsonl") if "acceptance_length" in row]
    assert len(lengths) == 4
    assert result["best_acceptance_length"] == max(lengths)
    best = load_file(work.drafter / "best" / "model.safetensors")
    kept = load_file(work.drafter / "model" / "model.safetensors")
    assert all(kept[name].equal(best[name]) for name in best)


def test_a_batch_that_does_not_fit_says_what_to_lower_and_to_what(tmp_path: Path) -> None:
    """Out of memory in training names half the batch in twice the passes: the same update."""

    class Hungry(Drafter):
        def unroll(self, *_):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    target = tiny_target()
    small = tiny_drafter(target, list(range(VOCAB)))
    drafter = Hungry(small.config, small.embedding, small.d2t, small.t2d)
    settings = load_config("smoke", ["train.batch_tokens=640", "train.accumulate=2"]).train
    feed = Online([_talk()], target, drafter.t2d, 64)
    head = target.model.get_output_embeddings().weight.detach()
    trainer = Trainer(settings, drafter, head, feed, ["a"], tmp_path, seed=0, fingerprint="", group=Group())
    with pytest.raises(StepError, match="does not fit the device's memory") as found:
        trainer.run()
    assert "`train.batch_tokens=320` and `train.accumulate=4`" in found.value.hint


def _talk():
    from playbooks.eagle3.payload.data import Conversation

    return Conversation("a", list(range(3, 20)), [0] * 4 + [1] * 13)


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        ("extract", "extract.batch_tokens=1024"),
        ("generate", "generate.batch_size=50"),
        ("evaluate", "nothing else runs"),
    ],
)
def test_a_step_that_does_not_fit_says_so_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str, advice: str
) -> None:
    """Each step that runs the target names its own setting; what else goes wrong keeps its traceback."""

    def hungry(config: Config, work: Workdir):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    assert run_step(step, hungry, ["--work", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "CUDA out of memory. Tried to allocate 2 GiB" in said
    assert advice in said

    def broken(config: Config, work: Workdir):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_step(step, broken, ["--work", str(tmp_path)])


def test_a_target_that_cannot_be_loaded_or_unpacked_says_what_lacks(work: Workdir) -> None:
    """A quantised checkpoint whose package is not installed names it; one that cannot be unpacked says so."""
    path = work.target / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "quantization_config": {"quant_method": "aqlm"}}))
    with pytest.raises(StepError, match="transformers does not load the target"):
        load_model(configured(work), work.target, torch.device("cpu"))
    path.write_text(json.dumps({**settings, "quantization_config": {"quant_method": "unheard-of"}}))
    with pytest.raises(StepError, match="cannot unpack a checkpoint that is quantised by `unheard-of`"):
        load_model(configured(work, "dequantize=true"), work.target, torch.device("cpu"))
