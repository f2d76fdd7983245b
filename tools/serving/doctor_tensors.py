"""What an engine finds in a drafter's weights, and what it would skip or leave random without a word.

Names and shapes are those of `LlamaForCausalLMEagle3` in sglang 0.5.14: the prefixes `midlayer.`, `layers.0.` and
`model.` mean the same, `aux_norm_low|mid|high` are the older names of `fc_norm.0|1|2`. Of an MLA drafter only what both
kinds share is checked. The vocabulary's mapping has a file of its own, `doctor_mapping`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from state.errors import UsageError
from tools.serving.doctor_config import IDS, MLA, architecture
from tools.serving.doctor_finding import Finding, error, note, warning
from tools.serving.doctor_mapping import check_mapping
from tools.serving.doctor_weights import Stored

ROWS = 100
SAMPLED = 4096
SAME = 0.999
_LEGACY = (
    ("model.", ""), ("midlayer.", "layers.0."), ("aux_norm_low.", "fc_norm.0."), ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)  # fmt: skip
_BESIDE = {"d2t", "t2d", "embed_tokens.weight", "lm_head.weight"}
Weights = Mapping[str, Stored]


def check_tensors(config: Mapping[str, Any], stored: Weights, target: Weights | None) -> list[Finding]:
    """Everything that the weights tell. `target` are the target's tensors, if they are there."""
    mine = {plain_name(name): tensor for name, tensor in stored.items()}
    found = [*_head(config, mine), *check_mapping(config, mine), *_finite(mine)]
    if architecture(config) != MLA:
        found = [*_names(expected(config), mine), *found]
    if target is not None and "embed_tokens.weight" in mine:
        found += _embedding(mine["embed_tokens.weight"], target)
    return found


def plain_name(name: str) -> str:
    """A tensor's name as the engine's class has it."""
    for old, new in _LEGACY:
        if name.startswith(old):
            name = new + name[len(old) :]
    return name


def expected(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes that a Llama-shaped drafter of this config has to have. Raises UsageError for a gap in it."""
    try:
        size, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    except KeyError as missing:
        raise UsageError(f"the drafter's config has no `{missing.args[0]}`", hint="export it again") from missing
    groups = config.get("num_key_value_heads") or heads
    each = config.get("head_dim") or size // heads
    outer = config.get("target_hidden_size") or size
    ids = (config.get("eagle_config") or {}).get(IDS)
    slots = config.get("num_aux_hidden_states") or (len(ids) if ids else 3)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (size, slots * outer), "norm.weight": (size,)}
    for layer in range(config.get("num_hidden_layers") or 1):
        inside = 2 * size if layer == 0 else size  # the first layer reads the embedding beside the hidden state
        of_layer = {
            "self_attn.q_proj": (heads * each, inside), "self_attn.k_proj": (groups * each, inside),
            "self_attn.v_proj": (groups * each, inside), "self_attn.o_proj": (size, heads * each),
            "mlp.gate_proj": (wide, size), "mlp.up_proj": (wide, size), "mlp.down_proj": (size, wide),
            "hidden_norm": (size,), "input_layernorm": (size,), "post_attention_layernorm": (size,),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    if config.get("fc_norm") or config.get("use_aux_norm"):
        shapes |= {f"fc_norm.{slot}.weight": (outer,) for slot in range(slots)}
    return shapes


def _names(wanted: Mapping[str, tuple[int, ...]], mine: Weights) -> list[Finding]:
    found = []
    missing = sorted(wanted.keys() - mine.keys())
    if missing:
        seen = (
            f"{len(missing)} tensors are missing, and the engine leaves them as they happen to be: {_listed(missing)}"
        )
        found.append(error("tensors-missing", seen, "export it again, whole"))
    unknown = sorted(mine.keys() - wanted.keys() - _BESIDE)
    if unknown:
        found.append(_unknown(unknown))
    return found + [
        error(
            "tensor-shape",
            f"`{name}` is {list(mine[name].shape)} in the file, and the config makes it {list(wanted[name])}",
            "the config is not that of these weights",
        )
        for name in sorted(wanted.keys() & mine.keys())
        if mine[name].shape != wanted[name]
    ]


def _unknown(names: Sequence[str]) -> Finding:
    if any(name.startswith("fc_norm.") for name in names):
        return error(
            "fc-norm",
            f"the weights have norms before fc that the config does not announce, and are skipped: {_listed(names)}",
            'write `"fc_norm": true`',
        )
    if any(name.startswith("input_norm.") for name in names):
        return error(
            "norm-before-fc",
            f"the weights have a norm before fc that SGLang skips without a word: {_listed(names)}",
            "serve it with vLLM (`norm_before_fc`), or train without it",
            "sglang",
        )
    return warning(
        "tensors-unknown",
        f"{len(names)} tensors that the engine's class does not have, and skips without a word: {_listed(names)}",
        "is this a checkpoint of another kind of drafter, or was too much exported?",
    )


def _head(config: Mapping[str, Any], mine: Weights) -> list[Finding]:
    head, drafted = mine.get("lm_head.weight"), config.get("draft_vocab_size")
    if head is None:
        if drafted is None:
            return []
        seen = f"`lm_head.weight` is missing and `draft_vocab_size` is {drafted}: the drafts come from a random head"
        return [error("head-missing", seen, "export the trained head")]
    wanted = (drafted or config.get("vocab_size"), config.get("hidden_size"))
    if head.shape == wanted:
        return []
    return [
        error(
            "head-shape",
            f"`lm_head.weight` is {list(head.shape)}, and the config makes it {list(wanted)}",
            f'write `"draft_vocab_size": {head.shape[0]}`, with `d2t` in the weights',
        )
    ]


def _finite(mine: Weights) -> list[Finding]:
    floats = {name: one for name, one in mine.items() if one.dtype in ("F16", "BF16", "F32", "F64")}
    broken = [name for name, one in floats.items() if not all(map(math.isfinite, one.read(0, SAMPLED)))]
    if not broken:
        return []
    remedy = "take an earlier checkpoint: training had gone wrong before this one"
    return [error("not-finite", f"not a number, or infinite: {_listed(broken)}", remedy)]


def _embedding(mine: Stored, target: Weights) -> list[Finding]:
    theirs = next((one for name, one in target.items() if name.endswith("embed_tokens.weight")), None)
    if theirs is None:
        return []
    if mine.shape != theirs.shape:
        seen = f"`embed_tokens` is {list(mine.shape)}, and the target's {list(theirs.shape)}"
        return [error("embedding-shape", seen, "leave it out: both engines then take the target's")]
    rows, size = mine.shape
    sampled = range(0, rows, max(1, rows // ROWS))
    worst = min(cosine(mine.read(row * size, size), theirs.read(row * size, size)) for row in sampled)
    if worst > SAME:
        return [note("embedding-same", "`embed_tokens` is the target's own", "leave it out if size matters")]
    return [
        error(
            "embedding-differs",
            f"`embed_tokens` is not the target's (the cosine of a row is {worst:.2f}): vLLM uses it, SGLang "
            "replaces it by the target's, so the two engines run different drafters",
            "leave it out; if training did train it, serve it with vLLM only",
            "vllm",
        )
    ]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of two vectors; 1.0 for two that are all zero, 0.0 where only one is."""
    long, other = math.hypot(*a), math.hypot(*b)
    if long == 0 or other == 0:
        return 1.0 if long == other else 0.0
    product: float = sum(map(operator.mul, a, b))
    return product / (long * other)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
