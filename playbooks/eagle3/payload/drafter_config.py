"""The drafter's `config.json`: its shape after the target's, and where in the target its inputs are taken.

Two conventions of layer ids are in use. Everything here speaks of boundaries: k is the INPUT of layer k. SGLang's
`eagle_aux_hidden_state_layer_ids` name a layer's OUTPUT, boundary - 1; for targets of the DeepSeek family, however,
sglang 0.5.14 adds that one only when the first id is 1. So the ids that are written depend on the target's family.
SGLang reads them within `eagle_config` alone. vLLM takes ids for boundaries, and looks at the top level first: there
stand the boundaries themselves, so that both engines feed what was trained. `target_boundaries` is for this payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import DeepseekV3Config, LlamaConfig, PretrainedConfig

from .errors import StepError

LLAMA, LATENT = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
ROPES = ("default", "linear", "dynamic", "yarn", "llama3")  # that every engine reads for such a drafter
LATENT_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def drafter_config(
    target: PretrainedConfig, draft_vocab_size: int, boundaries: Sequence[int], attention: str = "auto",
    intermediate_size: int = 0,
) -> PretrainedConfig:  # fmt: skip
    """The drafter's configuration for `target`, as SGLang reads it; `attention` is `llama`, `mla` or `auto`.

    `intermediate_size` is its MLP's, 0 for the target's; a wider one costs a small target's rounds next to nothing.
    RoPE and the longest context are the target's. Raises StepError for latent attention without a target that has it.
    """
    if attention not in ("auto", "llama", "mla"):
        raise StepError(f"`draft.attention` is `{attention}`", hint="choose auto, llama or mla")
    can = all(getattr(target, key, None) for key in LATENT_KEYS)
    if attention == "mla" and not can:
        raise StepError(
            f"`draft.attention` is `mla`, and the target (`{target.model_type}`) has no latent attention of that kind",
            hint="set `draft.attention=llama`",
        )
    latent = attention == "mla" or (attention == "auto" and can)
    common = {
        "architectures": [LATENT if latent else LLAMA],
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": intermediate_size or target.intermediate_size,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "max_position_embeddings": target.max_position_embeddings,
        "rms_norm_eps": getattr(target, "rms_norm_eps", 1e-5),
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_id,
        "tie_word_embeddings": False,
    }
    config = _latent(target, common) if latent else _llama(target, common)
    config.draft_vocab_size = draft_vocab_size
    config.target_boundaries = list(boundaries)
    config.eagle_aux_hidden_state_layer_ids = list(boundaries)
    config.eagle_config = {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": layer_ids(target, boundaries),
    }
    return config


def layer_ids(target: PretrainedConfig, boundaries: Sequence[int]) -> list[int]:
    """`boundaries` as SGLang reads them for this target. Raises StepError when it cannot be made to read these."""
    if not getattr(target, "kv_lora_rank", None):
        return [k - 1 for k in boundaries]
    if boundaries[0] == 1:
        raise StepError(
            f"SGLang 0.5.14 cannot be told the boundaries {list(boundaries)} for a target with latent attention",
            hint="begin with another boundary than 1: it takes a first id of 1 for the output of layer 1, boundary 2",
        )
    return [k - 1 if boundaries[0] == 2 else k for k in boundaries]


def boundaries_of(settings: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The boundaries of a drafter's configuration; `None` when it leaves them to the default."""
    if settings.get("target_boundaries"):
        return tuple(settings["target_boundaries"])
    ids = (settings.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(i + 1 for i in ids) if ids else None


def is_latent(config: PretrainedConfig) -> bool:
    """Whether a drafter of this configuration has latent attention."""
    return bool(getattr(config, "kv_lora_rank", None))


def read_drafter_config(settings: Mapping[str, Any]) -> PretrainedConfig:
    """The configuration in a drafter's `config.json`."""
    if settings.get("kv_lora_rank"):
        return DeepseekV3Config(**{"mlp_bias": False, **settings})
    return LlamaConfig(**settings)


def _llama(target: PretrainedConfig, common: dict[str, Any]) -> LlamaConfig:
    heads, groups = target.num_attention_heads, target.num_key_value_heads
    size = getattr(target, "head_dim", None) or target.hidden_size // heads
    rope = dict(target.rope_parameters or {})
    if getattr(target, "kv_lora_rank", None):  # its heads are no ordinary ones: four queries share a key, E is 128
        size = 128 if target.hidden_size % 512 == 0 else target.hidden_size // heads
        heads = target.hidden_size // size
        groups = heads // 4 if heads % 4 == 0 else heads
        rope = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    if rope.get("rope_type", "default") not in ROPES or "rope_theta" not in rope:
        rope = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    return LlamaConfig(
        **common, num_attention_heads=heads, num_key_value_heads=groups, head_dim=size, rope_parameters=rope
    )


def _latent(target: PretrainedConfig, common: dict[str, Any]) -> DeepseekV3Config:
    return DeepseekV3Config(
        **common,
        **{key: getattr(target, key) for key in LATENT_KEYS},
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_attention_heads,
        rope_parameters=target.rope_parameters,
        first_k_dense_replace=1,  # its one layer has no experts
        mlp_bias=False,
    )
