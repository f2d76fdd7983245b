"""The report's pictures, from plain numbers, each as PNG for the Markdown page and as SVG for the HTML one.

Blue is the trained drafter, grey what it is compared with, orange what an engine measured, throughout. Matplotlib is
imported here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The folder for its font cache must be writable, and it must not ask a display that is not there.
os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

BLUE, GREY, ORANGE, INK, FAINT = "#1f5fbf", "#9aa3ad", "#d9822b", "#22282f", "#e3e7eb"
POINTS = 300  # of a curve
STYLE = {
    "figure.dpi": 160, "figure.facecolor": "white", "font.size": 10, "font.family": "DejaVu Sans",
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.titlesize": 11.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlepad": 12, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": FAINT, "grid.linewidth": 0.8, "text.color": INK,
    "xtick.color": INK, "ytick.color": INK, "xtick.bottom": False, "ytick.left": False, "svg.fonttype": "path",
}  # fmt: skip


@contextmanager
def picture(folder: Path, name: str, columns: int = 1, size: tuple[float, float] = (10, 3.8)) -> Iterator[Any]:
    """Axes to draw on (one, or a row of them), saved as `name`.png and `name`.svg in `folder` afterwards."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained")
        yield axes
        for kind in ("png", "svg"):
            figure.savefig(folder / f"{name}.{kind}", metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)


