"""Every table and figure by name: its question, the rule that decides it, and where it is computed and drawn.

This module imports nothing heavy, so that a workflow may list the items while it is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["table", "figure"]


@dataclass(frozen=True)
class Item:
    """One table or figure of the write-up."""

    name: str
    kind: Kind
    question: str
    rule: str
    """How the answer follows from the data, in one or two sentences; also the caption's second part."""
    windows: tuple[str, ...]
    """Windows it needs: 'generation', 'decode', or 'nested' for per-request columns and traces of the raw files."""
    compute: str
    """'module:function' within specjoule: analysis context in, data frame out."""
    draw: str | None = None
    """'module:function' within specjoule.figures: data frame in, figure out."""
    shown: str | None = None
    """'module:NAME' of the columns that Markdown and LaTeX show (default: all)."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files it consists of."""
        suffixes = ("csv", "md", "tex") if self.kind == "table" else ("pdf", "png", "csv")
        return tuple(f"{self.name}.{s}" for s in suffixes)


_ALL: tuple[Item, ...] = (
    Item(
        "table_cells", "table", "What did every cell consume and deliver, and does it count?",
        "Sums over the waves of each attempt; nothing is left out, excluded cells stand with their reasons.",
        ("generation",), "tables.compute:cells", shown="tables.cells_table:SHOWN",
    ),
    Item(
        "table_best_drafter", "table", "Which drafter spends least energy per committed token at each concurrency?",
        "Lowest median over seeds of the paired ratios, same board, settings, prompts and seed on both sides; "
        "saving is 1 minus that ratio.",
        ("generation",), "tables.compute:best", shown="tables.best_drafter:SHOWN",
    ),
    Item(
        "figure_saving", "figure", "How does the saving change with concurrency?",
        "Paired saving of every seed and the median over seeds.",
        ("generation",), "tables.compute:saving", "figures.saving:draw_saving",
    ),
    Item(
        "figure_break_even", "figure", "Does a round commit more tokens than its step costs?",
        "Speculation saves energy where tokens committed per request and round exceed the ratio of energy per step.",
        ("decode", "generation"), "tables.compute:break_even", "figures.break_even:draw_break_even",
    ),
)  # fmt: skip

ITEMS: dict[str, Item] = {item.name: item for item in _ALL}
"""Items by name, in the order of the write-up."""
