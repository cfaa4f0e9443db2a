"""The same drafters on different texts: accepted length and saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_corpora(points: pd.DataFrame) -> Figure:
    """Draw saving by text, one panel per model, board and batch (the smallest and largest shared); bars are 95 %."""
    panels = []
    for title, part in points.groupby("panel", sort=False):
        batches = sorted(part.loc[part["corpus"] != "code", "concurrency"].unique()) or [part["concurrency"].min()]
        for batch in sorted({batches[0], batches[-1]}):
            panels.append((f"{title}\n{batch} at once", part.loc[part["concurrency"] == batch]))
    fig, axes = panel_grid(len(panels), height_in=1.9)
    texts = sorted(points["corpus"].unique(), key=lambda c: (c != "code", c))
    place = {c: i for i, c in enumerate(texts)}
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.axhline(0, color="#333333", linewidth=0.8)
        drafters = drafters_of(part)
        for i, (drafter, scheme, width) in enumerate(drafters.itertuples(index=False)):
            mine = part.loc[part["drafter"] == drafter]
            style = look(scheme, width)
            x = mine["corpus"].map(place) + (i - (len(drafters) - 1) / 2) * 0.7 / max(len(drafters), 1)
            bars = [100 * (mine["saving_median"] - mine["saving_low"]).clip(lower=0),
                    100 * (mine["saving_high"] - mine["saving_median"]).clip(lower=0)]  # fmt: skip
            ax.errorbar(x, 100 * mine["saving_median"], yerr=bars, linestyle="none", marker=style.marker,
                        color=style.color, markerfacecolor=style.face, markersize=3.4, elinewidth=0.7)  # fmt: skip
        for edge in range(1, len(texts)):
            ax.axvline(edge - 0.5, color="#dddddd", linewidth=0.5)
        ax.set_xticks(range(len(texts)), [t.replace("_", " ") for t in texts], rotation=30, ha="right",
                      rotation_mode="anchor")  # fmt: skip
        ax.set_xlim(-0.5, len(texts) - 0.5)
        ax.set_title(title, fontsize=6.8)
        ax.grid(axis="y")
    axis_titles(fig, "", "Energy saved per committed token\nagainst plain decoding (%)")
    drafter_legend(fig, points, lines=False)
    return fig
