"""Latent attention (MLA) over pairs, as DeepSeek-V3 and Kimi have it, for a drafter whose cache has its target's form.

Shapes as in `model`. Queries and keys have two parts, one without a position and one that is rotated; the rotated key
is one for all heads. Keys and values are expanded from their latent, so that `attention` sees ordinary heads; engines
keep the latent and fold the expansion into their neighbours, which is the same product in another order. Names and
order are those of SGLang's `Eagle3DeepseekV2ForCausalLM` (sglang 0.5.14): rotation in interleaved pairs, and under YaRN
scores times the square of `mscale`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm


class LatentAttention(nn.Module):
    """The projections of latent attention over pairs of width 2H. `config` is a DeepseekV3Config."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.plain, self.turned, self.value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.rank, wide = config.kv_lora_rank, 2 * config.hidden_size
        self.q_a_proj = nn.Linear(wide, config.q_lora_rank, bias=False)
        self.q_a_layernorm = LlamaRMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, self.heads * (self.plain + self.turned), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(wide, self.rank + self.turned, bias=False)
        self.kv_a_layernorm = LlamaRMSNorm(self.rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.plain + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, config.hidden_size, bias=False)
        self.scale = score_scale(config.rope_parameters)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of `x` [P, 2H], each [P, N, E]; values are padded with zeros to E."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (self.heads, -1))
        latent, key = self.kv_a_proj_with_mqa(x).split([self.rank, self.turned], dim=-1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (self.heads, -1))
        plain, v = expanded.split([self.plain, self.value], dim=-1)
        q_plain, q_turned = q.split([self.plain, self.turned], dim=-1)
        turned = rotate(key[:, None], rope).expand(-1, self.heads, -1)
        q = torch.cat([q_plain, rotate(q_turned, rope)], dim=-1) * self.scale
        return q, torch.cat([plain, turned], dim=-1), F.pad(v, (0, q.shape[-1] - self.value))

    def merge(self, mixed: Tensor) -> Tensor:
        """Attention's output [P, N, E] as the layer's [P, H]."""
        out: Tensor = self.o_proj(mixed[..., : self.value].flatten(1))
        return out


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """`x` [P, N, E] with each pair (2i, 2i+1) turned by its position's i-th angle; `rope` as Llama's, [P, E] twice."""
    cos, sin = (part[:, None, : part.shape[-1] // 2].to(x.dtype) for part in rope)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def score_scale(rope: dict[str, Any] | None) -> float:
    """What scores are multiplied with beside 1 / sqrt(E): YaRN's `mscale`, squared."""
    factor, weight = (rope or {}).get("factor") or 1.0, (rope or {}).get("mscale_all_dim") or 0.0
    if (rope or {}).get("rope_type", "default") == "default" or factor <= 1 or not weight:
        return 1.0
    return float((0.1 * weight * math.log(factor) + 1.0) ** 2)
