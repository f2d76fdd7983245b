"""The drafter doctor's look at a folder: every planted fault is named, and a folder without one is left in peace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state.errors import UsageError
from tests import serving_folders as made
from tools.serving.doctor_folder import examine, outcome
from tools.serving.doctor_mapping import judge_offsets
from tools.serving.doctor_weights import header, tensors

IDS = "eagle_aux_hidden_state_layer_ids"
Change = Callable[[dict[str, Any], dict[str, Any]], Any]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    weights = {"model.embed_tokens.weight": made.matrix(made.VOCABULARY, made.SIZE)}
    return made.write_folder(tmp_path / "target", made.target_config(), weights)


def drafter(tmp_path: Path, change: Change | None = None) -> Path:
    config, weights = made.drafter_config(), made.drafter_tensors()
    if change is not None:
        change(config, weights)
    return made.write_folder(tmp_path / "drafter", config, weights)


def codes(folder: Path, target: Path | None, level: str | None = None) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.code, one.engines) for one in examine(folder, target) if level in (None, one.level)]


def test_a_whole_drafter_has_no_finding(tmp_path: Path, target: Path) -> None:
    """What both engines read as it was trained gives no word."""
    assert examine(drafter(tmp_path), target) == []
    assert examine(drafter(tmp_path)) == []


BOTH, SGLANG, VLLM = ("sglang", "vllm"), ("sglang",), ("vllm",)


def ids(nested: list[int] | None = None, top: list[int] | None = None) -> Change:
    def change(config: dict[str, Any], _: dict[str, Any]) -> None:
        if nested is not None:
            config["eagle_config"] = {IDS: nested, "use_aux_hidden_state": True}
        if top is not None:
            config[IDS] = top

    return change


def drop(*names: str) -> Change:
    return lambda _, weights: [weights.pop(name) for name in names]


def put(**values: Any) -> Change:
    return lambda config, _: config.update(values)


def store(name: str, tensor: Any) -> Change:
    return lambda _, weights: weights.update({name: tensor})


FAULTS: dict[str, tuple[Change, str, tuple[str, ...]]] = {
    "E02 ids that are boundaries": (ids(nested=[2, 6, 9]), "aux-convention", SGLANG),
    "E04 a norm before fc that nobody announces": (store("fc_norm.0.weight", made.vector(8)), "fc-norm", BOTH),
    "E04 older names of it": (store("aux_norm_low.weight", made.vector(8)), "fc-norm", BOTH),
    "E04 the norm of another trainer": (store("input_norm.weight", made.vector(24)), "norm-before-fc", SGLANG),
    "E04 a setting that SGLang skips": (put(norm_before_fc=True), "norm-before-fc", SGLANG),
    "a residual of another kind": (put(norm_before_residual=True), "norm-before-residual", SGLANG),
    "E06 no mapping": (drop("d2t"), "d2t-missing", BOTH),
    "E08 neither buffer saved": (drop("d2t", "t2d"), "d2t-missing", BOTH),
    "target ids for offsets": (store("d2t", ("I64", [6], made.KEPT)), "d2t-absolute", BOTH),
    "a mapping of another size": (store("d2t", ("I64", [5], [0] * 5)), "d2t-shape", BOTH),
    "a mapping of other tokens": (store("d2t", ("I64", [6], [0, 0, 0, 0, 0, 0])), "d2t-contradicts", BOTH),
    "E14 a random embedding": (
        store("embed_tokens.weight", made.matrix(made.VOCABULARY, made.SIZE, seed=5)), "embedding-differs", VLLM,
    ),
    "E14 an embedding of another size": (store("embed_tokens.weight", made.matrix(30, 8)), "embedding-shape", BOTH),
    "E16 no rotary settings": (lambda config, _: config.pop("rope_parameters"), "rope", BOTH),
    "E20 ids at the top level": (ids(top=[2, 6, 9]), "aux-ids-level", SGLANG),
    "a head tied to the embedding": (put(tie_word_embeddings=True), "tied", SGLANG),
    "no draft vocabulary": (lambda config, _: config.pop("draft_vocab_size"), "draft-vocab-size", BOTH),
    "a head of the whole vocabulary": (store("lm_head.weight", made.matrix(40, 8)), "head-shape", BOTH),
    "no head": (drop("lm_head.weight"), "head-missing", BOTH),
    "too short a context": (put(max_position_embeddings=2048), "context", BOTH),
    "no context": (lambda config, _: config.pop("max_position_embeddings"), "context", BOTH),
    "another target": (put(vocab_size=50), "vocab-size", BOTH),
    "another hidden size": (put(target_hidden_size=16), "hidden-size", BOTH),
    "a missing tensor": (drop("midlayer.mlp.up_proj.weight"), "tensors-missing", BOTH),
    "a tensor of another shape": (
        store("midlayer.self_attn.q_proj.weight", made.matrix(8, 8)), "tensor-shape", BOTH,
    ),
    "fewer hidden states than ids": (ids(nested=[1, 5]), "tensor-shape", BOTH),
    "ids that do not ascend": (ids(nested=[8, 5, 1]), "aux-order", BOTH),
    "ids out of range": (ids(nested=[1, 5, 40]), "aux-range", BOTH),
    "weights that are not numbers": (
        store("norm.weight", ("BF16", [8], [1.0] * 7 + [float("nan")])), "not-finite", BOTH,
    ),
    "a drafter of another kind": (put(architectures=["LlamaForCausalLM"]), "architecture", BOTH),
    "speculators' nested config": (put(speculators_config={}, norm_before_fc=True), "speculators-format", SGLANG),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(tmp_path: Path, target: Path, name: str) -> None:
    """The finding says which fault it is, which engine it concerns and what to do."""
    change, code, engines = FAULTS[name]
    found = [one for one in examine(drafter(tmp_path, change), target) if one.code == code]
    assert {engine for one in found for engine in one.engines} == set(engines)
    assert all(one.level == "error" and one.what and one.remedy for one in found)


DOUBTS: dict[str, tuple[Change, str]] = {
    "E02 right for one engine only": (ids(nested=[1, 5, 8]), "aux-convention"),
    "E04 tensors that nobody reads": (store("extra.weight", made.vector(3)), "tensors-unknown"),
    "E04 settings that nobody reads": (put(my_trick=3), "config-unknown"),
    "E16 another base": (put(rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}), "rope"),
    "E16 the target's scaling left out": (put(rope_parameters=None, rope_theta=100000.0, rope_scaling={
        "type": "linear", "factor": 2.0}), "rope"),
    "two bases": (put(rope_theta=500.0), "rope-twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTS)
def test_what_only_the_trainer_can_know_is_a_warning(tmp_path: Path, target: Path, name: str) -> None:
    """Where the folder alone cannot tell, both readings are given and no error is claimed."""
    change, code = DOUBTS[name]
    found = examine(drafter(tmp_path, change), target)
    assert [(one.code, one.level) for one in found] == [(code, "warning")]


def test_what_each_engine_takes_is_told(tmp_path: Path, target: Path) -> None:
    """The boundaries are those that the engines' own code would capture, wherever the ids stand."""

    def taken(change: Change | None) -> dict[str, list[int]]:
        boundaries: dict[str, list[int]] = outcome(drafter(tmp_path, change), target)["boundaries"]
        return boundaries

    assert taken(None) == {"sglang": [2, 6, 9], "vllm": [2, 6, 9]}
    assert taken(ids(nested=[1, 5, 8])) == {"sglang": [2, 6, 9], "vllm": [1, 5, 8]}
    assert taken(ids(top=[3, 4, 5])) == {"sglang": [2, 6, 9], "vllm": [3, 4, 5]}
    assert taken(ids(nested=[2, 3, 4], top=[3, 4, 5])) == {"sglang": [3, 4, 5], "vllm": [3, 4, 5]}


