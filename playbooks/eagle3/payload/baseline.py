"""What a drafter is worth before any training: the line that `evaluate` has to clear.

It is the very drafter that `train` starts from, so the difference between the two is what training bought.

    python -m eagle3.baseline --preset smoke
"""

from __future__ import annotations

from .build import new_drafter
from .config import Config
from .evaluate import measure
from .runtime import Result, Workdir, run_step
from .shards import Shards


def baseline(config: Config, work: Workdir) -> Result:
    """Predict the untrained drafter's acceptance on the held-out answers."""
    drafter, _ = new_drafter(config, work, Shards(work.shards, "train"))
    return measure(config, work, drafter)


if __name__ == "__main__":
    raise SystemExit(run_step("baseline", baseline))
