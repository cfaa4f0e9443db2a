"""Latency against energy of every measured configuration, with the target and the frontier of either side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_frontier(points: pd.DataFrame) -> Figure:
    """Draw each configuration's interval and J/token; steps join measured configurations that nothing beats on both."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels), height_in=2.0, sharey=False, sharex=False)
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.axvline(float(part["target_ms"].iloc[0]), color="#333333", linewidth=0.9, linestyle=(0, (5, 2)))
        plain = part["scheme"].isin(["plain", "plain-matched"])
        for side, dash in ((part.loc[plain], "-"), (part.loc[~plain], (0, (1, 1)))):
            edge = side.sort_values(["itl_mean_ms", "j_per_token"])
            edge = edge.loc[edge["j_per_token"] <= np.minimum.accumulate(edge["j_per_token"].to_numpy())]
            ax.step(edge["itl_mean_ms"], edge["j_per_token"], where="post", color="#999999", linewidth=0.9,
                    linestyle=dash, zorder=1)  # fmt: skip
        for drafter, scheme, width in drafters_of(points).itertuples(index=False):
            mine = part.loc[part["drafter"] == drafter]
            ax.scatter(mine["itl_mean_ms"], mine["j_per_token"], s=13, linewidth=0.7, zorder=2,
                       **look(scheme, width).points())  # fmt: skip
        ax.set_yscale("log")
        ax.set_xscale("log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axis.set_minor_formatter(NullFormatter())
        ax.set_title(str(title))
        ax.grid(which="major")
    target = float(points["target_ms"].iloc[0])
    axis_titles(
        fig,
        f"Mean interval between a user's tokens (ms); dashed: target {target:g} ms",
        "Energy per committed token (J)",
    )
    drafter_legend(fig, points, lines=False)
    return fig
