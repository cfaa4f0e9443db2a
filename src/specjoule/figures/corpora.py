"""The same drafters on different texts: accepted length and saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_corpora(points: pd.DataFrame) -> Figure:
    """Draw saving by text, one panel per model and board, at the smallest and largest shared batch; bars are 95 %."""
    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels), height_in=2.1)
    texts = sorted(points["corpus"].unique(), key=lambda c: (c != "code", c))
    place = {c: i for i, c in enumerate(texts)}
    drafters = drafters_of(points)
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.axhline(0, color="#333333", linewidth=0.8)
        batches = sorted(part.loc[part["corpus"] != "code", "concurrency"].unique()) or [part["concurrency"].min()]
        for batch, filled in ((batches[0], True), (batches[-1], False)):
            for i, (drafter, scheme, width) in enumerate(drafters.itertuples(index=False)):
                mine = part.loc[(part["drafter"] == drafter) & (part["concurrency"] == batch)]
                if mine.empty:
                    continue
                style = look(scheme, width)
                x = mine["corpus"].map(place) + (i - (len(drafters) - 1) / 2) * 0.8 / max(len(drafters), 1)
                bars = [100 * (mine["saving_median"] - mine["saving_low"]).clip(lower=0),
                        100 * (mine["saving_high"] - mine["saving_median"]).clip(lower=0)]  # fmt: skip
                ax.errorbar(x, 100 * mine["saving_median"], yerr=bars, linestyle="none", marker=style.marker,
                            color=style.color, markerfacecolor=style.color if filled else "white", markersize=3.4,
                            elinewidth=0.7)  # fmt: skip
        ax.set_xticks(range(len(texts)), [t.replace("_", "\n") for t in texts])
        ax.set_title(f"{title}\n(filled: {batches[0]}, hollow: {batches[-1]} requests)", fontsize=6.8)
        ax.grid(axis="y")
    axis_titles(fig, "", "Energy saved per committed token\nagainst plain decoding (%)")
    drafter_legend(fig, points, lines=False)
    return fig
