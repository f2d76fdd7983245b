"""Looks at an exported drafter as the engines will read it, without an engine and without torch.

    findings = examine(Path("drafter/export"), Path("target"))

The configuration is read in `doctor_config`, the weights in `doctor_tensors`. Blocking.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from state.errors import UsageError
from tools.serving import doctor_weights as weights
from tools.serving.doctor_config import captured, check_config, text_config
from tools.serving.doctor_finding import BOTH, Finding, ranked, warning
from tools.serving.doctor_tensors import check_tensors

# Every key that LlamaConfig, the engines' drafters or the trainers' own bookkeeping have; another one is skipped.
KNOWN = frozenset(
    [
        "architectures",
        "attention_bias",
        "attention_dropout",
        "auto_map",
        "bias",
        "bos_token_id",
        "chunk_size_feed_forward",
        "draft_model_type",
        "draft_vocab_size",
        "dtype",
        "eagle_aux_hidden_state_layer_ids",
        "eagle_config",
        "eos_token_id",
        "fc_norm",
        "first_k_dense_replace",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "id2label",
        "initializer_range",
        "intermediate_size",
        "is_encoder_decoder",
        "kv_lora_rank",
        "label2id",
        "layer_types",
        "max_position_embeddings",
        "max_window_layers",
        "mlp_bias",
        "model_type",
        "n_group",
        "name_or_path",
        "norm_before_fc",
        "norm_before_residual",
        "norm_output",
        "num_attention_heads",
        "num_aux_hidden_states",
        "num_hidden_layers",
        "num_key_value_heads",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "qkv_bias",
        "quantization_config",
        "return_dict",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "speculators_config",
        "target_hidden_size",
        "target_model_type",
        "tie_word_embeddings",
        "torch_dtype",
        "transformer_layer_config",
        "transformers_version",
        "use_aux_norm",
        "use_cache",
        "use_sliding_window",
        "v_head_dim",
        "vocab_size",
    ]
)


def examine(folder: Path, target: Path | None = None) -> list[Finding]:
    """Everything found, errors first. Raises UsageError when a folder lacks what a look needs."""
    config = weights.read_json(folder / "config.json")
    theirs = None if target is None else weights.read_json(target / "config.json")
    found = check_config(config, theirs)
    unknown = sorted(key for key in config if key not in KNOWN and not key.startswith("_"))
    if unknown:
        found.append(
            warning(
                "config-unknown",
                "the engines' classes do not know these settings: " + ", ".join(f"`{key}`" for key in unknown),
                "if training depended on one of them, this engine does not run that model",
            )
        )
    if any(one.code == "speculators-format" for one in found):
        return ranked(found)
    held = weights.tensors(folder)
    found += check_tensors(config, held, None if target is None else _target_tensors(target))
    return ranked(found)


def digest(folder: Path) -> str | None:
    """The trainer's digest of the drafter in `folder`, if its file carries one."""
    path = folder / "model.safetensors"
    return weights.metadata(path).get("drafter") if path.is_file() else None


def outcome(folder: Path, target: Path) -> dict[str, Any]:
    """What each engine takes from the folder: the boundaries that it feeds the drafter."""
    config, theirs = weights.read_json(folder / "config.json"), weights.read_json(target / "config.json")
    return {"boundaries": {engine: captured(config, text_config(theirs), engine) for engine in BOTH}}


def _target_tensors(target: Path) -> Mapping[str, weights.Stored] | None:
    """The target's tensors; `None` for one that is stored otherwise (GGUF, .bin), which is no fault of the drafter."""
    try:
        return weights.tensors(target)
    except UsageError:
        return None
