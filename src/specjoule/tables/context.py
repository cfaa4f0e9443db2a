"""What all items share: the collected rows and, computed once when first asked for, cells, pairs and summaries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from specjoule.pairs.cells import sum_waves
from specjoule.pairs.pairing import Pairs, make_pairs
from specjoule.pairs.summary import summarise


@dataclass
class Context:
    """Collected rows of one study (or several, merged) and everything derived from them."""

    rows: pd.DataFrame
    study: str

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every cell attempt over its generation windows."""
        return sum_waves(self.rows, "generation")

    @cached_property
    def decode_cells(self) -> pd.DataFrame:
        """Every cell attempt over its decode windows."""
        return sum_waves(self.rows, "decode")

    @cached_property
    def paired(self) -> Pairs:
        """Pairs and excluded cells."""
        return make_pairs(self.cells, self.decode_cells)

    @property
    def pairs(self) -> pd.DataFrame:
        """Pairs that may be divided."""
        return self.paired.pairs

    @property
    def excluded(self) -> pd.DataFrame:
        """Speculative cells in no pair, with their reasons."""
        return self.paired.excluded

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Medians, half-ranges and totals per configuration."""
        return summarise(self.pairs)

    @property
    def meters(self) -> list[str]:
        """Meters that occur."""
        return [str(m) for m in self.rows["meter"].dropna().unique()]
