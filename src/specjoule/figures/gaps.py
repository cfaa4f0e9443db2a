"""How long a user waits between tokens: the whole distribution, not its mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BIN = 1.06
"""Width of a bin of the gap histogram as a factor."""


def draw_gaps(points: pd.DataFrame) -> Figure:
    """Draw the share of gaps longer than x; grey lines mark p50, p95 and p99; the right end is the longest stall."""
    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels), height_in=2.0)
    drafters = drafters_of(points)
    for ax, (title, part) in zip(axes, panels, strict=True):
        for share in (0.5, 0.05, 0.01):
            ax.axhline(share, color="#cccccc", linewidth=0.7)
            ax.annotate(f"p{100 * (1 - share):.0f}", (0.99, share), xycoords=("axes fraction", "data"), fontsize=5.6,
                        ha="right", va="bottom", color="#777777")  # fmt: skip
        for drafter, scheme, width in drafters.itertuples(index=False):
            mine = part.loc[part["drafter"] == drafter].sort_values("gap_ms")
            if mine.empty:
                continue
            style = look(scheme, width).line()
            every = max(1, len(mine) // 5)
            x = np.concatenate([mine["gap_ms"].to_numpy()[:1] / BIN, mine["gap_ms"].to_numpy()])
            shares = np.concatenate([[1.0], np.maximum(mine["share_longer"].to_numpy(), 1e-6)])
            ax.step(x, shares, where="post", markevery=every, **{**style, "markersize": 3})
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(1e-5, 1.3)
        ax.set_title(str(title))
    axis_titles(fig, "Gap between the tokens of one user (ms)", "Share of gaps longer")
    drafter_legend(fig, points)
    return fig
