"""A new drafter: vocabulary from the training answers, the target's embedding, seeded noise for the rest."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .config import Config
from .data import Conversation, draft_vocabulary, mapping_tensors
from .model import Drafter, drafter_config
from .runtime import Workdir
from .shards import Shards
from .target import read_config, read_embedding, read_head


def new_drafter(config: Config, work: Workdir, shards: Shards) -> tuple[Drafter, Tensor]:
    """An untrained drafter for the sequences in `shards`, and the target's head cut to its vocabulary [D, H]."""
    settings = read_config(work.target)
    size = min(config.draft.vocab_size, settings.vocab_size)
    kept = draft_vocabulary(_conversations(shards), settings.vocab_size, size)
    d2t, t2d = mapping_tensors(kept, settings.vocab_size)
    torch.manual_seed(config.seed)
    boundaries = tuple(shards.index["boundaries"])
    drafter = Drafter(drafter_config(settings, size, boundaries), read_embedding(work.target), d2t, t2d)
    head = read_head(work.target).float()[torch.tensor(kept)]
    return drafter, head


def _conversations(shards: Shards) -> Iterator[Conversation]:
    for n, (ids, mask) in enumerate(shards.tokens()):
        yield Conversation(str(n), ids.tolist(), mask.tolist())