def training_curves(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Loss and accuracy of each unrolled step over training, from the rows of the training log."""
    steps = np.array([row["step"] for row in rows])
    losses = np.array([row["losses"] for row in rows])
    accuracy = np.array([row["accuracy"] for row in rows])
    with picture(folder, "training", 2) as (left, right):
        few = slice(None, None, max(1, len(steps) // POINTS))  # more would be wider than the picture
        for s, colour in enumerate(_shades(losses.shape[1])):
            for axes, values in ((left, losses[:, s]), (right, 100 * accuracy[:, s])):
                axes.plot(steps[few], values[few], color=colour, alpha=0.18, linewidth=0.8)
                axes.plot(steps[few], _smooth(values)[few], color=colour, linewidth=1.8, label=f"draft {s + 1}")
        left.set(title="Loss on the training answers", xlabel="training step", ylabel="cross-entropy (nats)")
        right.set(title="Drafts that name the target's token", xlabel="training step", ylabel="% of positions")
        right.set_ylim(bottom=0)
        for axes in (left, right):
            axes.set_xlim(0, steps[-1])
            axes.grid(axis="x", visible=False)
        left.legend(frameon=False, loc="upper right")


def acceptance_over_steps(rows: Sequence[Mapping[str, Any]], folder: Path) -> bool:
    """Held-out acceptance by position as training went on; `False` when it was not measured at least twice."""
    measured = [row for row in rows if "acceptance" in row]
    if len(measured) < 2:
        return False
    steps = [row["step"] for row in measured]
    with picture(folder, "acceptance_steps", 2) as (left, right):
        count = len(measured[0]["acceptance"])
        for k, colour in enumerate(_shades(count)):
            shares = [np.nan if row["acceptance"][k] is None else 100 * row["acceptance"][k] for row in measured]
            left.plot(steps, shares, "o-", color=colour, linewidth=1.8, markersize=4, label=f"draft {k + 1}")
        left.set(title="Held-out acceptance by position", xlabel="training step", ylabel="% of drafts reached")
        left.set_ylim(bottom=0)
        left.legend(frameon=False, loc="best")
        right.plot(steps, [row["acceptance_length"] for row in measured], "o-", color=BLUE, linewidth=1.8, markersize=4)
        right.set(title="Held-out acceptance length", xlabel="training step", ylabel="tokens a round")
        right.set_ylim(bottom=1)
        for axes in (left, right):
            axes.set_xlim(left=0)
            axes.grid(axis="x", visible=False)
    return True


def acceptance(trained: Mapping[str, Any], untrained: Mapping[str, Any], folder: Path) -> None:
    """Held-out acceptance of both drafters: the chance of each draft, and how long the accepted runs are."""
    with picture(folder, "acceptance", 2) as (left, right):
        positions = np.arange(1, trained["draft_tokens"] + 1)
        highest = 4.0
        for result, colour, name in ((untrained, GREY, "untrained"), (trained, BLUE, "trained")):
            shares = [np.nan if c is None else 100 * c for c in result["conditional"]]
            left.plot(positions, shares, "o-", color=colour, linewidth=1.8, markersize=6, label=name, clip_on=False)
            for position, share in zip(positions, shares, strict=True):
                if share == share:  # not a number: no draft got so far
                    at = {"xytext": (0, 8), "textcoords": "offset points", "fontsize": 8, "ha": "center"}
                    left.annotate(_percent(share), (position, share), **at)
            highest = max(highest, np.nanmax(shares, initial=0.0))
        left.set(title="Is the next draft accepted, too?", xlabel="position in the chain", ylabel="% of drafts reached")
        left.set_xticks(positions)
        left.set_xlim(0.7, positions[-1] + 0.3)
        left.set_ylim(0, min(100.0, 1.35 * highest))
        left.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        left.grid(axis="x", visible=False)
        left.legend(frameon=False, loc="upper right", ncols=2)
        _runs(right, trained, untrained)


def by_set(lengths: Mapping[str, Mapping[str, float]], folder: Path) -> None:
    """Acceptance length of each prompt set: `lengths[set]` has `predicted`, and `untrained` and `measured` if known."""
    colours = {"untrained": GREY, "predicted": BLUE, "measured": ORANGE}
    kinds = [kind for kind in colours if any(kind in found for found in lengths.values())]
    with picture(folder, "sets", size=(10, 1.2 + 0.34 * len(kinds) * len(lengths) + 0.3)) as axes:
        places = np.arange(len(lengths))[::-1]
        height = 0.8 / len(kinds)
        for n, kind in enumerate(kinds):
            values = [found.get(kind, np.nan) for found in lengths.values()]
            at = places + height * ((len(kinds) - 1) / 2 - n)
            bars = axes.barh(at, values, height * 0.92, color=colours[kind], label=kind)
            axes.bar_label(bars, labels=["" if v != v else f"{v:.2f}" for v in values], padding=4, fontsize=9)
        axes.set(title="Acceptance length by prompt set", xlabel="tokens a round (1: no draft is ever accepted)")
        axes.set_yticks(places, list(lengths))
        axes.set_xlim(left=0)
        axes.margins(x=0.12)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.grid(axis="y", visible=False)
        axes.legend(frameon=False, loc="lower right", ncols=3, bbox_to_anchor=(1, 1.0))


def throughput(rows: Sequence[tuple[str, float, float]], folder: Path) -> None:
    """Bars of tokens a second without and with the drafter: a label, the plain rate and the drafted one a row."""
    with picture(folder, "throughput", size=(10, 1.4 + 0.62 * len(rows))) as axes:
        places = np.arange(len(rows))[::-1]
        plain, drafted = [row[1] for row in rows], [row[2] for row in rows]
        bars = axes.barh(places + 0.2, plain, 0.36, color=GREY, label="without a drafter")
        axes.bar_label(bars, labels=[f"{v:,.0f}" for v in plain], padding=4, fontsize=9)
        bars = axes.barh(places - 0.2, drafted, 0.36, color=ORANGE, label="with the drafter")
        labels = [f"{b:,.0f}  ({b / a:.2f}x)" if a else f"{b:,.0f}" for a, b in zip(plain, drafted, strict=True)]
        axes.bar_label(bars, labels=labels, padding=4, fontsize=9)
        axes.set(title="Throughput in the engine", xlabel="tokens a second")
        axes.set_yticks(places, [row[0] for row in rows])
        axes.margins(x=0.18)
        axes.grid(axis="y", visible=False)
        axes.legend(frameon=False, loc="lower right", ncols=2, bbox_to_anchor=(1, 1.0))


def spent(seconds: Mapping[str, float], sizes: Mapping[str, int], folder: Path) -> None:
    """Bars of the time of each step and of what lies on disk."""
    with picture(folder, "spent", 2, size=(10, 1.2 + 0.3 * max(len(seconds), len(sizes)))) as (left, right):
        for axes, values, name in (
            (left, {k: v / 60 for k, v in seconds.items()}, "Time (minutes)"),
            (right, {k: v / 1e6 for k, v in sizes.items()}, "Disk (MB)"),
        ):
            places = np.arange(len(values))[::-1]
            bars = axes.barh(places, list(values.values()), 0.7, color=BLUE)
            axes.bar_label(bars, labels=[_short(v) for v in values.values()], padding=4, fontsize=9)
            axes.set(title=name)
            axes.set_yticks(places, list(values))
            axes.margins(x=0.16)
            axes.grid(axis="y", visible=False)


def _runs(axes: Any, trained: Mapping[str, Any], untrained: Mapping[str, Any]) -> None:
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


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


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
