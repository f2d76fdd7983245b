"""What an engine makes of a drafter's `config.json`, and where that is not what was trained.

Read in sglang 0.5.14 (`llama_eagle3.py`, `kimi_k25_eagle3.py`, `model_runner.py`, `model_config.py`, the targets'
`set_eagle3_layers_to_capture`) and vllm 0.23.0 (`llama_eagle3.py`, `gpu_model_runner.py`). A boundary k is the input of
layer k, which Hugging Face calls `hidden_states[k]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.serving.doctor_finding import BOTH, Finding, error, note, warning

Config = Mapping[str, Any]
IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA, MLA = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
ARCHITECTURES = {LLAMA: BOTH, "Eagle3LlamaForCausalLM": ("vllm",), MLA: BOTH}
# Targets for which SGLang takes ids as they are unless the first is 1; to all others' it adds 1.
_FIRST_ID_DECIDES = ("Deepseek", "Glm4MoeLite", "GlmMoeDsa", "Kimi", "MistralLarge3")
DEFAULT_CONTEXT = 2048
"""What an engine takes for a config without `max_position_embeddings`."""


def check_config(config: Config, target: Config | None) -> list[Finding]:
    """Everything that the configuration alone tells. `target` is the target's `config.json`, if there is one."""
    if "speculators_config" in config or "transformer_layer_config" in config:
        return [_speculators(config)]
    found = [*_kind(config), *_vocabulary(config), *_norms(config), *_level(config)]
    if target is not None:
        text = text_config(target)
        found += [*_boundaries(config, text), *_fits(config, text), *_rope(config, text), *_context(config, text)]
    return found


def text_config(target: Config) -> Config:
    """A target's settings of its language model, which multimodal targets keep one level down."""
    return {**target, **(target.get("text_config") or {})}


def architecture(config: Config) -> str:
    """The first architecture that a config names."""
    return str((config.get("architectures") or [""])[0])


def _speculators(config: Config) -> Finding:
    flags = [name for name in ("norm_before_residual", "norm_before_fc") if config.get(name)]
    if flags:
        return error(
            "speculators-format",
            f"a speculators checkpoint trained with {', '.join(flags)}, which SGLang does not compute",
            "serve it with vLLM, or train it again without",
            "sglang",
        )
    return error(
        "speculators-format",
        "config.json is nested as speculators writes it, and SGLang wants a flat one",
        "convert it: the keys of `transformer_layer_config` on top, the layer ids into `eagle_config`",
        "sglang",
    )


def _kind(config: Config) -> list[Finding]:
    name = architecture(config)
    found = [
        error("architecture", f"{engine} has no drafter `{name}`", f'write `"architectures": ["{LLAMA}"]`', engine)
        for engine in BOTH
        if engine not in ARCHITECTURES.get(name, ())
    ]
    if not config.get("model_type"):
        found.append(error("model-type", "`model_type` is missing: no engine can read it", 'write `"llama"`'))
    return found


def _vocabulary(config: Config) -> list[Finding]:
    found = []
    if "draft_vocab_size" not in config:
        found.append(
            error(
                "draft-vocab-size",
                "`draft_vocab_size` is missing: SGLang stops, vLLM takes the target's vocabulary",
                "write the number of rows of `lm_head.weight`",
            )
        )
    if config.get("tie_word_embeddings"):
        found.append(
            error(
                "tied",
                "`tie_word_embeddings` is true: the head is the target's embedding, the trained `lm_head` is dropped",
                'write `"tie_word_embeddings": false`',
                "sglang",
            )
        )
    return found


def _norms(config: Config) -> list[Finding]:
    inner = _inner(config)
    found = [
        error(
            name.replace("_", "-"),
            f"`{name}` is true: SGLang leaves that norm out and says nothing",
            "serve it with vLLM, or train without it",
            "sglang",
        )
        for name in ("norm_before_residual", "norm_before_fc")
        if config.get(name) or inner.get(name)
    ]
    if config.get("norm_output"):
        found.append(
            note(
                "norm-output",
                "`norm_output` is true: the next draft is fed the state after the final norm (SpecForge means "
                "something else by this key)",
                "make sure that training fed it so",
            )
        )
    return found


def _inner(config: Config) -> Config:
    inner = config.get("eagle_config")
    return inner if isinstance(inner, Mapping) else {}


def layer_ids(config: Config, engine: str) -> list[int]:
    """The ids where that engine looks for them; empty when it finds none."""
    nested, top = _inner(config).get(IDS) or [], config.get(IDS) or []
    if engine == "vllm":
        return list(top or nested)
    return list(nested or (top if architecture(config) == MLA else []))


