"""Attention of an unrolled step: causal over step 0, and of each later step only the position's own entry.

Shapes: B rows of T positions, P = B * T positions laid end to end, N heads, E head size, s later steps.

A query at p sees the keys of step 0 up to p and, of each later step, only the one at p: in a chain rooted at p there is
one draft a step, and it stands on the target's states up to p. Written out, that is a softmax over a [T, T + s] matrix
(`attend_reference`). `attend` is the same function without the matrix: the causal part goes to the fused kernel, which
also gives the logarithm of its normaliser L0 = log sum exp(score); with the s own scores d_j the whole normaliser is
L = log(exp(L0) + sum exp(d_j)), and the output exp(L0 - L) * out0 + sum exp(d_j - L) * v_j.

The gradient is exact, too, and needs no more than the kernel's own backward pass: given the MERGED output and
normaliser, it computes exp(score - L), which is what the causal scores weigh in the merged softmax (ring attention
rests on the same fact). CUDA takes bfloat16 and float16; anything else on CUDA goes by the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .compiled import compiled

Memory = list[tuple[Tensor, Tensor]]
_aten = torch.ops.aten


def attend(q: Tensor, memory: Memory) -> Tensor:
    """Attention of q [B, N, T, E] over `memory`, the keys and values [B, N, T, E] of each step, step 0 first."""
    (key, value), later = memory[0], memory[1:]
    if not later:
        return F.scaled_dot_product_attention(q, key, value, is_causal=True)
    if q.is_cuda and q.dtype not in (torch.bfloat16, torch.float16):
        return attend_reference(q, memory)
    merged: Tensor = _Merged.apply(q, key, value, *(t for pair in later for t in pair))
    return merged


def attend_reference(q: Tensor, memory: Memory) -> Tensor:
    """The same by its definition, with all T x (T + s) scores in memory."""
    (key, value), later = memory[0], memory[1:]
    length = q.shape[-2]
    past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    scores = (q @ key.mT).masked_fill(~past, float("-inf"))  # no row is empty: p always sees itself
    own = [(q * k).sum(-1, keepdim=True) for k, _ in later]
    weights = torch.cat([scores, *own], dim=-1).mul(q.shape[-1] ** -0.5).softmax(-1, dtype=torch.float32).to(q.dtype)
    out = weights[..., :length] @ value
    for step, (_, v) in enumerate(later):
        out = out + weights[..., length + step, None] * v
    return out


def heads_first(x: Tensor, rows: int) -> Tensor:
    """[P, N, E] as [B, N, T, E], without moving anything."""
    return x.unflatten(0, (rows, -1)).transpose(1, 2)


def positions_first(x: Tensor) -> Tensor:
    """[B, N, T, ...] as [P, N, ...]; the fused kernels lay their output out so that nothing moves."""
    return x.transpose(1, 2).flatten(0, 1)


class _Merged(torch.autograd.Function):
    """`attend` with later steps; `later` is k_1, v_1, k_2, v_2, ...

    What lies between the kernel's calls works on positions laid end to end: their number is the same for batches of
    any length of row, so it is compiled once.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, key: Tensor, value: Tensor, *later: Tensor) -> Tensor:
        out, norm, ctx.kernel = _causal(q, key, value)
        own = [positions_first(x) for x in later]
        merged, total = merge(
            positions_first(out), positions_first(norm).contiguous(), positions_first(q), own[::2], own[1::2]
        )
        out, norm = heads_first(merged, len(q)), heads_first(total, len(q)).contiguous()
        ctx.save_for_backward(q, key, value, out, norm, *later)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        q, key, value, out, norm, *later = ctx.saved_tensors
        q_grad, key_grad, value_grad = _causal_backward(grad, q, key, value, out, norm, ctx.kernel)
        flat = [positions_first(x).contiguous() for x in (grad, q, out, norm)]
        own = [positions_first(x) for x in later]
        q_own, grads = own_gradients(*flat, own[::2], own[1::2])
        rows = len(q)
        return q_grad + heads_first(q_own, rows), key_grad, value_grad, *(heads_first(g, rows) for g in grads)


@compiled
def merge(out: Tensor, norm: Tensor, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Causal output [P, N, E] and normaliser [P, N] with the own entries of the later steps taken in, in float32."""
    scores = torch.stack([_own_score(q, k) for k in keys])
    total = torch.logsumexp(torch.cat([norm[None], scores]), dim=0)
    merged = (norm - total).exp()[..., None] * out.float()
    for score, v in zip(scores, values, strict=True):
        merged = merged + (score - total).exp()[..., None] * v.float()
    return merged.to(out.dtype), total


@compiled
def own_gradients(
    grad: Tensor, q: Tensor, out: Tensor, norm: Tensor, keys: list[Tensor], values: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """What the own entries give to the gradient of q [P, N, E], and the gradients of their keys and values in turn."""
    scale = q.shape[-1] ** -0.5
    grad32, q32 = grad.float(), q.float()
    centre = (grad32 * out.float()).sum(-1)
    q_grad = torch.zeros_like(q32)
    grads = []
    for k, v in zip(keys, values, strict=True):
        weight = (_own_score(q, k) - norm).exp()
        slope = (weight * ((grad32 * v.float()).sum(-1) - centre) * scale)[..., None]
        q_grad = q_grad + slope * k.float()
        grads += [(slope * q32).to(k.dtype), (weight[..., None] * grad32).to(v.dtype)]
    return q_grad.to(q.dtype), grads


def _own_score(q: Tensor, key: Tensor) -> Tensor:
    return (q.float() * key.float()).sum(-1) * q.shape[-1] ** -0.5


def _causal(q: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention, its normaliser [B, N, T] float32, and what the kernel's backward pass wants back."""
    if q.is_cuda:
        out, norm, *rest = _aten._scaled_dot_product_flash_attention(q, key, value, 0.0, True)
        return out, norm, tuple(rest)
    out, norm = _aten._scaled_dot_product_flash_attention_for_cpu(q, key, value, 0.0, True)
    return out, norm, ()


def _causal_backward(
    grad: Tensor, q: Tensor, key: Tensor, value: Tensor, out: Tensor, norm: Tensor, kernel: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    grads: tuple[Tensor, Tensor, Tensor]
    if kernel:
        q_bounds, k_bounds, q_longest, k_longest, seed, offset, _ = kernel
        grads = _aten._scaled_dot_product_flash_attention_backward(
            grad, q, key, value, out, norm, q_bounds, k_bounds, q_longest, k_longest, 0.0, True, seed, offset
        )
    else:
        grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, key, value, out, norm, 0.0, True)
    return grads
