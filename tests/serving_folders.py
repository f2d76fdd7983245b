"""Drafter and target folders for the doctor's tests: small, whole, and then changed by one fault."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZE, WIDE, HEADS, GROUPS, EACH, VOCABULARY, DRAFTED, LAYERS = 8, 16, 2, 1, 4, 40, 6, 12
KEPT = [1, 2, 5, 6, 7, 30]
Tensor = tuple[str, list[int], list[Any]]


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors given as type, shape and numbers; bfloat16 as the upper half of a float32."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, values) in tensors.items():
        if dtype == "BF16":
            packed = b"".join(struct.pack("<f", value)[2:] for value in values)
        else:
            packed = struct.pack(
                f"<{len(values)}{ {'I64': 'q', 'BOOL': '?', 'F32': 'f', 'F16': 'e'}[dtype] }".replace(" ", ""), *values
            )
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def matrix(rows: int, columns: int, seed: int = 1) -> Tensor:
    """A bfloat16 matrix of small numbers."""
    return "BF16", [rows, columns], [((seed * 31 + k * 7) % 17 - 8) / 8 for k in range(rows * columns)]


def vector(size: int) -> Tensor:
    return "BF16", [size], [1.0] * size


def target_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": SIZE, "vocab_size": VOCABULARY,
        "num_hidden_layers": LAYERS, "max_position_embeddings": 4096, "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    }  # fmt: skip


def drafter_config() -> dict[str, Any]:
    """A drafter without layer ids: both engines then take the boundaries [2, 6, 9]."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": SIZE,
        "intermediate_size": WIDE, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": EACH,
        "num_hidden_layers": 1, "vocab_size": VOCABULARY, "draft_vocab_size": DRAFTED, "tie_word_embeddings": False,
        "max_position_embeddings": 4096, "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip


def drafter_tensors() -> dict[str, Tensor]:
    return {
        "fc.weight": matrix(SIZE, 3 * SIZE), "norm.weight": vector(SIZE), "lm_head.weight": matrix(DRAFTED, SIZE),
        "midlayer.self_attn.q_proj.weight": matrix(HEADS * EACH, 2 * SIZE),
        "midlayer.self_attn.k_proj.weight": matrix(GROUPS * EACH, 2 * SIZE),
        "midlayer.self_attn.v_proj.weight": matrix(GROUPS * EACH, 2 * SIZE),
        "midlayer.self_attn.o_proj.weight": matrix(SIZE, HEADS * EACH),
        "midlayer.mlp.gate_proj.weight": matrix(WIDE, SIZE), "midlayer.mlp.up_proj.weight": matrix(WIDE, SIZE),
        "midlayer.mlp.down_proj.weight": matrix(SIZE, WIDE), "midlayer.hidden_norm.weight": vector(SIZE),
        "midlayer.input_layernorm.weight": vector(SIZE), "midlayer.post_attention_layernorm.weight": vector(SIZE),
        "d2t": ("I64", [DRAFTED], [token - draft for draft, token in enumerate(KEPT)]),
        "t2d": ("BOOL", [VOCABULARY], [token in KEPT for token in range(VOCABULARY)]),
    }  # fmt: skip


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
