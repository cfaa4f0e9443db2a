"""Romansh over English: accepted length kept, over all answers and over those that qualify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from specjoule.figures.style import TWO_COLUMNS_IN, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_language(points: pd.DataFrame) -> Figure:
    """Draw one row per model and drafter: filled marks are answers that qualify, hollow ones all; bars are 95 %."""
    import matplotlib.pyplot as plt

    order = points.sort_values(["model", "verify_width", "drafter", "concurrency"], kind="stable").reset_index(
        drop=True
    )
    rows = np.arange(len(order))[::-1]
    fig: Figure
    fig, ax = plt.subplots(figsize=(TWO_COLUMNS_IN, max(1.6, 0.17 * len(order) + 0.8)))
    ax.axvline(1, color="#333333", linewidth=0.8)
    for y, row in zip(rows, order.itertuples(), strict=True):
        style = look(str(row.scheme), float(str(row.verify_width)))
        for name, offset, face in (("kept", 0.15, style.color), ("all", -0.15, "white")):
            value, low, high = (getattr(row, f"{n}_{name}", np.nan) if n == "retention" else getattr(row, f"{name}_{n}")
                                for n in ("retention", "low", "high"))  # fmt: skip
            ax.plot([low, high], [y + offset] * 2, color=style.color, linewidth=0.9)
            ax.plot(value, y + offset, marker=style.marker, color=style.color, markerfacecolor=face, markersize=3.6)
    names = order["model"] + " · " + order["drafter"] + " · " + order["origin"]
    batches = ", ".join(str(int(c)) for c in sorted(order["concurrency"].unique()))
    if order["concurrency"].nunique() > 1:
        names = names + " · " + order["concurrency"].astype("str") + " at once"
    ax.set_yticks(rows, names)
    ax.set_ylim(-0.7, len(order) - 0.3)
    ax.set_xlabel(
        f"Tokens per round, Romansh over English, {batches} at once\n"
        "(filled: qualifying answers, hollow: all; bars: 95 %)"
    )
    ax.grid(axis="x")
    return fig
