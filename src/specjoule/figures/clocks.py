"""What a locked clock saves and costs, and what drafting takes of a round's energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, drafter_legend, drafters_of, panel_grid
from specjoule.figures.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_clocks(points: pd.DataFrame) -> Figure:
    """Draw energy saved against throughput lost by locking the clock, one panel per model, board and concurrency."""
    panel = points["model"] + " · " + points["gpu"] + "\n" + points["concurrency"].astype("str") + " at once"
    points = points.assign(panel=panel)
    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels), height_in=1.9)
    for ax, (title, part) in zip(axes, panels, strict=True):
        ax.axhline(0, color="#333333", linewidth=0.8)
        ax.axvline(0, color="#333333", linewidth=0.8)
        for drafter, scheme, width in drafters_of(points).itertuples(index=False):
            mine = part.loc[part["drafter"] == drafter].sort_values("locked_mhz", ascending=False)
            ax.plot(100 * mine["throughput_loss"], 100 * mine["energy_saving"], **look(scheme, width).line())
        # Each clock is written once, above the drafter that saves most at it.
        top = part.sort_values("energy_saving").drop_duplicates("locked_mhz", keep="last")
        places = zip(top["locked_mhz"], 100 * top["throughput_loss"], 100 * top["energy_saving"], strict=True)
        for mhz, x, y in places:
            ax.annotate(f"{mhz:.0f}", (x, y), xytext=(0, 4), textcoords="offset points", fontsize=5.8, ha="center")
        ax.margins(y=0.14)
        ax.set_title(str(title), fontsize=6.8)
        ax.grid()
    axis_titles(
        fig,
        "Throughput lost against the default clock (%); numbers: locked MHz",
        "Energy saved per token\nagainst the default clock (%)",
    )
    drafter_legend(fig, points)
    return fig


def draw_draft_share(points: pd.DataFrame) -> Figure:
    """Draw drafting's share of energy per step against concurrency; a cross at zero: the control forbids a split."""
    from specjoule.figures.panels import concurrency_axis

    points = points.assign(panel=points["model"] + " · " + points["gpu"])
    panels = list(points.groupby("panel", sort=False))
    fig, axes = panel_grid(len(panels))
    for ax, (title, part) in zip(axes, panels, strict=True):
        for drafter, scheme, width in drafters_of(part).itertuples(index=False):
            line = part.loc[part["drafter"] == drafter].sort_values("concurrency")
            style = look(scheme, width)
            known = line.loc[line["reported"]]
            ax.plot(known["concurrency"], 100 * known["share"], **style.line())
            refused = line.loc[~line["reported"], "concurrency"]
            ax.plot(refused, [0.0] * len(refused), marker="x", linestyle="none", color=style.color)
        ax.set_title(str(title))
        ax.set_ylim(0, 112 * float(points["share"].max()) if points["reported"].any() else 1)
        concurrency_axis(ax, part["concurrency"].tolist())
        ax.grid(axis="y")
    axis_titles(
        fig,
        "Concurrency (requests submitted at once)",
        "Drafting's share of energy per step (%)\n(x: control too large, no split)",
    )
    drafter_legend(fig, points)
    return fig
