"""Acceptance survival curves, and what each further position may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_survival(curves: pd.DataFrame) -> Figure:
    """Draw S_j against position j, one panel per model and text."""
    return _draw(curves, "survival", "Share of rounds that keep\nat least this many drafts", 1.0)


def draw_marginal_width(curves: pd.DataFrame) -> Figure:
    """Draw the largest growth of energy per step (percent) at which position j still pays, on a log scale."""
    return _draw(curves.loc[curves["marginal_limit"] > 0], "marginal_limit",
                 "Growth of energy per step\nat which position j pays (%)", 100.0)  # fmt: skip


def _draw(curves: pd.DataFrame, column: str, y: str, scale: float) -> Figure:
    from matplotlib.ticker import MaxNLocator

    panels = list(curves.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels))
    for ax, (title, part) in zip(axes, panels, strict=True):
        for drafter, scheme, width in drafters_of(curves).itertuples(index=False):
            mine = part.loc[part["drafter"] == drafter].sort_values("position")
            if len(mine):
                ax.plot(mine["position"], scale * mine[column], **{**look(scheme, width).line(), "markersize": 3})
        if scale == 1.0:
            ax.set_ylim(0, 1.02)
        else:
            ax.set_yscale("log")
        ax.set_title(str(title))
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        ax.grid(axis="y")
    axis_titles(fig, "Position j within the draft", y)
    drafter_legend(fig, curves)
    return fig
