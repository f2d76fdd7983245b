"""The drafter: one decoder layer that reads a token's embedding beside the target's hidden states.

Shapes: B rows of T positions, P = B * T positions laid end to end, H hidden size, D draft vocabulary, V target
vocabulary, N heads, E head size.

At position p the input is the pair (embedding of token p+1, g_p), with g_p [3H] the target's three boundaries at p, and
the output predicts token p+2:

    h = fc(g)                                                   [B, T, H]
    x = cat[input_layernorm(embedding), hidden_norm(h)]         [B, T, 2H], read by q, k and v
    h = h + attention(x);  h = h + mlp(post_attention_layernorm(h))
    logits = lm_head(norm(h))                                   [B, T, D]

The next step is fed h as it is before `norm`, in the place of fc(g). Parameters carry the names of SGLang's
`LlamaForCausalLMEagle3` (sglang 0.5.14), so that exporting is saving. The embedding is the target's, frozen and never
saved. A drafter with latent attention (see mla) carries those of `Eagle3DeepseekV2ForCausalLM`.

`unroll` is training-time test (EAGLE-3, arXiv 2503.01840): all positions at once, step s at p standing for the s-th
draft of a chain whose root is p. `extend` is what serving does, one growing chain at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from .attention import Memory, attend, heads_first, positions_first
from .compiled import compiled
from .drafter_config import boundaries_of, is_latent
from .mla import LatentAttention


class Attention(nn.Module):
    """The projections of grouped-query attention over pairs."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        wide = 2 * config.hidden_size
        self.q_proj = nn.Linear(wide, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(wide, self.groups * self.size, bias=False)
        self.v_proj = nn.Linear(wide, self.groups * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values of `x` [P, 2H], each [P, N, E]; `rope` is [P, E] twice."""
        q, k, v = (project(x).unflatten(-1, (-1, self.size)) for project in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = (part.to(q.dtype) for part in rope)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        repeats = self.heads // self.groups
        return q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)

    def merge(self, mixed: Tensor) -> Tensor:
        """Attention's output [P, N, E] as the layer's [P, H]."""
        out: Tensor = self.o_proj(mixed.flatten(1))
        return out


class MidLayer(nn.Module):
    """The decoder layer. Its residual is the un-normed hidden state."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.self_attn = LatentAttention(config) if is_latent(config) else Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self.mlp = LlamaMLP(config)

    def forward(self, embeds: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor], memory: Memory, rows: int) -> Tensor:
        """One step over `rows` rows laid end to end; `memory` holds the steps before and gets this one."""
        q, k, v = (heads_first(x, rows) for x in self.before(embeds, hidden, rope))
        memory.append((k, v))
        return self.after(hidden, positions_first(attend(q, memory)))

    @compiled
    def before(self, embeds: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """All that comes before attention."""
        return self.self_attn.project(torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1), rope)

    @compiled
    def after(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """All that comes after attention, whose output `mixed` is [P, N, E]."""
        hidden = hidden + self.self_attn.merge(mixed)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Drafter(nn.Module):
    """An EAGLE-3 drafter. `embedding` [V, H] is the target's; `d2t` [D] holds offsets, `t2d` [V] membership."""

    d2t: Tensor
    t2d: Tensor
    embedding: Tensor

    def __init__(self, config: PretrainedConfig, embedding: Tensor, d2t: Tensor, t2d: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", d2t)
        self.register_buffer("t2d", t2d)
        self.register_buffer("embedding", embedding, persistent=False)
        self.rope = LlamaRotaryEmbedding(config)

    @property
    def kept(self) -> Tensor:
        """The target ids [D] of the draft vocabulary."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    @property
    def boundaries(self) -> tuple[int, ...] | None:
        """The target's boundaries that `fc` reads; `None` when the configuration leaves them to the default."""
        return boundaries_of(self.config.to_dict())

    def _rope(self, rows: int, length: int, first: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [P, E] of `rows` rows of positions from `first` on."""
        positions = torch.arange(first, first + length, device=self.fc.weight.device)[None]
        cos, sin = self.rope(self.fc.weight, positions)
        return cos.expand(rows, -1, -1).flatten(0, 1), sin.expand(rows, -1, -1).flatten(0, 1)

    def unroll(self, ids: Tensor, features: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield, for each step s, hidden states [B, T, H] that at p predict token p+2+s of `ids` [B, T].

        `features` [B, T, 3H]. True tokens are embedded; where p+1+s runs past the end, the output means nothing. Rows
        may be padded on the right.
        """
        rows, length = ids.shape
        hidden = self.fc(features.to(self.fc.weight.dtype)).flatten(0, 1)
        memory: Memory = []
        for step in range(steps):
            embeds = F.embedding(shift(ids, 1 + step).flatten(), self.embedding).to(hidden.dtype)
            hidden = self.midlayer(embeds, hidden, self._rope(rows, length, step), memory, rows)
            yield hidden.view(rows, length, -1)

    def extend(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Hidden states [1, T, H] of one chain: `tokens` [T] beside `hidden` [1, T, H], plainly causal.

        For positions that the target has verified `hidden` is fc(g), for drafted ones the output of the step before.
        """
        embeds = F.embedding(tokens, self.embedding).to(hidden.dtype)
        return self.midlayer(embeds, hidden[0], self._rope(1, len(tokens), 0), [], 1)[None]

    @compiled
    def normed(self, hidden: Tensor) -> Tensor:
        """What `lm_head` reads of hidden states [P, H]."""
        out: Tensor = self.norm(hidden)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., D] over the draft vocabulary."""
        return self.lm_head(self.norm(hidden))

    def predict(self, hidden: Tensor) -> Tensor:
        """The most likely token [...] as a TARGET id."""
        return self.kept[self.logits(hidden).argmax(-1)]


def shift(x: Tensor, by: int) -> Tensor:
    """`x` [B, T] moved `by` places to the left, zeros coming in on the right."""
    return F.pad(x[:, by:], (0, min(by, x.shape[1])))
