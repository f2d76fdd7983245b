"""Data parallel training: how the processes of `torchrun` find each other and add up what they found.

Each process trains on its share of a step's batches; gradients and counts are SUMMED, never averaged, because the
positions that count differ from batch to batch, and only the sum divided by the common count is the gradient of one
large batch. NCCL on CUDA, gloo on a CPU. Without `torchrun` there is one process, and nothing here does anything.

    torchrun --nproc-per-node 8 -m eagle3.train --preset h200-smollm2
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True)
class Group:
    """This process's place among all."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Group:
        """Join the processes that the environment speaks of."""
        if "WORLD_SIZE" not in os.environ:
            return cls()
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Make each tensor, in place, the sum over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def leave(self) -> None:
        if self.size > 1:
            dist.barrier()
            dist.destroy_process_group()
