"""Capture off against on: a slope per drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_capture(points: pd.DataFrame) -> Figure:
    """Draw the saving without and with captured graphs, one panel per model, board and concurrency."""
    points = points.assign(
        panel=points["model"] + " · " + points["gpu"] + "\n" + points["concurrency"].astype("str") + " at once"
    )
    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels), height_in=1.9)
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.axhline(0, color="#333333", linewidth=0.8)
        for drafter, scheme, width in drafters_of(points).itertuples(index=False):
            for row in part.loc[part["drafter"] == drafter].itertuples():
                ax.plot([0, 1], [100 * row.saving_off, 100 * row.saving_on], **look(scheme, width).line())
        ax.set_xlim(-0.25, 1.25)
        ax.set_xticks([0, 1], ["capture off", "capture on"])
        ax.set_title(str(title), fontsize=6.8)
        ax.grid(axis="y")
    axis_titles(fig, "", "Energy saved per committed token\nagainst plain decoding (%)")
    drafter_legend(fig, points)
    return fig
