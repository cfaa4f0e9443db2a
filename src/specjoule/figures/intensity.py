"""Intensity against batch with the board's balance point, above the saving: why a board's saving turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from specjoule.figures.panels import axis_titles, concurrency_axis, drafter_legend, drafters_of
from specjoule.figures.style import TWO_COLUMNS_IN, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_intensity(points: pd.DataFrame) -> Figure:
    """Draw one column a board (first model of the data): intensity with the balance line above, saving below."""
    import matplotlib.pyplot as plt

    model = points["model"].iloc[0]
    mine = points.loc[points["model"] == model]
    boards = sorted(mine["gpu"].unique())
    fig: Figure
    fig, axes = plt.subplots(2, len(boards), figsize=(TWO_COLUMNS_IN, 3.8), sharex=True, sharey="row", squeeze=False)
    for column, gpu in enumerate(boards):
        part = mine.loc[mine["gpu"] == gpu]
        top, bottom = axes[0][column], axes[1][column]
        balance = float(part["balance_flop_per_byte"].iloc[0])
        top.axhline(balance, color="#333333", linewidth=0.9, linestyle=(0, (5, 2)))
        top.annotate(f"balance {balance:.0f}", (1, balance), xytext=(2, 2), textcoords="offset points", fontsize=6.2)
        bottom.axhline(0, color="#333333", linewidth=0.8)
        for drafter, scheme, width in drafters_of(part).itertuples(index=False):
            line = part.loc[part["drafter"] == drafter].sort_values("concurrency")
            style = look(scheme, width).line()
            top.plot(line["concurrency"], line["intensity_flop_per_byte"], **style)
            if scheme not in ("plain", "plain-matched"):
                bottom.plot(line["concurrency"], 100 * line["saving_median"], **style)
        top.set_yscale("log")
        top.set_title(f"{model} · {gpu}")
        concurrency_axis(bottom, part["concurrency"].tolist())
        for ax in (top, bottom):
            ax.grid(axis="y")
    axes[0][0].set_ylabel("Intensity of a step\n(FLOP/byte)")
    axes[1][0].set_ylabel("Energy saved per\ncommitted token (%)")
    axis_titles(fig, "Concurrency (requests submitted at once)", "")
    drafter_legend(fig, mine)
    return fig


def draw_roofline(points: pd.DataFrame) -> Figure:
    """Draw work delivered against intensity, with each board's roof: peak and bandwidth."""
    import matplotlib.pyplot as plt
    import numpy as np

    boards = sorted(points["gpu"].unique())
    fig: Figure
    fig, axes = plt.subplots(1, len(boards), figsize=(TWO_COLUMNS_IN, 2.9), sharex=True, sharey=True, squeeze=False)
    low, high = points["intensity_flop_per_byte"].min() / 1.5, points["intensity_flop_per_byte"].max() * 1.5
    for ax, gpu in zip(axes[0], boards, strict=True):
        part = points.loc[points["gpu"] == gpu]
        grid = np.geomspace(low, high, 200)
        roof = np.minimum(part["peak_flop_s"].iloc[0], grid * part["bandwidth_byte_s"].iloc[0])
        ax.plot(grid, roof / 1e12, color="#333333", linewidth=1.0)
        for drafter, scheme, width in drafters_of(part).itertuples(index=False):
            mine = part.loc[part["drafter"] == drafter]
            ax.scatter(mine["intensity_flop_per_byte"], mine["achieved_flop_s"] / 1e12, s=11, linewidth=0.7,
                       **look(scheme, width).points())  # fmt: skip
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(gpu)
        ax.grid()
    axis_titles(fig, "Intensity of a step by the model's sizes (FLOP/byte)", "Verified positions delivered\n(TFLOP/s)")
    drafter_legend(fig, points, lines=False)
    return fig
