"""Energy per step relative to plain against tokens committed per round, with the line on which they balance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_TICKS = ((0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32), tuple(i / 10 for i in range(5, 20)))
"""Round numbers for the logarithmic axes; the finer ones where few of the others are in sight."""


def draw_break_even(points: pd.DataFrame) -> Figure:
    """Draw `break_even_points`: right of the line A = r_E speculation saves energy, left of it it costs.

    Each drafter's points are joined in order of concurrency, the smallest and largest written beside them. The band
    along the line is the detection floor: plain relaunched shows as much against plain.
    """
    from matplotlib.ticker import NullLocator

    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels), height_in=2.1)
    right = 1.12 * float(np.nanmax(points["a_spec"].to_numpy()))
    top = 1.12 * float(np.nanmax(points["r_e"].to_numpy()))
    far = max(right, top)
    low = min(0.9, 0.93 * float(np.nanmin(points[["a_spec", "r_e"]].to_numpy())))
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.fill_between([low, far], [low, far], far, color="#000000", alpha=0.05, linewidth=0)
        floor = math.exp(float(part["floor_log_ratio"].iloc[0]))
        ax.fill_between([low, far], [low / floor, far / floor], [low * floor, far * floor], color="#000000",
                        alpha=0.14, linewidth=0)  # fmt: skip
        ax.plot([low, far], [low, far], color="#333333", linewidth=0.9)
        ax.text(0.03, 0.97, "costs energy", transform=ax.transAxes, ha="left", va="top", fontsize=6.5, color="#444444")
        ax.text(0.97, 0.03, "saves energy", transform=ax.transAxes, ha="right", va="bottom", fontsize=6.5,
                color="#444444")  # fmt: skip
        for drafter, scheme, width in drafters_of(points).itertuples(index=False):
            mine = part.loc[part["drafter"] == drafter]
            if mine.empty:
                continue
            style = look(scheme, width)
            seeds = mine.loc[mine["kind"] == "seed"]
            ax.plot(seeds["a_spec"], seeds["r_e"], linestyle="none", marker=".", markersize=2.6, alpha=0.6,
                    markeredgewidth=0, color=style.color, zorder=1.9)  # fmt: skip
            medians = mine.loc[mine["kind"] == "median"].sort_values("concurrency")
            ax.plot(medians["a_spec"], medians["r_e"], **style.line())
            for end in sorted({0, len(medians) - 1}):
                one = medians.iloc[end]
                ax.annotate(f"{int(one['concurrency'])}", (one["a_spec"], one["r_e"]), xytext=(3.5, -1),
                            textcoords="offset points", fontsize=5.8, color=style.color)  # fmt: skip
        for axis, last in ((ax.xaxis, right), (ax.yaxis, top)):
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
            ticks = next((found for grid in _TICKS if len(found := [t for t in grid if low <= t <= last]) >= 3), [1.0])
            axis.set_ticks(ticks, [f"{t:g}" for t in ticks])
            axis.set_minor_locator(NullLocator())
        ax.set_xlim(low, right)
        ax.set_ylim(low, top)
        ax.set_title(str(title))
    window = ", ".join(sorted(points["r_e_window"].dropna().unique()))
    axis_titles(
        fig,
        "Tokens committed per request and round, A",
        f"Energy per step relative to plain, $r_E$\n({window} windows)",
    )
    drafter_legend(fig, points)
    return fig
