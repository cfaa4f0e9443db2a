"""Small multiples: a grid of panels with shared axes, and one legend above for the drafters that occur."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from specjoule.figures.style import ONE_COLUMN_IN, TWO_COLUMNS_IN, Look, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panel_grid(
    n: int, *, height_in: float = 1.75, sharey: bool = True, sharex: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `n` panels in at most three columns (one panel: a one-column figure)."""
    import matplotlib.pyplot as plt

    columns = 2 if n == 4 else min(3, n)
    rows = -(-n // columns)
    width = ONE_COLUMN_IN if n == 1 else TWO_COLUMNS_IN
    height = 2.7 if n == 1 else height_in * rows + 0.65
    fig, grid = plt.subplots(rows, columns, figsize=(width, height), sharex=sharex, sharey=sharey, squeeze=False)
    axes = list(np.ravel(grid))
    for spare in axes[n:]:
        spare.set_axis_off()
    for above in axes[max(0, n - columns) : n]:
        above.xaxis.set_tick_params(labelbottom=True)
    return fig, axes[:n]


def drafters_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the distinct drafters (drafter, scheme, verify_width), narrowest first within a scheme."""
    return (
        frame[["drafter", "scheme", "verify_width"]]
        .drop_duplicates("drafter")
        .sort_values(["scheme", "verify_width", "drafter"], kind="stable")
    )


def drafter_legend(fig: Figure, frame: pd.DataFrame, *, lines: bool = True) -> None:
    """Draw one legend outside the panels, above them, with the looks of the drafters in `frame`."""
    from matplotlib.lines import Line2D

    drafters = drafters_of(frame)
    handles = []
    for drafter, scheme, width in drafters.itertuples(index=False):
        style = look(scheme, width).line()
        if not lines:
            style["linestyle"] = "none"
        handles.append(Line2D([], [], label=drafter, **style))
    per_row = 3 if fig.get_size_inches()[0] < 5 else 7
    fig.legend(handles=handles, loc="outside upper center", ncols=min(per_row, len(handles)), handlelength=2.6)


def axis_titles(fig: Figure, x: str, y: str) -> None:
    """Name both axes once for all panels; a figure of one panel has them at its axes."""
    if len(fig.axes) == 1:
        fig.axes[0].set_xlabel(x)
        fig.axes[0].set_ylabel(y, linespacing=1.25)
        return
    fig.supxlabel(x, fontsize=7.5)
    fig.supylabel(y, fontsize=7.5, linespacing=1.25)


def seed_mark(axes: Axes, x: Any, y: Any, style: Look) -> None:
    """Mark single seeds with short bars that stay visible beside a median's marker."""
    axes.plot(x, y, linestyle="none", marker="_", markersize=7.5, markeredgewidth=0.8, color=style.color, zorder=1.9)


def concurrency_axis(axes: Axes, values: list[int]) -> None:
    """Make x a doubling scale with a tick at each concurrency measured."""
    ticks = sorted({int(v) for v in values})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(min(ticks) / 1.35, max(ticks) * 1.35)
