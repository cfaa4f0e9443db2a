"""One function an item: analysis context in, the item's data frame out."""

from __future__ import annotations

import pandas as pd

from specjoule.pairs.views import break_even_points, saving_points
from specjoule.tables.best_drafter import best_drafter
from specjoule.tables.cells_table import cells_table
from specjoule.tables.context import Context


def cells(context: Context) -> pd.DataFrame:
    """All cells."""
    return cells_table(context.cells)


def best(context: Context) -> pd.DataFrame:
    """Best drafter per place."""
    return best_drafter(context.summary)


def saving(context: Context) -> pd.DataFrame:
    """Points of saving against concurrency."""
    return saving_points(context.pairs)


def break_even(context: Context) -> pd.DataFrame:
    """Points of energy per step against tokens per round."""
    return break_even_points(context.pairs)
