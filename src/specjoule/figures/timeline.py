"""A block as it ran, and what two equal things differ by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from specjoule.figures.style import ONE_COLUMN_IN, TWO_COLUMNS_IN, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_timeline(points: pd.DataFrame) -> Figure:
    """Draw a block's power and SM clock against time, its windows shaded in the drafter's colour."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    fig: Figure
    fig, axes = plt.subplots(2, 1, figsize=(TWO_COLUMNS_IN, 2.9), sharex=True, height_ratios=[3, 1])
    windows = points.loc[points["kind"] == "window"]
    handles = {}
    for (drafter, scheme, width), mine in windows.groupby(["drafter", "scheme", "verify_width"], sort=False):
        color = look(str(scheme), float(str(width))).color
        starts = mine["seconds"].to_numpy(dtype=np.float64)
        spans = np.column_stack([starts, mine["end_seconds"].to_numpy(dtype=np.float64) - starts])
        for ax in axes:  # one artist a drafter: a block has thousands of windows
            ax.broken_barh(spans, (0, 1), transform=ax.get_xaxis_transform(), color=color, alpha=0.25, linewidth=0)
        handles[str(drafter)] = Patch(color=color, alpha=0.35, label=str(drafter))
    for ax, kind, title in ((axes[0], "power_w", "Power (W)"), (axes[1], "sm_clock_mhz", "SM clock\n(MHz)")):
        mine = points.loc[points["kind"] == kind]
        ax.plot(mine["seconds"], mine["value"], linestyle="none", marker=".", markersize=0.9, color="#222222")
        ax.set_ylabel(title)
    axes[1].set_xlabel("Time since the block's first window (s)")
    axes[0].set_title(str(points["block"].iloc[0]))
    fig.legend(handles=list(handles.values()), loc="outside upper center", ncols=6)
    return fig


def draw_drift(points: pd.DataFrame) -> Figure:
    """Draw the distribution of block drift beside that of single seeds' ratios about their configuration's mean."""
    import matplotlib.pyplot as plt

    fig: Figure
    fig, axes = plt.subplots(figsize=(ONE_COLUMN_IN, 2.3))
    kinds = {
        "drift": ("closing plain\nover first plain", "#000000"),
        "seed": ("one seed's ratio\nover the mean", "#0072B2"),
    }
    for i, (kind, (_, color)) in enumerate(kinds.items()):
        values = points.loc[points["kind"] == kind, "percent"].to_numpy(dtype=np.float64)
        if len(values) == 0:
            continue
        offset = (np.arange(len(values)) * 0.618) % 1.0 * 0.5 - 0.25
        axes.plot(
            i + offset, values, linestyle="none", marker="o", markersize=1.8, markeredgewidth=0, color=color, alpha=0.5
        )
        low, middle, high = np.percentile(values, [5, 50, 95])
        axes.plot([i - 0.35, i + 0.35], [middle] * 2, color=color, linewidth=1.4)
        axes.plot([i - 0.3, i + 0.3], [low] * 2, color=color, linewidth=0.8, linestyle=(0, (3, 1)))
        axes.plot([i - 0.3, i + 0.3], [high] * 2, color=color, linewidth=0.8, linestyle=(0, (3, 1)))
    axes.axhline(0, color="#bbbbbb", linewidth=0.7, zorder=0)
    axes.set_xticks(range(len(kinds)), [v[0] for v in kinds.values()])
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylabel("Difference (%)\n(lines: 5, 50, 95 %)")
    return fig
