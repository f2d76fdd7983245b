"""The report's pictures, from plain numbers: how the loss fell, and how far a draft gets before and after training.

Blue is the trained drafter, grey the untrained one, throughout. Matplotlib is imported here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

BLUE, GREY, INK, FAINT = "#1f5fbf", "#9aa3ad", "#22282f", "#e3e7eb"
STYLE = {
    "figure.dpi": 160,
    "figure.facecolor": "white",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.bottom": False,
    "ytick.left": False,
}


def training_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Loss and accuracy of each unrolled step over training, from the rows of the training log."""
    steps = np.array([row["step"] for row in rows])
    losses = np.array([row["losses"] for row in rows])
    accuracy = np.array([row["accuracy"] for row in rows])
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
        shades = _shades(losses.shape[1])
        for s, colour in enumerate(shades):
            left.plot(steps, losses[:, s], color=colour, alpha=0.18, linewidth=0.8)
            left.plot(steps, _smooth(losses[:, s]), color=colour, linewidth=1.8, label=f"draft {s + 1}")
            right.plot(steps, 100 * accuracy[:, s], color=colour, alpha=0.18, linewidth=0.8)
            right.plot(steps, 100 * _smooth(accuracy[:, s]), color=colour, linewidth=1.8, label=f"draft {s + 1}")
        left.set(title="Loss on the training answers", xlabel="training step", ylabel="cross-entropy (nats)")
        right.set(title="Drafts that name the target's token", xlabel="training step", ylabel="% of positions")
        right.set_ylim(bottom=0)
        for axes in (left, right):
            axes.set_xlim(0, steps[-1])
            axes.grid(axis="x", visible=False)
        left.legend(frameon=False, loc="upper right")
        figure.savefig(path)
        plt.close(figure)


def acceptance(trained: dict[str, Any], untrained: dict[str, Any], path: Path) -> None:
    """Held-out acceptance of both drafters: the chance of each draft, and how long the accepted runs are."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
        positions = np.arange(1, trained["draft_tokens"] + 1)
        highest = 4.0
        for result, colour, name in ((untrained, GREY, "untrained"), (trained, BLUE, "trained")):
            shares = [np.nan if c is None else 100 * c for c in result["conditional"]]
            left.plot(positions, shares, "o-", color=colour, linewidth=1.8, markersize=6, label=name, clip_on=False)
            for position, share in zip(positions, shares, strict=True):
                if share == share:  # not a number: no draft got so far
                    left.annotate(
                        _percent(share),
                        (position, share),
                        xytext=(0, 8),
                        textcoords="offset points",
                        fontsize=8,
                        ha="center",
                    )
            highest = max(highest, np.nanmax(shares, initial=0.0))
        left.set(title="Is the next draft accepted, too?", xlabel="position in the chain", ylabel="% of drafts reached")
        left.set_xticks(positions)
        left.set_xlim(0.7, positions[-1] + 0.3)
        left.set_ylim(0, min(100.0, 1.35 * highest))
        left.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        left.grid(axis="x", visible=False)
        left.legend(frameon=False, loc="upper right", ncols=2)
        _runs(right, trained, untrained)
        figure.savefig(path)
        plt.close(figure)


def _runs(axes: Any, trained: dict[str, Any], untrained: dict[str, Any]) -> None:
    """Bars: the share of rounds by accepted drafts, with the mean acceptance length in the legend."""
    counts = np.arange(trained["draft_tokens"] + 1)
    for offset, result, colour, name in ((-0.2, untrained, GREY, "untrained"), (0.2, trained, BLUE, "trained")):
        shares = 100 * np.array(result["histogram"]) / max(1, result["rounds"])
        label = f"{name}: {result['acceptance_length']:.2f} tokens a round"
        bars = axes.bar(counts + offset, shares, width=0.38, color=colour, label=label)
        axes.bar_label(bars, labels=[_percent(s) for s in shares], padding=2, fontsize=8, color=INK)
    axes.set(title="How many drafts are accepted at once", xlabel="accepted drafts in a round", ylabel="% of rounds")
    axes.set_xticks(counts)
    axes.set_ylim(0, 128)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.grid(axis="x", visible=False)
    axes.legend(frameon=False, loc="upper right")


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{share:.1f}" if share < 10 else f"{share:.0f}"


def _shades(n: int) -> list[Any]:
    """`n` blues from the strong one of the first draft to a pale one of the last."""
    return [plt.get_cmap("Blues")(x) for x in np.linspace(0.9, 0.45, n)]


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred mean over a twentieth of the run, narrower at its ends."""
    half = max(1, len(values) // 40)
    padded = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(0, index - half), np.minimum(len(values), index + half + 1)
    return (padded[high] - padded[low]) / (high - low)
