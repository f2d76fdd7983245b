"""Drafters that others published come in as they are, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from playbooks.eagle3.payload.config import load_config  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.export import export, load_drafter, save_drafter  # noqa: E402
from playbooks.eagle3.payload.import_drafter import import_drafter  # noqa: E402
from playbooks.eagle3.payload.runtime import Workdir  # noqa: E402
from playbooks.eagle3.payload.target import read_embedding  # noqa: E402
from tests.eagle3_helpers import VOCAB, save_tiny_target, tiny_drafter, tiny_target  # noqa: E402

pytestmark = pytest.mark.train
KEPT = list(range(0, VOCAB, 2))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A drafter in bfloat16 as SGLang loads it."""
    save_drafter(tiny_drafter(tiny_target(), KEPT), tmp_path / "published", torch.bfloat16)
    return tmp_path / "published"


@pytest.fixture
def work(tmp_path: Path) -> Workdir:
    work = Workdir(tmp_path / "work")
    work.root.mkdir()
    work.target.symlink_to(save_tiny_target(tmp_path / "tiny"))
    return work


def rewrite(folder: Path, *, config=None, tensors=None) -> None:
    """Change the drafter in `folder` by functions of its settings and of its tensors."""
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(config(json.loads(path.read_text()))))
    if tensors:
        path = folder / "model.safetensors"
        save_file(tensors(load_file(path)), path)


def as_speculators(settings: dict) -> dict:
    """The same drafter's settings in the layout of speculators, where ids are boundaries."""
    inner = {k: v for k, v in settings.items() if k not in ("draft_vocab_size", "eagle_config", "target_boundaries")}
    return {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": inner,
        "draft_vocab_size": settings["draft_vocab_size"],
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": settings["target_boundaries"],
    }


def renamed(tensors: dict) -> dict:
    """SpecForge's and speculators' names, with the embedding that both keep."""
    found = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    return {**found, "embed_tokens.weight": torch.ones(VOCAB, 32)}


@pytest.mark.parametrize("layout", ["sglang", "specforge", "speculators", "eagle"])
def test_a_round_trip_loses_nothing(published: Path, work: Workdir, layout: str) -> None:
    """Whatever layout it comes in, what is exported again is the published drafter to the bit."""
    wanted = load_file(published / "model.safetensors")
    before = json.loads((published / "config.json").read_text())
    if layout != "sglang":
        rewrite(published, tensors=renamed, config=as_speculators if layout == "speculators" else None)
    if layout == "eagle":
        torch.save(load_file(published / "model.safetensors"), published / "pytorch_model.bin")
        (published / "model.safetensors").unlink()
    config = load_config("smoke", [f"draft.start={published}"])
    assert import_drafter(config, work)["boundaries"] == [1, 2, 3]
    folder = Path(export(config, work)["path"])
    again = load_file(folder / "model.safetensors")
    assert again.keys() == wanted.keys()
    assert all(again[name].equal(wanted[name]) for name in wanted)
    after = json.loads((folder / "config.json").read_text())
    for key in ("eagle_config", "draft_vocab_size", "rope_parameters", "hidden_size", "head_dim", "rms_norm_eps"):
        assert after[key] == before[key]


def test_a_drafter_of_the_whole_vocabulary_needs_no_mapping(tmp_path: Path) -> None:
    """Without `d2t` and with as many draft tokens as the target has, each draft id is a target id."""
    target = tiny_target()
    save_drafter(tiny_drafter(target, list(range(VOCAB))), tmp_path, torch.float32)
    rewrite(tmp_path, tensors=lambda t: {n: x for n, x in t.items() if n not in ("d2t", "t2d")})
    drafter = load_drafter(tmp_path, target.model.get_input_embeddings().weight.detach())
    assert drafter.kept.tolist() == list(range(VOCAB))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: {**c, "norm_before_residual": True}, "`norm_before_residual`"),
        (lambda c: {**c, "fc_norm": True}, "`fc_norm`"),
        (lambda c: {**c, "eagle_config": {}, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "at its top level"),
        (lambda c: {**c, "hidden_size": 48}, "`hidden_size` 48, and the target has 32"),
        (lambda c: {**c, "vocab_size": 96}, "`vocab_size` 96, and the target has 64"),
    ],
    ids=["residual", "norm before fc", "ids at the wrong level", "hidden size", "vocabulary"],
)
def test_what_cannot_be_represented_is_refused(published: Path, work: Workdir, change, problem: str) -> None:
    """A drafter that would be another one once it is read, or another target's, is refused by name."""
    rewrite(published, config=change)
    with pytest.raises(StepError, match=problem):
        load_drafter(published, read_embedding(work.target))


def test_weights_that_are_cut_off_are_named(published: Path, work: Workdir) -> None:
    """A file that was not copied to its end says so; nothing is written."""
    path = published / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StepError, match="do not open"):
        import_drafter(load_config("smoke", [f"draft.start={published}"]), work)
    assert not (work.drafter / "model").exists()
