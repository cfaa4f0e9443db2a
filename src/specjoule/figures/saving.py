"""Saving against concurrency, one panel per model, board and text; every seed is visible."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, concurrency_axis, drafter_legend, drafters_of, panel_grid, seed_mark
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_saving(points: pd.DataFrame) -> Figure:
    """Draw `saving_points`: short bars are seeds, lines join medians; below zero speculation costs energy.

    The band about zero is the detection floor: inside it nothing was told from plain relaunched against plain.
    """
    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels))
    drafters = drafters_of(points)
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.axhline(0.0, color="#333333", linewidth=0.8)
        floor = float(part["floor_log_ratio"].iloc[0])
        ax.axhspan(-100 * math.expm1(floor), -100 * math.expm1(-floor), color="#000000", alpha=0.07, linewidth=0)
        for i, (drafter, scheme, width) in enumerate(drafters.itertuples(index=False)):
            mine = part.loc[part["drafter"] == drafter]
            if mine.empty:
                continue
            style = look(scheme, width)
            shift = 1.0 + 0.035 * (i - (len(drafters) - 1) / 2)
            seeds = mine.loc[mine["kind"] == "seed"]
            seed_mark(ax, seeds["concurrency"] * shift, 100 * seeds["saving"], style)
            medians = mine.loc[mine["kind"] == "median"].sort_values("concurrency")
            ax.plot(medians["concurrency"] * shift, 100 * medians["saving"], **style.line())
        ax.set_title(str(title))
        concurrency_axis(ax, points["concurrency"].tolist())
        ax.grid(axis="y")
    axis_titles(
        fig, "Concurrency (requests submitted at once)", "Energy saved per committed token\nagainst plain decoding (%)"
    )
    drafter_legend(fig, points)
    return fig
