"""Figures with many panels and drafters stay legible: no text over text, every drafter told apart, none clipped."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specjoule.figures.style import house_style, look, mark_provenance
from specjoule.tables.context import Context
from specjoule.tables.items import ITEMS
from specjoule.tables.registry import _resolve
from tests.pairs.frames import cell, frame, study

TEXTS = ["code", "conversation", "long_document", "news_en", "news_rm"]


def wide_study() -> pd.DataFrame:
    """Two models with long names on two boards, five texts, both capture states, three clocks, draft-share runs."""
    models, boards = ["Qwen3-Coder-30B-A3B", "Gemma-4-26B-A4B"], ["H100", "H200"]
    place = {"models": models, "gpus": boards, "concurrencies": [1, 64]}
    parts = [study(corpora=TEXTS, **place), study(capture=False, **place)]
    parts += [study(locked_mhz=mhz, **place) for mhz in (1500, 1200, 900)]
    rows: list[dict[str, Any]] = []
    for seed in (0, 1, 2):
        for c in (1, 64):
            base = {"model": models[0], "gpu": "H100", "seed": seed, "concurrency": c, "gpu_uuid": "H100-0"}
            for suffix, factor in (("+nodraft", 0.8), ("+random", 1.01)):
                rows += cell(f"dspark-7{suffix}", scheme="dspark", draft_tokens=6, verify_width=7,
                             step_j=(1 + 0.02 * c) * 1.4 * factor, committed_per_round=2.8, **base)  # fmt: skip
    return pd.concat([*parts, frame(rows)], ignore_index=True)


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(wide_study(), "wide")


@pytest.mark.parametrize(
    "name", ["figure_saving", "figure_break_even", "figure_capture", "figure_corpora", "figure_clocks",
             "figure_draft_share", "figure_frontier"],
)  # fmt: skip
def test_titles_and_tick_labels_do_not_run_into_each_other(context: Context, name: str) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.text import Text

    item = ITEMS[name]
    table = _resolve(item.compute)(context)
    assert not table.empty and item.draw is not None
    with house_style():
        fig = _resolve(item.draw)(table)
        mark_provenance(fig, ["simulated", "estimate"], [10.0])
        fig.canvas.draw()
        renderer = fig.canvas.get_renderer()
        axes = [ax for ax in fig.axes if ax.axison]
        titles = [t for ax in axes for t in (ax.title, ax._left_title) if t.get_text()]  # type: ignore[attr-defined]
        boxes = [t.get_window_extent(renderer) for t in titles]
        assert titles and not any(a.overlaps(b) for a, b in combinations(boxes, 2)), name
        footnote = next(t for t in fig.texts if t.get_text().startswith("Energy: ")).get_window_extent(renderer)
        common = [t.get_window_extent(renderer) for t in fig.findobj(Text) if t.get_text() == fig.get_supxlabel() != ""]
        below = [box for ax in axes if (box := ax.xaxis.get_tightbbox(renderer)) is not None]
        for one, other in combinations([[footnote], common, below], 2):
            assert not any(a.overlaps(b) for a in one for b in other), name
        for ax in axes:
            labels = [t for t in ax.get_xticklabels() if t.get_text() and t.get_visible()]
            turned = any(t.get_rotation() for t in labels)
            spans = [t.get_window_extent(renderer) for t in labels]
            assert turned or not any(a.overlaps(b) for a, b in combinations(spans, 2)), name
            low, high = ax.get_ylim()
            for line in ax.lines:
                y = np.asarray(line.get_ydata(), dtype=float)
                marked = line.get_marker() not in ("None", None, "")
                assert not marked or ((low <= y) & (y <= high) | np.isnan(y)).all(), name
        plt.close(fig)


def test_widths_of_one_scheme_are_told_apart_without_their_lines() -> None:
    for scheme in ("ngram", "dflash", "eagle3"):
        faces = {look(scheme, width).face for width in (4, 7, 16)}
        assert len(faces) == 3 and "#ffffff" in faces
    assert look("plain", 1).face == "#000000" and look("plain-matched", 1).face == "#ffffff"