@pytest.mark.parametrize(
    ("first", "wanted"), [([1, 5, 8], [2, 6, 9]), ([2, 6, 9], [2, 6, 9])], ids=["outputs", "boundaries"]
)
def test_deepseek_targets_take_ids_by_the_first(
    tmp_path: Path, target: Path, first: list[int], wanted: list[int]
) -> None:
    """For DeepSeek and Kimi targets SGLang adds 1 only when the first id is 1."""
    config = made.target_config() | {"architectures": ["KimiK25ForConditionalGeneration"]}
    (target / "config.json").write_text(json.dumps({"architectures": config["architectures"], "text_config": config}))
    folder = drafter(tmp_path, ids(nested=first))
    assert outcome(folder, target)["boundaries"]["sglang"] == wanted
    assert not [one for one in examine(folder, target) if one.level == "error"]


def test_ids_for_both_engines_side_by_side_are_fine(tmp_path: Path, target: Path) -> None:
    """Boundaries at the top level for vLLM beside outputs within `eagle_config` for SGLang mean the same."""
    assert examine(drafter(tmp_path, ids(nested=[1, 5, 8], top=[2, 6, 9])), target) == []


def test_the_targets_own_embedding_may_be_there(tmp_path: Path, target: Path) -> None:
    """A copy of it is a note and no fault."""
    own = made.matrix(made.VOCABULARY, made.SIZE)
    found = examine(drafter(tmp_path, store("embed_tokens.weight", own)), target)
    assert [(one.code, one.level) for one in found] == [("embedding-same", "note")]


def test_offsets_are_told_from_ids_without_membership() -> None:
    """Without `t2d` offsets still repeat where neighbouring tokens are kept, and target ids never do."""
    assert [one.code for one in judge_offsets([1, 2, 5, 6], None, 40)] == ["d2t-absolute"]
    assert judge_offsets([1, 1, 3, 3], None, 40) == []
    assert [one.code for one in judge_offsets([1, 0, 3, 3], None, 40)] == ["d2t-range"]
    assert [one.code for one in judge_offsets([0, 0, 0], None, 40)] == ["d2t-zero"]
    assert judge_offsets([0, 0, 0], [0, 1, 2], 40) == []


def test_a_damaged_file_is_said_to_be(tmp_path: Path, target: Path) -> None:
    """Cut short, empty, or listed and missing: the error names the file."""
    folder = drafter(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    for data in (whole[:-10], whole[:4], b"", b"\xff" * 100):
        (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(UsageError, match=r"model\.safetensors"):
            examine(folder, target)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(UsageError, match=r"gone\.safetensors"):
        tensors(folder)
    with pytest.raises(UsageError, match=r"config\.json"):
        examine(tmp_path / "nowhere", target)


def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    """bfloat16, half, float and integer tensors come back, from any place within them."""
    made.write_safetensors(
        tmp_path / "x.safetensors",
        {
            "a": ("BF16", [2, 2], [1.0, -2.5, 0.0, 3.0]), "b": ("F16", [2], [0.5, -1.5]), "c": ("F32", [1], [0.25]),
            "d": ("I64", [3], [-1, 0, 7]), "e": ("BOOL", [2], [True, False]),
        },
    )  # fmt: skip
    found = header(tmp_path / "x.safetensors")
    assert found["a"].read() == [1.0, -2.5, 0.0, 3.0]
    assert found["a"].read(2, 2) == [0.0, 3.0]
    assert [found[name].read() for name in "bcde"] == [[0.5, -1.5], [0.25], [-1, 0, 7], [1, 0]]
