"""Reads a drafter's folder, whoever wrote it, into one form: SGLang's names, `d2t` as offsets, boundaries said.

    SGLang, SpecForge    flat `config.json`; tensors `midlayer.*` or `layers.0.*`; ids in `eagle_config`
    speculators          nested `transformer_layer_config`; ids at the top level, which are boundaries already
    EAGLE repository     `pytorch_model.bin`, the same names

An `embed_tokens` is dropped: SGLang takes the target's in any case. What cannot be represented is refused, never
dropped: a drafter read without its norm before `fc`, or with its residual taken elsewhere, is another drafter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .errors import StepError
from .runtime import read_json

Tensors = dict[str, Tensor]
UNSUPPORTED = ("norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
DROPPED = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")


def read_drafter(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Settings and tensors of the drafter in `folder`, in SGLang's form.

    Raises StepError when there is none, when it has what this trainer cannot represent, or a mapping that is none.
    """
    settings = _flat(read_json(folder / "config.json"), folder)
    wrong = [key for key in UNSUPPORTED if settings.get(key)]
    if wrong:
        raise StepError(
            f"the drafter in `{folder}` has {', '.join(f'`{key}`' for key in wrong)}, which is not built here",
            hint="train one anew (leave `draft.start` empty); SGLang 0.5.14 would not serve it faithfully either",
        )
    tensors = {_name(name): tensor for name, tensor in _load(folder).items()}
    for name in [n for n in tensors if n.endswith(DROPPED)]:
        del tensors[name]
    _complete_mapping(tensors, settings, folder)
    return settings, tensors


def _load(folder: Path) -> Tensors:
    files = sorted(folder.glob("*.safetensors"))
    try:
        if files:
            return {name: tensor for file in files for name, tensor in load_file(file).items()}
        for name in ("pytorch_model.bin", "model.bin"):
            if (folder / name).is_file():
                tensors: Tensors = torch.load(folder / name, map_location="cpu", weights_only=True)
                return tensors
    except (SafetensorError, OSError, RuntimeError, EOFError) as error:
        raise StepError(
            f"the drafter's weights in `{folder}` do not open: {error}", hint="copy or export them again"
        ) from error
    raise StepError(f"no drafter in `{folder}`: no `*.safetensors`", hint="run `python -m eagle3.train` first")


def _name(name: str) -> str:
    return re.sub(r"^(model\.)?(layers\.0\.)?", lambda m: "midlayer." if m[2] else "", name)


def _flat(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """speculators' settings as SGLang's; others as they are."""
    ids = settings.get("eagle_aux_hidden_state_layer_ids")
    if "transformer_layer_config" not in settings:
        if ids and not (settings.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids"):
            raise StepError(
                f"`{folder}/config.json` has `eagle_aux_hidden_state_layer_ids` at its top level, which SGLang ignores "
                "and of which it is not said whether they count inputs or outputs",
                hint="move them into `eagle_config`, counted as SGLang does: the OUTPUT of layer i",
            )
        return dict(settings)
    inner = dict(settings["transformer_layer_config"])
    kept = {k: v for k, v in settings.items() if k in (*UNSUPPORTED, "draft_vocab_size")}
    flat = {**inner, **kept, "architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": False}
    if inner.get("model_type", "llama") not in ("llama", "qwen3"):
        raise StepError(f"`{folder}` has a layer of type `{inner['model_type']}`", hint="only Llama's layers are read")
    if ids:
        flat["target_boundaries"] = list(ids)
        flat["eagle_config"] = {
            "use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [k - 1 for k in ids],
        }  # fmt: skip
    return flat


def _complete_mapping(tensors: Tensors, settings: dict[str, Any], folder: Path) -> None:
    """Make `d2t` and `t2d` whole: a drafter of the target's whole vocabulary needs none, and `t2d` follows."""
    vocabulary = int(settings.get("vocab_size") or 0)
    size = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else 0
    settings["draft_vocab_size"] = settings.get("draft_vocab_size") or size
    if "d2t" not in tensors:
        if not size or size != vocabulary:
            raise StepError(
                f"the drafter in `{folder}` drafts {size} of {vocabulary} tokens and has no `d2t` to say which",
                hint="export it again with its mapping; without one its draft ids are taken for the first tokens",
            )
        tensors["d2t"] = torch.zeros(size, dtype=torch.int64)
    d2t = tensors["d2t"] = tensors["d2t"].long()
    ids = d2t + torch.arange(len(d2t))
    fits = bool((ids >= 0).all() and (ids < vocabulary).all()) and len(ids.unique()) == len(ids)
    if "t2d" in tensors and fits:
        fits = ids.sort().values.equal(tensors["t2d"].bool().nonzero().flatten())
    if not fits:
        absolute = "t2d" in tensors and d2t.sort().values.equal(tensors["t2d"].bool().nonzero().flatten())
        raise StepError(
            f"`d2t` in `{folder}` is no mapping of {len(d2t)} draft ids to {vocabulary} target ids"
            + (": it holds the target ids themselves, where engines add them to the draft ids" if absolute else ""),
            hint="`d2t` holds offsets, target id - draft id, and agrees with `t2d`; export the drafter again",
        )
    tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool)
    tensors["t2d"][ids] = True
