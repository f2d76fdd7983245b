"""Whether a drafter's own vocabulary is mapped to the target's as the engines read it.

`d2t` [D] holds the OFFSET target id - draft id of each draft id, `t2d` [V] which target ids are drafted (sglang 0.5.14
and vllm 0.23.0 both add `d2t` to the draft id and ignore `t2d`). Without `d2t` they take draft ids for target ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tools.serving.doctor_finding import Finding, error, warning
from tools.serving.doctor_weights import Stored


def check_mapping(config: Mapping[str, Any], mine: Mapping[str, Stored]) -> list[Finding]:
    """What `d2t` and `t2d` say, held against each other and the sizes of the vocabularies."""
    vocabulary = int(config.get("vocab_size") or 0)
    head = mine.get("lm_head.weight")
    size = int(config.get("draft_vocab_size") or (head.shape[0] if head else vocabulary))
    tensor = mine.get("d2t")
    if tensor is None:
        if size >= vocabulary:
            return []
        return [
            error(
                "d2t-missing",
                f"{size} of the target's {vocabulary} tokens are drafted and there is no `d2t`: draft ids pass for "
                "target ids",
                "export `d2t` (it is a buffer, and some exporters save parameters only)",
            )
        ]
    if tensor.shape != (size,) or tensor.dtype not in ("I64", "I32"):
        seen = f"`d2t` is {tensor.dtype} {list(tensor.shape)}, and {size} tokens are drafted"
        return [error("d2t-shape", seen, f"export it as int64 [{size}]")]
    return judge_offsets(tensor.read(), _kept(mine.get("t2d"), vocabulary), vocabulary)


def _kept(membership: Stored | None, vocabulary: int) -> list[int] | None:
    """The target ids in `t2d`; `None` where there is none that can be read."""
    if membership is None or membership.shape != (vocabulary,) or membership.dtype not in ("BOOL", "U8"):
        return None
    return [token for token, there in enumerate(membership.read()) if there]


def judge_offsets(offsets: list[int], kept: list[int] | None, vocabulary: int) -> list[Finding]:
    """What the numbers of `d2t` say. `kept` are the target ids that `t2d` names, ascending."""
    mapped = [draft + offset for draft, offset in enumerate(offsets)]
    # Offsets repeat wherever two neighbouring tokens are both kept; target ids never do.
    absolute = offsets == kept if kept is not None else len(offsets) > 1 and all(a < b for a, b in pairwise(offsets))
    if absolute and mapped != kept:
        return [
            error(
                "d2t-absolute",
                "`d2t` holds target ids, and the engines add it to the draft id: the last draft would become token "
                f"{mapped[-1]} instead of {offsets[-1]}",
                "export the offsets, `d2t - arange(len(d2t))`",
            )
        ]
    if kept is not None and sorted(mapped) != kept:
        return [error("d2t-contradicts", "`d2t` and `t2d` name different tokens", "export both from one vocabulary")]
    if len(set(mapped)) < len(mapped) or min(mapped, default=0) < 0 or max(mapped, default=0) >= vocabulary:
        seen = f"`d2t` maps two drafts to one token, or out of the target's {vocabulary} tokens"
        return [error("d2t-range", seen, "export it again from the vocabulary that was trained")]
    if len(offsets) < vocabulary and not any(offsets) and kept is None:
        seen = f"`d2t` is all zero: the draft vocabulary would be the first {len(offsets)} tokens"
        return [warning("d2t-zero", seen, "right only if it was trained so; else the buffer was never filled")]
    return []