def captured(config: Config, target: Config, engine: str) -> list[int]:
    """The boundaries that an engine feeds the drafter; without ids its default; empty when that is not known."""
    ids = layer_ids(config, engine)
    layers = target.get("num_hidden_layers")
    if not ids:
        return [2, layers // 2, layers - 3] if layers else []
    as_they_are = architecture(target).startswith(_FIRST_ID_DECIDES) and ids[0] != 1
    return [k if engine == "vllm" or as_they_are else k + 1 for k in ids]


def _level(config: Config) -> list[Finding]:
    top = config.get(IDS)
    if not top or layer_ids(config, "sglang"):
        return []
    return [
        error(
            "aux-ids-level",
            f"`{IDS}` {list(top)} stands at the top level: SGLang looks within `eagle_config`, finds nothing there and "
            "takes its default layers without a word",
            f"in a copy for SGLang, write it into `eagle_config` as layer outputs: {[k - 1 for k in top]}",
            "sglang",
        )
    ]


def _boundaries(config: Config, target: Config) -> list[Finding]:
    layers = int(target.get("num_hidden_layers") or 0)
    by_engine = {engine: captured(config, target, engine) for engine in BOTH}
    found = []
    for engine, boundaries in by_engine.items():
        ids = layer_ids(config, engine)
        if ids != sorted(ids):
            found.append(
                error(
                    "aux-order",
                    f"the aux layer ids {ids} do not ascend: engines capture from low to high whatever their order",
                    "write them from low to high, as training concatenated them",
                    engine,
                )
            )
        if any(not 0 <= k <= layers for k in boundaries):
            seen = f"{engine} would capture boundaries {boundaries} of a target with {layers} layers"
            found.append(error("aux-range", seen, "correct the ids", engine))
    return [*found, *_convention(config, by_engine["sglang"], by_engine["vllm"], layers)]


def _convention(config: Config, sglang: list[int], vllm: list[int], layers: int) -> list[Finding]:
    """Ids name layer outputs for SGLang and boundaries for vLLM: which was meant cannot be read off them."""
    ids, default = layer_ids(config, "sglang"), [2, layers // 2, layers - 3]
    if ids == default and sglang != default:
        return [
            error(
                "aux-convention",
                f"the ids {ids} are the usual boundaries; SGLang takes them for layer outputs: it captures {sglang}",
                f"write {[k - 1 for k in ids]}, or leave the ids out: {default} is the default",
                "sglang",
            )
        ]
    if not ids or sglang == vllm:
        return []
    remedy = "leave the ids out: both then capture their default" if sglang == default else (
        f"for vLLM write {sglang} at the top level, beside `eagle_config`"
    )  # fmt: skip
    return [
        warning(
            "aux-convention",
            f"for the ids {ids} SGLang captures boundaries {sglang} and vLLM {vllm}: one of them is a layer off",
            f"say which was trained; if {sglang}: {remedy}",
            "vllm",
        )
    ]


def _fits(config: Config, target: Config) -> list[Finding]:
    wide = config.get("target_hidden_size") or config.get("hidden_size")
    return [
        error(
            name.replace("_", "-"),
            f"`{name}` is {mine} for the drafter and {target[name]} in the target",
            "this drafter belongs to another target",
        )
        for name, mine in (("hidden_size", wide), ("vocab_size", config.get("vocab_size")))
        if target.get(name) is not None and mine != target[name]
    ]


def rope(config: Config) -> dict[str, Any]:
    """The rotary settings that an engine takes from a config: `rope_parameters` first, then the older keys."""
    told = config.get("rope_parameters")
    scaling = told if isinstance(told, Mapping) else config.get("rope_scaling") or {}
    found = {"rope_theta": config.get("rope_theta") or 10000.0, **scaling}
    found["rope_type"] = found.pop("type", None) or found.get("rope_type") or "default"
    found["rope_theta"] = float(found["rope_theta"])
    return {key: value for key, value in found.items() if value is not None}


def _rope(config: Config, target: Config) -> list[Finding]:
    mine, theirs = rope(config), rope(target)
    found = []
    if mine != theirs:
        keys = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
        differs = ", ".join(f"{key} {mine.get(key)} here and {theirs.get(key)} there" for key in keys)
        said = any(config.get(key) for key in ("rope_parameters", "rope_theta", "rope_scaling"))
        found.append(
            (warning if said else error)(
                "rope",
                f"rotary settings are not the target's: {differs}"
                + ("" if said else " (the drafter's are the default)"),
                "write what training used, which is the target's unless it was set otherwise",
            )
        )
    told = config.get("rope_parameters")
    older = config.get("rope_theta")
    if older and isinstance(told, Mapping) and told.get("rope_theta", older) != older:
        seen = f"`rope_theta` is {older}, and `rope_parameters` says {told['rope_theta']} and wins"
        found.append(warning("rope-twice", seen, "remove the one that training did not use"))
    return found


def _context(config: Config, target: Config) -> list[Finding]:
    mine, theirs = config.get("max_position_embeddings"), target.get("max_position_embeddings")
    if theirs is None or (mine or DEFAULT_CONTEXT) >= theirs:
        return []
    said = f"missing, which means {DEFAULT_CONTEXT}" if mine is None else str(mine)
    return [
        error(
            "context",
            f"`max_position_embeddings` is {said}, and the target's is {theirs}: SGLang does not start",
            f"write {theirs}",
        )
    ]
